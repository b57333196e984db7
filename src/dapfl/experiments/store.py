"""A run directory: manifest.json, rounds.jsonl, checkpoint/, keys/.

The checkpoint is written before the line of its round, and holds that line. So a run that is killed at
any moment resumes from the last checkpoint with exactly the lines that a run never stopped would have.
"""

import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dapfl.errors import RunDirectoryError
from dapfl.files import replacing

FORMAT = 1
_LOCK = ".lock"


def is_abandoned(path: Path) -> bool:
    """Whether a run was begun in this directory that no process is working on any more.

    The system frees the lock of a process that was killed, which could not note in the manifest that it
    stopped. Where there is no lock to look at, nothing is known.
    """
    try:
        with (path / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Checkpoint(msgspec.Struct, frozen=True):
    """Everything that a run continues from."""

    rounds: int  # rounds that are complete
    federation: bytes
    clients: dict[int, bytes]
    lines: list[bytes]  # the lines of rounds.jsonl that this checkpoint completes


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def manifest_path(self) -> Path:
        """What the run is: configuration, versions, host."""
        return self.path / "manifest.json"

    @property
    def rounds_path(self) -> Path:
        """What happened, one line a round."""
        return self.path / "rounds.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        """Where the run continues after a stop."""
        return self.path / "checkpoint" / "checkpoint.msgpack"

    @property
    def keys_path(self) -> Path:
        """The key bundles of the run's participants."""
        return self.path / "keys"

    @classmethod
    def create(cls, path: Path, manifest: dict[str, Any]) -> "RunDirectory":
        """A new run directory; one that holds something already is left alone."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            taken = any(path.iterdir())
        except OSError as error:
            raise RunDirectoryError(f"{path} cannot be made a run directory: {error.strerror}.") from None
        if taken:
            raise RunDirectoryError(
                f"{path} is not empty. Choose another --out, or continue the run in it with --resume {path}."
            )
        directory = cls(path)
        directory.checkpoint_path.parent.mkdir()
        directory.write_manifest(manifest)
        directory.rounds_path.touch()
        return directory

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """The run directory of an earlier start."""
        directory = cls(path)
        if not directory.manifest_path.is_file():
            raise RunDirectoryError(f"{path} is not a run directory: it has no manifest.json.")
        return directory

    def read_manifest(self) -> dict[str, Any]:
        """The manifest as it was written."""
        try:
            manifest = json.loads(self.manifest_path.read_text("utf-8"))
            if manifest["format"] != FORMAT:
                raise RunDirectoryError(
                    f"{self.manifest_path} has format {manifest['format']}; this version reads {FORMAT}."
                )
        except (OSError, ValueError, KeyError, TypeError):
            raise RunDirectoryError(f"{self.manifest_path} cannot be read as a run's manifest.") from None
        return dict(manifest)

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replaces the manifest."""
        with replacing(self.manifest_path) as file:
            file.write(json.dumps({"format": FORMAT, **manifest}, indent=2).encode() + b"\n")

    def set_status(self, status: str) -> None:
        """Notes in the manifest whether the run is running, finished or stopped."""
        self.write_manifest({**self.read_manifest(), "status": status})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second process from working on the same run; the system frees it if we are killed."""
        with (self.path / _LOCK).open("w") as file:
            for _ in range(5):  # whoever asks `is_abandoned` holds it too, for an instant
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    time.sleep(0.02)
            else:
                raise RunDirectoryError(f"Another process is working on the run in {self.path}.")
            yield

    def save(self, checkpoint: Checkpoint) -> None:
        """Writes the checkpoint, then the lines that it completes."""
        with replacing(self.checkpoint_path, mode=0o600) as file:
            file.write(msgspec.msgpack.encode(checkpoint))
        with self.rounds_path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in checkpoint.lines))

    def load(self) -> Checkpoint | None:
        """The last checkpoint, or None before the first round; rounds.jsonl is set to match it."""
        try:
            checkpoint = msgspec.msgpack.decode(self.checkpoint_path.read_bytes(), type=Checkpoint)
        except FileNotFoundError:
            checkpoint = None
        except msgspec.MsgspecError:
            raise RunDirectoryError(
                f"{self.checkpoint_path} is damaged. Remove it to start this run again from round 0."
            ) from None
        self._match(checkpoint)
        return checkpoint

    def _match(self, checkpoint: Checkpoint | None) -> None:
        """Cuts rounds.jsonl back to before the checkpoint's own lines and adds those."""
        fresh = checkpoint.lines if checkpoint else []
        first = min(
            (json.loads(line)["round"] for line in fresh), default=checkpoint.rounds if checkpoint else 0
        )
        old = self.rounds_path.read_bytes().splitlines() if self.rounds_path.exists() else []
        with replacing(self.rounds_path) as file:
            file.write(b"".join(line + b"\n" for line in [*old[:first], *fresh]))

    def remove(self) -> None:
        """Takes the whole directory away."""
        shutil.rmtree(self.path)

    def clear_keys(self) -> None:
        """Forgets the run's keys, which nothing needs once it has finished."""
        shutil.rmtree(self.keys_path, ignore_errors=True)
