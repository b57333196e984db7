"""The state of CS on disk, for a server whose clients outlive it.

It is written before anyone is sent what it holds. So no round ever has two different aggregates, even if
CS crashes between making one and sending it.
"""

from pathlib import Path

from dapfl.system.files import replacing, with_checksum, without_checksum


class StateFile:
    """One saved state; every write replaces the one before, whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, state: bytes) -> None:
        """Saves a state; once this returns, a crash cannot undo it."""
        with replacing(self.path, mode=0o600) as file:
            file.write(with_checksum(state))

    def read(self) -> bytes | None:
        """The last state that was saved, if any; DamagedFile if it is not what was written."""
        try:
            return without_checksum(self.path.read_bytes(), self.path)
        except FileNotFoundError:
            return None
