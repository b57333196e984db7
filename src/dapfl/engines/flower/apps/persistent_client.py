"""A client of the protocol whose state outlives its process.

The state is saved before the answer leaves. So a client that is killed at any moment continues where it was.
It may be sent a message again that it has answered already; the client itself notices that.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dapfl.engines.base import HostedClient
from dapfl.errors import ProtocolError, RunDirectoryError
from dapfl.system.files import Loaded, TwoGenerations

log = logging.getLogger("dapfl.client")


class DeviceClient(HostedClient, Protocol):
    """A client on a device of its own, which measures its network."""

    def record_transfer(self, seconds: float) -> None:
        """Learns how long a message took to arrive."""

    def prepare(self) -> bool:
        """Does a little of its next work while it waits; whether there was any."""

    def doubt_memory(self) -> None:
        """Learns that the state that it was restored from is not its last one."""


class StateStore(Protocol):
    """Where a client's state is saved."""

    def load(self) -> Loaded | None:
        """The last saved state, if any; or the one before it, and what is wrong with the last."""

    def save(self, state: bytes) -> None:
        """Replaces the saved state."""


class FileStateStore:
    """A `StateStore` in a file, which survives every restart."""

    def __init__(self, folder: Path, name: str = "client.state") -> None:
        self._file = TwoGenerations(folder / name)

    def load(self) -> Loaded | None:
        """The last saved state, if any; or the one before it."""
        loaded = self._file.load()
        if loaded is not None and loaded.fault:
            log.warning("%s: going on from the state before it", loaded.fault)
        return loaded

    def save(self, state: bytes) -> None:
        """Replaces the saved state."""
        self._file.save(state)


class PersistentClient:
    """A client that is built and restored at its first message, and saved after each."""

    def __init__(self, build: Callable[[], DeviceClient], store: StateStore) -> None:
        self._build = build
        self._store = store
        self._client: DeviceClient | None = None

    def answer(self, message: bytes, transfer_seconds: float | None = None) -> bytes:
        """Answers a message that took `transfer_seconds` to arrive."""
        # If anything fails before the state is saved, the next message is answered from the last saved state.
        client, self._client = self._client or self._restore(), None
        if transfer_seconds is not None:
            client.record_transfer(transfer_seconds)
        reply = client.handle(message)
        self._store.save(client.saved_state())
        self._client = client
        return reply

    def prepare(self) -> bool:
        """Has the client do a little of its next work; whether there was any to do."""
        return self._client is not None and self._client.prepare()

    def _restore(self) -> DeviceClient:
        client = self._build()
        state = self._store.load()
        if state is not None:
            try:
                client.restore(state.content)
            except ProtocolError as error:
                raise RunDirectoryError(
                    f"The saved state of this client cannot be used ({error}). Remove client.state from its "
                    "state folder to start with a new agent."
                ) from None
            if state.fault:
                client.doubt_memory()
        return client
