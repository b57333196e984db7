"""The files of a run: manifest.json, rounds.jsonl, checkpoint/, keys/, and model.npz at its end.

The checkpoint is written before the line of its round, and holds that line. So a run that is killed at any
moment resumes from its last checkpoint, with exactly the lines that it would have had without the stop.

Clients on devices of their own may have gone on since that checkpoint. What they were sent is in the state
file, which is written between two checkpoints. If it is ahead of the last one, the run goes on from there.
"""

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import msgspec

from dapfl.config import RunConfig
from dapfl.errors import DamagedFile, RunDirectoryError
from dapfl.federation.records import RoundRecord
from dapfl.federation.server_state.state_file import StateFile
from dapfl.runs.manifest import EXPECTED, Event, Manifest, RunStatus
from dapfl.system.files import TwoGenerations, replacing, writing
from dapfl.system.plugins import Plugin

MANIFEST = "manifest.json"
_LOCK = ".lock"


class Checkpoint(msgspec.Struct, frozen=True):
    """Everything that a run continues from."""

    rounds: int  # rounds that are complete
    federation: bytes
    clients: dict[int, bytes]
    lines: list[bytes]  # the lines of rounds.jsonl that this checkpoint completes
    records: bytes = b""  # the hash of the lines before these; version 0.1 has none
    config: bytes = b""  # the hash of the configuration


@dataclass(frozen=True)
class Restored:
    """What a run goes on from, and what was found damaged and repaired on the way."""

    checkpoint: Checkpoint | None
    notes: tuple[str, ...] = ()


_START_ANEW = "start the run again with another --out"


def records_hash(before: bytes, lines: Iterable[bytes]) -> bytes:
    """The hash of all lines of rounds.jsonl so far, given that of the lines `before`."""
    for line in lines:
        before = hashlib.sha256(before + line).digest()
    return before


