"""A client of the protocol with a memory that outlives processes: in a folder, or in Flower's own.

The state is on the disk before the answer leaves. So a client that is killed at any moment goes on as if
it had not been, and is asked again at most once for what it has answered already (which it notices itself).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dapfl.errors import ProtocolError, RunDirectoryError
from dapfl.files import replacing


class Client(Protocol):
    """What is needed of the protocol's client."""

    def handle(self, message: bytes) -> bytes:
        """Answers a message. Never raises."""

    def record_transfer(self, seconds: float) -> None:
        """Learns how long a message was on its way."""

    def state(self) -> bytes:
        """Everything that must survive the process."""

    def restore(self, state: bytes) -> None:
        """Continues from a saved state."""


class Memory(Protocol):
    """Where a client's state is kept."""

    def load(self) -> bytes | None:
        """The last state, or None."""

    def save(self, state: bytes) -> None:
        """Replaces the state."""


class FolderMemory:
    """In a file; survives every restart."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "client.state"

    def load(self) -> bytes | None:
        """The last state, or None."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def save(self, state: bytes) -> None:
        """Replaces the state."""
        with replacing(self._path, mode=0o600) as file:
            file.write(state)


class Participant:
    """One client of a federation, awake or not."""

    def __init__(self, build: Callable[[], Client], memory: Memory) -> None:
        self._build = build
        self._memory = memory
        self._client: Client | None = None

    def answer(self, message: bytes, seconds: float | None = None) -> bytes:
        """Answers a message that was `seconds` on its way."""
        # Should anything go wrong half-way, the client is built anew from what was saved.
        client, self._client = self._client or self._wake(), None
        if seconds is not None:
            client.record_transfer(seconds)
        reply = client.handle(message)
        self._memory.save(client.state())
        self._client = client
        return reply

    def _wake(self) -> Client:
        client = self._build()
        state = self._memory.load()
        if state is not None:
            try:
                client.restore(state)
            except ProtocolError as error:
                raise RunDirectoryError(
                    f"The saved state of this client cannot be used ({error}). Remove client.state from its "
                    "state folder: it then begins with a new agent."
                ) from None
        return client
