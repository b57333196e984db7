import pytest

from dapfl.reporting import palette
from dapfl.reporting.measures import SETTING_ORDER


def luminance(colour):
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def curves():
    settings = palette.inks(
        [(name, name) for name in SETTING_ORDER] + [("mine", f"mine {i}") for i in range(3)]
    )
    return settings | palette.capability_inks([1.0, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize("name", list(curves()))
def test_every_curve_stands_out_on_light_and_on_dark(name):
    ink = curves()[name]
    assert contrast(ink.light, "#ffffff") >= 3
    assert contrast(ink.dark, "#151a21") >= 3


def test_settings_have_inks_of_their_own():
    inks = palette.inks([(name, name) for name in SETTING_ORDER])
    assert (
        len({(ink.light, ink.dash) for name, ink in inks.items() if name != "fixed-capped"}) == len(inks) - 1
    )


def test_groups_of_one_setting_get_inks_that_differ():
    inks = palette.inks([("fixed-capped", "a"), ("fixed-capped", "b"), ("fixed-capped", "c")])
    assert len(set(inks.values())) == 3


def test_a_single_capability_has_an_ink():
    assert len(palette.capability_inks([0.5])) == 1
