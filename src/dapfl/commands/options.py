"""Flags that set a value of the configuration.

A command lists its `Option`s; the type, the choices and the default of each come from `dapfl.config`.
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dapfl.config import SECURE_BITS, RunConfig


@dataclass(frozen=True)
class Option:
    """The flag `--flag`, which sets the configuration value `name`, such as ``crypto.key_bits``."""

    flag: str
    name: str
    help: str
    metavar: str | None = None  # not for values with choices
    required: bool = False


# Flags that mean the same in several commands.
TASK = Option("task", "task", "a built-in task (docs/tasks.md lists them) or FILE.py:NAME", "T")
SETTING = Option(
    "setting", "setting", "dap-fl, large, small, ... (docs/tuning.md lists them) or FILE.py:NAME", "S"
)
ROUNDS = Option("rounds", "rounds", "how many rounds", "N")
CLIENTS = Option("clients", "clients", "how many clients", "N")
PER_ROUND = Option(
    "per-round", "per_round", "how many clients, drawn at random, a round calls (default: all)", "K"
)
SEED = Option("seed", "seed", "decides everything random but keys", "K")
MIN_COHORT = Option("min-cohort", "min_cohort", "the fewest contributions that are aggregated", "N")
ENCRYPTION = Option("encryption", "crypto.encryption", "how contributions are encrypted")
DECRYPTION = Option(
    "decryption",
    "crypto.decryption",
    "who can decrypt a sum: a committee of clients together, or every client alone",
)
KEY_BITS = Option("key-bits", "crypto.key_bits", "the size of the keys", "B")
SMALL_KEYS = Option(
    "allow-insecure-small-keys",
    "crypto.allow_insecure_small_keys",
    f"accept keys under {SECURE_BITS} bits, which protect nothing (for trials only)",
)


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Adds a flag for each option; one that is not given is None, and the configuration decides."""
    for option in options:
        kind, default = _type_and_default(option.name)
        shown = option.help
        told = option.required or "default:" in shown
        if not told and isinstance(default, str | int | float) and not isinstance(default, bool):
            shown = f"{shown} (default: {default})"
        parser.add_argument(
            f"--{option.flag}",
            dest=_destination(option),
            default=None,
            required=option.required,
            help=shown.replace("%", "%%"),
            **_arguments(kind, option.metavar),
        )


def changes(args: argparse.Namespace, options: Iterable[Option]) -> dict[str, Any]:
    """What the flags given change in the configuration, for `dapfl.config.override`."""
    given = {option.name: getattr(args, _destination(option)) for option in options}
    return {name: value for name, value in given.items() if value is not None}


def choices_of(name: str) -> tuple[str, ...]:
    """The choices of a configuration value.

    >>> choices_of("crypto.codec")
    ('exact', 'compact')
    """
    return get_args(_type_and_default(name)[0])


def _destination(option: Option) -> str:
    return option.flag.replace("-", "_")


def _type_and_default(name: str) -> tuple[Any, Any]:
    """The type of a configuration value without None, and its default."""
    kind: Any = RunConfig
    value: Any = RunConfig()
    for part in name.split("."):
        kind, value = get_type_hints(type(value))[part], getattr(value, part)
    without_none = [each for each in get_args(kind) if each is not NoneType]
    return (without_none[0] if NoneType in get_args(kind) else kind), value


def _arguments(kind: Any, metavar: str | None) -> dict[str, Any]:
    """How argparse reads a value of this type."""
    if kind is bool:
        return {"action": "store_const", "const": True}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    read: Callable[[str], Any] = _names if get_origin(kind) is tuple else kind
    return {"type": read, "metavar": metavar}


def _names(text: str) -> list[str]:
    """Names separated by commas."""
    return [part.strip() for part in text.split(",")]
