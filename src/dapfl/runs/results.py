"""Reads the results of runs, for the report, its page and the live page.

A run may be read while it is still being written: a last line of rounds.jsonl without its line end does not
count yet.

    run = read_run(Path("runs/first"))
    run.rounds[-1].accuracy
"""

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from dapfl.arrays import Floats
from dapfl.errors import RunDirectoryError
from dapfl.federation.records import RoundRecord
from dapfl.runs.directory import MANIFEST, RunDirectory
from dapfl.runs.manifest import EXPECTED, Manifest
from dapfl.system.console import command

# The numbers of a `RoundRecord` that logs and spreadsheets carry over: of its global model, and of the round.
SCORES = ("loss", "accuracy", "f1", "worst_accuracy", "accuracy_spread")
AMOUNTS = (
    "participants",
    "violations",
    "rejected",
    "epochs",
    "wasted_epochs",
    "simulated_seconds",
    "bytes_up",
    "bytes_down",
)


@dataclass(frozen=True)
class Run:
    """A run directory as read at one moment."""

    path: Path
    manifest: Manifest
    rounds: tuple[RoundRecord, ...] = field(repr=False)


_round_decoder = msgspec.json.Decoder(RoundRecord)


class RoundsReader:
    """Reads rounds.jsonl as it grows, each complete line once.

    `read_new` returns what has been added since the last call. When the file was replaced or cut
    back (a resumed run), reading starts over and `restarts` goes up.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        self._offset = 0
        self._inode: int | None = None
        self._lines = 0

    def read_new(self) -> list[RoundRecord]:
        """The rounds completed since the last call; none when the file is not there yet."""
        try:
            with self.path.open("rb") as file:
                inode, size = _identity(file.fileno())
                if size < self._offset or (self._inode is not None and inode != self._inode):
                    self.restarts += 1
                    self._offset = self._lines = 0
                self._inode = inode
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be read: {error.strerror}.") from None
        end = data.rfind(b"\n") + 1  # what follows the last line end is still being written
        rounds = [self._decode(line) for line in data[:end].splitlines()]
        self._offset += end
        return [row for row in rounds if row is not None]

    def _decode(self, line: bytes) -> RoundRecord | None:
        self._lines += 1
        if not line.strip():
            return None
        try:
            return _round_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RunDirectoryError(
                f"Line {self._lines} of {self.path} is not a round of a run ({error}). "
                "The file is damaged: restore it, or resume the run from its checkpoint."
            ) from None


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size


def in_order(rounds: Iterable[RoundRecord]) -> list[RoundRecord]:
    """The rounds in order, each once.

    When a resumed run writes a round again, it replaces the old round and all that followed.

    >>> [row.round for row in in_order(RoundRecord(round=t) for t in (0, 1, 2, 1))]
    [0, 1]
    """
    ordered: list[RoundRecord] = []
    for row in rounds:
        while ordered and ordered[-1].round >= row.round:
            ordered.pop()
        ordered.append(row)
    return ordered


def resume_command(directory: Path) -> str:
    """The command that continues a run that was stopped.

    >>> resume_command(Path("my runs/first"))
    "dapfl run --resume 'my runs/first'"
    """
    return f"{command()} run --resume {shlex.quote(str(directory))}"


def read_run(directory: Path) -> Run:
    """One run directory, whether its run is over or not."""
    files = RunDirectory(directory)
    manifest = files.read_manifest()
    return Run(directory, manifest, tuple(in_order(RoundsReader(files.rounds_path).read_new())))


def read_model(path: Path) -> dict[str, Floats]:
    """The arrays of a model.npz by their names."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # a damaged zip file raises errors of many kinds
        said = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else "is damaged"
        raise RunDirectoryError(
            f"{path} {said}. Restore it from a backup, or run again with the same seed."
        ) from None


def run_directories(path: Path) -> list[Path]:
    """The run directories at or below a path, in order of name: [path] when it is one itself."""
    if (path / MANIFEST).is_file():
        return [path]
    return sorted({found.parent for found in path.rglob(MANIFEST)}) if path.is_dir() else []


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """Every run with at least one round at or below the given paths, each once.

    A path without any run, or only runs without a finished round, is a RunDirectoryError.
    """
    runs: dict[Path, Run] = {}
    for path in paths:
        directories = run_directories(path)
        if not path.exists():
            raise RunDirectoryError(f"{path} does not exist: {EXPECTED}.")
        if not directories:
            raise RunDirectoryError(f"There is no run in {path}: {EXPECTED}.")
        found = {directory.resolve(): read_run(directory) for directory in directories}
        with_rounds = {key: run for key, run in found.items() if run.rounds}
        if not with_rounds:
            raise RunDirectoryError(f"No round of the run in {path} is complete yet: try again later.")
        runs.update(with_rounds)
    return list(runs.values())
