"""Reads run directories: the one reader that the report, its page and the live page share.

A run directory holds `manifest.json` (what was run, where) and `rounds.jsonl` (one line a round).
Both may be read while the run is still writing them: a last line without its end is not there yet.

    run = read_run(Path("runs/first"))
    run.rounds[-1].accuracy
"""

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dapfl.errors import RunDirectoryError
from dapfl.experiments.store import is_abandoned
from dapfl.federation.records import RoundRecord

MANIFEST = "manifest.json"
ROUNDS = "rounds.jsonl"
_FORMAT = 1
_EXPECTED = f"a run directory holds {MANIFEST} and {ROUNDS}, as 'dapfl run --out DIR' writes them"


class TaskFacts(Struct, frozen=True):
    """The task of a run and how many weights its model has."""

    name: str = ""
    parameters: int | None = None


class Manifest(Struct, frozen=True):
    """What manifest.json says of a run. The configuration stays as written: old runs stay readable."""

    config: dict[str, Any]
    format: int = _FORMAT
    dapfl: str = ""
    command: tuple[str, ...] = ()
    created: str = ""
    policy: dict[str, Any] = {}
    host: dict[str, Any] = {}
    commit: str | None = None
    task: TaskFacts = TaskFacts()
    status: Literal["running", "finished", "stopped"] = "running"

    @property
    def task_name(self) -> str:
        """The learning task, for instance `cnn-mnist`."""
        return self.task.name or str(self.config.get("task", "unknown task"))

    @property
    def setting(self) -> str:
        """The row of Table I, for instance `dap-fl`."""
        return str(self.config.get("setting", "unknown setting"))

    @property
    def seed(self) -> int:
        """The seed of every random stream of the run."""
        return int(self.config.get("seed", 0))

    @property
    def planned_rounds(self) -> int | None:
        """How many rounds the run was asked for."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else None


@dataclass(frozen=True)
class Run:
    """A run directory as read at one moment."""

    path: Path
    manifest: Manifest
    rounds: tuple[RoundRecord, ...] = field(repr=False)


_manifest_decoder = msgspec.json.Decoder(Manifest)
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
        except msgspec.DecodeError as error:
            raise RunDirectoryError(
                f"Line {self._lines} of {self.path} is not a round of a run ({error}). "
                "The file is damaged: restore it, or resume the run from its checkpoint."
            ) from None


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size


def in_order(rounds: Iterable[RoundRecord]) -> list[RoundRecord]:
    """The rounds in order, once each: a round written again (by a resumed run) replaces the old future.

    >>> [row.round for row in in_order(RoundRecord(round=t) for t in (0, 1, 2, 1))]
    [0, 1]
    """
    ordered: list[RoundRecord] = []
    for row in rounds:
        while ordered and ordered[-1].round >= row.round:
            ordered.pop()
        ordered.append(row)
    return ordered


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a run directory; RunDirectoryError when it is not one.

    A run that was killed left "running" there: its status is "stopped" all the same.
    """
    path = directory / MANIFEST
    abandoned = is_abandoned(directory)  # asked first: a run that ends now says so before it lets go
    try:
        manifest = _manifest_decoder.decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise RunDirectoryError(f"{directory} is not a run directory: {_EXPECTED}.") from None
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise RunDirectoryError(f"{path} is not the manifest of a run ({error}): {_EXPECTED}.") from None
    if manifest.format > _FORMAT:
        raise RunDirectoryError(
            f"{path} has format {manifest.format}, newer than this dapfl reads ({_FORMAT}): upgrade dapfl."
        )
    if abandoned and manifest.status == "running":
        return msgspec.structs.replace(manifest, status="stopped")
    return manifest


def resume_command(directory: Path) -> str:
    """What continues a run that was stopped.

    >>> resume_command(Path("my runs/first"))
    "dapfl run --resume 'my runs/first'"
    """
    return f"dapfl run --resume {shlex.quote(str(directory))}"


def read_run(directory: Path) -> Run:
    """One run directory, whether its run is over or not."""
    manifest = read_manifest(directory)
    rounds = in_order(RoundsReader(directory / ROUNDS).read_new())
    return Run(directory, manifest, tuple(rounds))


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
            raise RunDirectoryError(f"{path} does not exist: {_EXPECTED}.")
        if not directories:
            raise RunDirectoryError(f"There is no run in {path}: {_EXPECTED}.")
        found = {directory.resolve(): read_run(directory) for directory in directories}
        with_rounds = {key: run for key, run in found.items() if run.rounds}
        if not with_rounds:
            raise RunDirectoryError(f"No round of the run in {path} is complete yet: try again later.")
        runs.update(with_rounds)
    return list(runs.values())
