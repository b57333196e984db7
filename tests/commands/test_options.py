"""What a flag takes is decided by the configuration's types."""

import argparse

import pytest

from dapfl.commands import compare, deploy, keys, run
from dapfl.commands.options import Option, add_options, changes, choices_of
from dapfl.config import RunConfig, override

OPTIONS = (
    Option("rounds", "rounds", "how many", "N"),
    Option("key-bits", "crypto.key_bits", "size", "B"),
    Option("eta", "eta", "rate", "X"),
    Option("codec", "crypto.codec", "how"),
    Option("log", "log", "logs", "NAME[,NAME]"),
    Option("allow-insecure-small-keys", "crypto.allow_insecure_small_keys", "small keys"),
)


def parsed(*arguments: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_options(parser, OPTIONS)
    return changes(parser.parse_args(arguments), OPTIONS)


def test_flags_that_are_not_given_change_nothing() -> None:
    assert parsed() == {}


def test_flags_are_read_by_the_type_of_their_value() -> None:
    given = parsed(
        *("--rounds", "3", "--key-bits", "512", "--eta", "0.5", "--codec", "compact"),
        *("--log", "tensorboard, mlflow", "--allow-insecure-small-keys"),
    )
    config = override(RunConfig(), given)
    assert (config.rounds, config.crypto.key_bits, config.eta) == (3, 512, 0.5)
    assert (config.crypto.codec, config.log) == ("compact", ("tensorboard", "mlflow"))
    assert config.crypto.allow_insecure_small_keys


@pytest.mark.parametrize("wrong", [("--rounds", "ten"), ("--codec", "zip"), ("--eta", "fast")])
def test_a_value_of_another_type_is_refused(wrong: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*wrong)


def test_help_shows_choices_and_defaults_of_the_configuration() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, OPTIONS)
    text = " ".join(parser.format_help().split())
    assert f"how many (default: {RunConfig().rounds})" in text
    assert "{exact,compact}" in text and choices_of("crypto.codec") == ("exact", "compact")
    assert "rate (default" not in text  # it has none


@pytest.mark.parametrize("command", [run, compare, deploy, keys])
def test_every_flag_sets_a_value_that_the_configuration_has(command: object) -> None:
    for option in command._OPTIONS:  # type: ignore[attr-defined]
        value: object = RunConfig()
        for part in option.name.split("."):
            value = getattr(value, part)
        assert option.help