def _joined(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _complete_lines(path: Path) -> list[bytes]:
    """The lines of a file, without a last one that was cut off."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1].splitlines()


def _fault(path: Path, lines: list[bytes], first: int, checkpoint: Checkpoint) -> str | None:
    """What is wrong with the `first` lines of rounds.jsonl, on which the checkpoint builds."""
    if len(lines) < first:
        return f"{path} has {len(lines)} of the {first} lines before the checkpoint"
    for number, line in enumerate(lines[:first]):
        try:
            right = json.loads(line)["round"] == number
        except (ValueError, KeyError, TypeError):
            right = False
        if not right:
            return f"Line {number + 1} of {path} is not the record of round {number}"
    if checkpoint.records and records_hash(b"", lines[:first]) != checkpoint.records:
        return f"{path} is not what the run wrote: a record was changed"
    return None


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def manifest_path(self) -> Path:
        """What the run is: configuration, versions, host."""
        return self.path / MANIFEST

    @property
    def rounds_path(self) -> Path:
        """What happened, one line for each round."""
        return self.path / "rounds.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        """Where the run continues after a stop."""
        return self.path / "checkpoint" / "checkpoint.msgpack"

    @property
    def state_file(self) -> StateFile:
        """The state of CS, where clients keep theirs themselves."""
        return StateFile(self.checkpoint_path.with_name("federation.state"))

    @property
    def _copy_path(self) -> Path:
        """A second copy of rounds.jsonl, in case the first is damaged."""
        return self.path / "checkpoint" / "rounds.jsonl"

    @property
    def model_path(self) -> Path:
        """The trained model, by the names of its tensors."""
        return self.path / "model.npz"

    @property
    def keys_path(self) -> Path:
        """The key bundles of the run's participants."""
        return self.path / "keys"

    @classmethod
    def create(cls, path: Path, manifest: Manifest) -> "RunDirectory":
        """A new run directory; one that holds something already is left alone."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            taken = any(path.iterdir())
            if not taken:
                path.chmod(
                    0o700
                )  # what clients report, and the state of the server, are nobody else's business
        except OSError as error:
            raise RunDirectoryError(f"{path} cannot be made a run directory: {error.strerror}.") from None
        if taken:
            raise RunDirectoryError(
                f"{path} is not empty. Choose another --out, or continue the run in it with --resume {path}."
            )
        directory = cls(path)
        directory.checkpoint_path.parent.mkdir(mode=0o700)
        directory.write_manifest(manifest)
        for path in (directory.rounds_path, directory._copy_path):
            path.touch(mode=0o600)
        return directory

    @property
    def begun(self) -> bool:
        """Whether a run was ever started here."""
        return self.manifest_path.exists()

    @property
    def abandoned(self) -> bool:
        """Whether a run was started here that no process is working on any more.

        The system frees the lock of a process that was killed, which could not note in the manifest that it
        stopped. Where there is no lock file, nothing is known, and the answer is no.
        """
        try:
            with (self.path / _LOCK).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def read_manifest(self) -> Manifest:
        """The manifest; RunDirectoryError when there is none that can be read.

        A run that was killed left the status "running" behind: it is given as "stopped" here.
        """
        abandoned = self.abandoned  # asked first: a run notes its end before it frees the lock
        try:
            manifest = Manifest.from_json(self.manifest_path.read_bytes(), self.manifest_path)
        except (FileNotFoundError, NotADirectoryError):
            raise RunDirectoryError(f"{self.path} is not a run directory: {EXPECTED}.") from None
        except OSError as error:
            raise RunDirectoryError(f"{self.manifest_path} cannot be read: {error.strerror}.") from None
        if abandoned and manifest.status == "running":
            return msgspec.structs.replace(manifest, status="stopped")
        return manifest

    def write_manifest(self, manifest: Manifest) -> None:
        """Replaces the manifest."""
        with replacing(self.manifest_path, mode=0o600) as file:
            file.write(manifest.to_json())

    def note(self, *events: str) -> None:
        """Adds to the history in the manifest."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = self.read_manifest()
        history = (*manifest.history, *(Event(now, what) for what in events))
        self.write_manifest(msgspec.structs.replace(manifest, history=history))

    def set_status(self, status: RunStatus) -> None:
        """Notes in the manifest whether the run is running, or how it ended."""
        self.write_manifest(msgspec.structs.replace(self.read_manifest(), status=status))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from working on the same run; the system frees it if we are killed."""
        (self.path / _LOCK).touch(mode=0o600)
        with (self.path / _LOCK).open("w") as file:
            for _ in range(5):  # reading `abandoned` holds the lock too, for an instant
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    time.sleep(0.02)
            else:
                raise RunDirectoryError(
                    f"Another process is working on the run in {self.path}. Let it finish, or stop it first."
                )
            yield

    def save(self, checkpoint: Checkpoint) -> None:
        """Writes the checkpoint, then the lines that it completes."""
        TwoGenerations(self.checkpoint_path).save(msgspec.msgpack.encode(checkpoint))
        for path in (self._copy_path, self.rounds_path):
            with writing(path), path.open("ab") as file:
                file.write(_joined(checkpoint.lines))

    def record_lines(self) -> list[bytes]:
        """The lines of rounds.jsonl as they are."""
        return _complete_lines(self.rounds_path)

    def load(self) -> Restored:
        """The last checkpoint that is whole; rounds.jsonl is set to match it."""
        try:
            loaded = TwoGenerations(self.checkpoint_path).load()
            checkpoint = msgspec.msgpack.decode(loaded.content, type=Checkpoint) if loaded else None
            for line in checkpoint.lines if checkpoint else ():
                RoundRecord.from_json(line)
        except DamagedFile as error:
            raise RunDirectoryError(
                f"{error}. Restore one of them from a backup, or {_START_ANEW}."
            ) from None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise RunDirectoryError(
                f"{self.checkpoint_path} is damaged. Restore it from a backup, or {_START_ANEW}."
            ) from None
        notes: list[str] = []
        ahead = self._ahead_of(checkpoint) if checkpoint else None
        if loaded and loaded.fault and checkpoint:
            place = "the state of the server" if ahead else "the checkpoint before it"
            rounds = (ahead or checkpoint).rounds
            notes.append(f"{loaded.fault}: going on from {place}, after {rounds} rounds")
        return Restored(ahead or checkpoint, (*notes, *self._match(ahead or checkpoint)))

    def _ahead_of(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """The state of CS as a checkpoint, if it is ahead of this one and the records before it are there."""
        from dapfl.federation.round import progress_in  # loads numpy; who only looks at a run needs none

        try:
            state = self.state_file.read()
        except DamagedFile:
            return None
        if state is None or (now := progress_in(state)) <= progress_in(checkpoint.federation):
            return None
        hashed = checkpoint.records or checkpoint.rounds == len(checkpoint.lines)
        known = msgspec.structs.replace(
            checkpoint,
            records=records_hash(checkpoint.records, checkpoint.lines) if hashed else b"",
        )
        for path in (self.rounds_path, self._copy_path):
            lines = _complete_lines(path)
            # A newer checkpoint may be lost, and with it the hash of its records: those are only counted.
            uncounted = _fault(path, lines, now.records, msgspec.structs.replace(known, records=b""))
            if uncounted is None and _fault(path, lines, checkpoint.rounds, known) is None:
                found = records_hash(b"", lines[: now.records])
                return Checkpoint(now.records, state, {}, [], found, checkpoint.config)
        return None

    def _match(self, checkpoint: Checkpoint | None) -> list[str]:
        """Cuts rounds.jsonl back to before the checkpoint's own lines and adds those; from its copy, if it
        is no longer what was written. Returns what had to be repaired."""
        found = {path: _complete_lines(path) for path in (self.rounds_path, self._copy_path)}
        if checkpoint is None:
            if any(found.values()):
                raise RunDirectoryError(
                    f"{self.checkpoint_path} is missing, although {max(map(len, found.values()))} rounds are "
                    f"recorded. Restore it from a backup, or {_START_ANEW}."
                )
            earlier, notes = [], []
        else:
            first = checkpoint.rounds - len(checkpoint.lines)
            faults = {path: _fault(path, lines, first, checkpoint) for path, lines in found.items()}
            good = next((path for path, fault in faults.items() if fault is None), None)
            if good is None:
                raise RunDirectoryError(
                    f"{faults[self.rounds_path]}, and its copy in {self._copy_path} does not help. The "
                    f"checkpoint does not fit these records: restore them from a backup, or {_START_ANEW}."
                )
            earlier = found[good][:first]
            notes = (
                [f"{faults[self.rounds_path]}: restored from its copy"] if good != self.rounds_path else []
            )
        whole = _joined([*earlier, *(checkpoint.lines if checkpoint else [])])
        for path in found:
            with replacing(path, mode=0o600) as file:
                file.write(whole)
        return notes

    def remove(self) -> None:
        """Deletes the whole directory."""
        shutil.rmtree(self.path)


def fresh_directory(config: RunConfig) -> Path:
    """A directory in runs/ for a run that was given none: a name that is not taken."""
    names = (
        plugin.file.stem if (plugin := Plugin.parse(name)) else name for name in (config.task, config.setting)
    )
    stem = "-".join(names)
    return next(path for n in count(1) if not (path := Path("runs") / f"{stem}-{n}").exists())
