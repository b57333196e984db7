"""Writing files so that no reader ever sees half of one, and no damage goes unnoticed."""

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dapfl.errors import DamagedFile, StorageError

_MARK = b"dapfl checksum 1\n"  # begins a file with a checksum; files of version 0.1 have none


@contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Opens a file to be written whole: it takes its name only when all of it is on the disk.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "note") as file:
    ...         _ = file.write(b"whole")
    ...     (Path(folder) / "note").read_bytes()
    b'whole'
    """
    # mkstemp makes the file 0600, so that a private key is never readable by others, not even for a moment.
    with writing(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(mode)
            temporary.replace(path)
            _synchronise(path.parent)  # else a loss of power could bring the old version back
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _synchronise(folder: Path) -> None:
    """Has the names in a folder on the disk, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names the file that could not be written, and says what to do: a StorageError instead of an OSError."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}. {_remedy(error.errno)}") from None


def _remedy(code: int | None) -> str:
    if code in (errno.ENOSPC, errno.EDQUOT):
        return f"Free some space on that disk{', or raise the quota' if code == errno.EDQUOT else ''}."
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Make its folder writable for this user."
    return "Check the disk and the folder."


def with_checksum(content: bytes) -> bytes:
    """What goes on the disk, so that a single flipped bit is noticed."""
    return _MARK + hashlib.sha256(content).digest() + content


def without_checksum(stored: bytes, path: Path) -> bytes:
    """What `with_checksum` was given; DamagedFile if it is not that any more.

    >>> without_checksum(with_checksum(b"whole"), Path("note"))
    b'whole'
    """
    if not stored.startswith(_MARK):
        if stored[:1] < b"\x80":  # version 0.1 wrote bare maps and arrays of msgpack: this has lost its head
            raise DamagedFile(f"{path} is damaged: it does not begin as it was written")
        return stored
    digest, content = stored[len(_MARK) :][:32], stored[len(_MARK) + 32 :]
    if hashlib.sha256(content).digest() != digest:
        raise DamagedFile(f"{path} is damaged: its checksum does not match its content")
    return content


@dataclass(frozen=True)
class Loaded:
    """The newest version of a file that is whole, and what is wrong with a newer one."""

    content: bytes
    fault: str | None = None


@dataclass(frozen=True)
class TwoGenerations:
    """A private file of which the last two versions are kept, each with a checksum."""

    path: Path

    @property
    def previous(self) -> Path:
        """The version before the newest."""
        return self.path.with_name(f"{self.path.stem}.previous{self.path.suffix}")

    def save(self, content: bytes) -> None:
        """Writes a new version; a crash at any moment leaves at least one whole."""
        if self.path.exists():
            with writing(self.previous):
                self._keep()
        with replacing(self.path, mode=0o600) as file:
            file.write(with_checksum(content))

    def _keep(self) -> None:
        temporary = self.previous.with_name(f".{self.previous.name}.tmp")
        temporary.unlink(missing_ok=True)
        try:
            os.link(self.path, temporary)  # so that the newest version keeps its name until it is replaced
        except OSError:
            self.path.replace(self.previous)  # where there are no hard links
        else:
            temporary.replace(self.previous)

    @property
    def damaged(self) -> Path:
        """A newest version that was found damaged."""
        return self.path.with_name(f"{self.path.stem}.damaged{self.path.suffix}")

    def load(self) -> Loaded | None:
        """The newest version that is whole; None if there never was one, DamagedFile if none is whole.

        A newest version that is damaged is put aside, or else `save` would keep it in place of the whole one.
        """
        faults: list[str] = []
        found = False
        for place in (self.path, self.previous):
            try:
                stored = place.read_bytes()
                found = True
                content = without_checksum(stored, place)
            except FileNotFoundError:
                faults.append(f"{place} is missing")
            except DamagedFile as error:
                faults.append(str(error))
            else:
                if faults and self.path.exists():
                    with writing(self.damaged):
                        self.path.replace(self.damaged)
                return Loaded(content, "; ".join(faults) or None)
        if not found:
            return None
        raise DamagedFile("; ".join(faults))
