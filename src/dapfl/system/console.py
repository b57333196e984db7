"""What the terminal shows: bars on a terminal, lines in a pipe; results on stdout, the rest on stderr."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

out = Console(highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, highlight=False, emoji=False, soft_wrap=not sys.stderr.isatty())

COMMAND = "DAPFL_COMMAND"
"""The environment variable with what a user types for `dapfl`; the scripts of a deployment set it."""


def command() -> str:
    """How the user calls `dapfl`, for commands that we print."""
    return os.environ.get(COMMAND, "dapfl")


def printable(text: str) -> str:
    """The text with its control characters spelled out: what a file holds must not command the terminal.

    >>> print(printable("no field \\x1b[2J"))
    no field \\x1b[2J
    """
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)


class Tracker(Protocol):
    """Reports the progress of a long job."""

    def __call__(self, advance: float = 1, note: str = "") -> None:
        """Moves the job on by `advance` steps; `note` is shown beside it."""


@contextmanager
def progress(title: str, total: float | None) -> Iterator[Tracker]:
    """A progress bar on a terminal, one plain line per tenth of the job in a pipe."""
    if err.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=err, transient=True) as bar:
            job = bar.add_task(title, total=total, note="")

            def show(advance: float = 1, note: str = "") -> None:
                bar.update(job, advance=advance, note=note)

            yield show
        return

    done, shown = 0.0, -1

    def say(advance: float = 1, note: str = "") -> None:
        nonlocal done, shown
        done += advance
        tenth = int(10 * done / total) if total else shown + 1
        if tenth > shown:
            shown = tenth
            amount = f"{done:.0f}/{total:.0f}" if total else f"{done:.0f}"
            # Not by `err`, which in a notebook would make a display of its own of each line.
            print(f"{title}: {amount}{' ' + note if note else ''}", file=sys.stderr, flush=True)

    yield say
