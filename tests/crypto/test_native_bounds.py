"""The C extension itself refuses whatever has the wrong size, whoever calls it."""

import random
from typing import Any

import numpy as np
import pytest

from dapfl.crypto.engines import native
from dapfl.crypto.engines.native import NativeEngine, NativeRing

pytestmark = pytest.mark.skipif(not native.usable(), reason="dapfl was built without a C compiler")

ROOT = (1 << 127) - 1


def ring(name: str) -> NativeRing:
    built = NativeEngine(name).ring(ROOT)
    assert isinstance(built, NativeRing)
    return built


def good_calls(name: str) -> dict[str, list[Any]]:
    """Arguments that work, for every function."""
    r = ring(name)
    constants, limbs = r.constants, r._limbs
    rows, wide = np.ones((3, 16), np.uint8), np.ones((3, 32), np.uint8)
    scales = np.zeros(2 * limbs, np.uint64)
    table = r.build_table(3, 2, 8, 1)
    rings, exponents = np.stack([constants] * 3), rows[:, :2].copy()
    secret = np.tile(np.frombuffer((ROOT - 1).to_bytes(16, "little"), np.uint8), (3, 1))
    each_scale = np.zeros(3 * limbs, np.uint64)
    return {
        "lane_powers": [name, 3, rings, rows, 16, exponents, 2, rows, 16, wide.copy()],
        "lane_quotients_residues": [
            name,
            3,
            rings,
            rows,
            16,
            secret,
            16,
            each_scale,
            rows.copy(),
            rows.copy(),
        ],
        "powers": [name, constants, rows, 16, b"\x05", rows, 16, scales, wide.copy()],
        "public_powers": [name, constants, rows, 16, b"\x05", wide.copy()],
        "quotients": [
            name,
            constants,
            rows,
            16,
            (ROOT - 1).to_bytes(16, "little"),
            scales[:limbs],
            rows.copy(),
        ],
        "build_table": [name, constants, b"\x03", scales[:limbs], 8, 1, 2, table],
        "table_powers": [name, constants, table, 8, 1, 2, rows[:, :2].copy(), rows, 16, scales, wide.copy()],
        "residue_powers": [name, constants, rows, 16, b"\x05", rows.copy()],
        "power_product": [name, constants, rows, 16, rows[:, :2].copy(), 2, wide[:1].copy()],
        "product": [name, constants, (wide, wide), wide.copy()],
        "combine": [name, constants, rows, 16, rows, 16, scales[:limbs], scales[:limbs], wide.copy(), 32],
    }


def test_these_are_all_functions() -> None:
    found = {name for name, value in vars(native._native).items() if callable(value)}
    assert found - {"backends", "__loader__", "__spec__"} == set(good_calls("portable"))


@pytest.mark.parametrize("name", native.usable())
def test_every_buffer_of_another_length_is_refused(name: str) -> None:
    for function, arguments in good_calls(name).items():
        call = getattr(native._native, function)
        call(*arguments)
        for index, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                flat = argument.reshape(-1)
                for other in (flat[:-1], flat[:0], np.concatenate([flat, flat[:1]])):
                    with pytest.raises(ValueError, match="wrong size"):
                        call(*arguments[:index], other.copy(), *arguments[index + 1 :])


@pytest.mark.parametrize("name", native.usable())
def test_every_wrong_number_is_refused(name: str) -> None:
    for function, arguments in good_calls(name).items():
        call = getattr(native._native, function)
        for index, argument in enumerate(arguments):
            if isinstance(argument, int):
                for other in (-(2**62), -1, 0, argument + 1, 3 * argument + 1, 2**40, 2**62):
                    with pytest.raises(ValueError, match="wrong size"):
                        call(*arguments[:index], other, *arguments[index + 1 :])


@pytest.mark.parametrize("name", native.usable())
def test_a_ring_with_an_impossible_header_is_refused(name: str) -> None:
    rng = random.Random(0)
    arguments = good_calls(name)["product"]
    changed = 0
    for _ in range(300):
        constants = arguments[1].copy()
        word = rng.randrange(4)
        constants[word] = rng.choice([0, 1, 3, 5, 64, 1000, 2**31, 2**32, 2**61, 2**63, 2**64 - 1])
        if constants[word] == arguments[1][word] or (word == 3 and constants[word] <= 2 * constants[0]):
            continue
        changed += 1
        with pytest.raises(ValueError, match="wrong size"):
            native._native.product(name, constants, *arguments[2:])
    assert changed > 100


@pytest.mark.parametrize("name", native.usable())
def test_exponents_without_bits_or_without_end_are_refused(name: str) -> None:
    arguments = good_calls(name)["powers"]
    for exponent in (b"", b"\0", bytes(100), bytes(5000) + b"\1"):
        with pytest.raises(ValueError, match="wrong size"):
            native._native.powers(*arguments[:4], exponent, *arguments[5:])


def test_unknown_backends_and_arguments_are_refused() -> None:
    arguments = good_calls("portable")["product"]
    with pytest.raises(ValueError, match="no backend"):
        native._native.product("abacus", *arguments[1:])
    with pytest.raises(TypeError):
        native._native.product("portable", *arguments[1:3], b"read only")
    with pytest.raises(TypeError):
        native._native.product("portable", arguments[1], (1, 2), arguments[3])
    with pytest.raises(TypeError):
        native._native.product()
    with pytest.raises(ValueError, match="wrong size"):
        native._native.product("portable", arguments[1], (), arguments[3])


@pytest.mark.parametrize("name", native.usable())
def test_nothing_is_written_around_the_result(name: str) -> None:
    """Results of every count, in the middle of a larger buffer that must not change."""
    r = ring(name)
    for count in range(19):
        frame = np.full((count + 2) * 32, 0xA5, np.uint8)
        inner = frame[32:-32]
        rows = np.full((count, 32), 1, np.uint8)
        native._native.product(name, r.constants, (rows, rows), inner)
        assert (frame[:32] == 0xA5).all() and (frame[-32:] == 0xA5).all()


@pytest.mark.parametrize("name", native.usable())
def test_the_rounding_of_floating_point_is_put_back(name: str) -> None:
    """Backends compute with rounding toward zero, the rest of the process must not notice."""
    numbers = np.arange(1, 1000, dtype=np.float64)
    before = np.sqrt(numbers) / 3
    native._native.product(*good_calls(name)["product"])
    assert np.array_equal(np.sqrt(numbers) / 3, before)


@pytest.mark.parametrize("name", native.usable())
def test_rings_of_different_sizes_share_no_lanes(name: str) -> None:
    small, large = ring(name), NativeEngine(name).ring((1 << 607) - 1)
    assert isinstance(large, NativeRing)
    rows, wide = np.ones((2, 16), np.uint8), np.ones((2, 32), np.uint8)
    with pytest.raises(ValueError, match="wrong size"):
        mixed = np.concatenate([small.constants, large.constants])
        native._native.lane_powers(name, 2, mixed, rows, 16, rows, 16, rows, 16, wide)
    for count in (0, -1, 1 << 62):
        with pytest.raises(ValueError, match="wrong size"):
            native._native.lane_powers(name, count, small.constants, rows, 16, rows, 16, rows, 16, wide)
    assert not native.share_lanes([small, large])
    assert not native.share_lanes([small])
