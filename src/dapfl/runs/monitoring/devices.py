"""The devices of a deployment at this moment: who is connected, who trains, who is late or gone, since when.

A run notes it in `devices.json` of its directory, while it talks to them. `dapfl status`, the live page and
Prometheus read it there.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from dapfl.engines.base import Engine, WaitingEngine
from dapfl.errors import StorageError
from dapfl.federation.transport import Arrival, ClientId, Exchange
from dapfl.system.files import replacing

Doing = Literal["connected", "training", "late", "gone"]
_GONE = {"offline", "node-lost"}  # what an engine says of a client whose node is not connected
_LEAST_SECONDS = 1.0  # between two notes of one exchange


class Device(Struct, frozen=True):
    """One device: what it does, since when, and when it was last heard of. Times are in UTC."""

    client: ClientId
    doing: Doing
    since: str
    last_contact: str | None = None


class Fleet(Struct, frozen=True):
    """All devices of a run at one moment, and until when those that train must have answered."""

    at: str
    deadline: str | None = None
    devices: tuple[Device, ...] = ()


def fleet_path(run: Path) -> Path:
    """Where a run notes what its devices do."""
    return run / "devices.json"


def read_fleet(run: Path) -> Fleet | None:
    """What a run has noted last; None if it has no devices, or the note cannot be read."""
    try:
        return msgspec.json.decode(fleet_path(run).read_bytes(), type=Fleet)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


class FleetWatch:
    """A transport to devices that notes what they do. The engine does the work."""

    def __init__(self, engine: Engine, run: Path, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._path = fleet_path(run)
        self._clock = clock
        known = read_fleet(run)
        self._devices = {each.client: each for each in known.devices} if known else {}
        self._deadline: str | None = None
        self._written = 0.0

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        """As the engine does it."""
        self._deadline = self._text(self._clock() + timeout)
        for client in messages:
            self._note(client, "training")
        self._write()
        replies: dict[ClientId, bytes] = {}

        def heard(client: ClientId, data: bytes) -> None:
            self._note(client, "connected", heard=True)
            if self._clock() - self._written >= _LEAST_SECONDS:
                self._write()
            if arrived is None:
                replies[client] = data
            else:
                arrived(client, data)

        kept, failures = self._engine.exchange(messages, timeout, heard)
        for client in kept:
            self._note(client, "connected", heard=True)
        for client, reason in failures.items():
            if reason in _GONE or reason == "late":
                self._note(client, "late" if reason == "late" else "gone")
            else:
                self._note(client, "connected", heard=True)  # it has answered that it could not
        self._deadline = None
        self._write()
        return Exchange({**replies, **kept}, failures)

    def await_clients(self, clients: Sequence[ClientId], least: int, limit: float) -> None:
        """As the engine does it, if its clients come and go."""
        if isinstance(self._engine, WaitingEngine):
            self._engine.await_clients(
                clients, least, limit, seen=lambda missing: self.seen(clients, missing)
            )

    def seen(self, clients: Collection[ClientId], missing: Collection[ClientId]) -> None:
        """Some of these clients are online, and the others are missing."""
        before = dict(self._devices)
        for client in clients:
            if client in missing:
                self._note(client, "gone")
            elif (old := self._devices.get(client)) is None or old.doing in ("gone", "training"):
                # Between two exchanges nobody trains: that note is of a session that was killed.
                self._note(client, "connected", heard=True)
        self._devices = {
            client: self._devices[client] for client in clients
        }  # former clients are not watched
        if self._devices != before:
            self._write()

    def _note(self, client: ClientId, doing: Doing, *, heard: bool = False) -> None:
        now, old = self._text(self._clock()), self._devices.get(client)
        if old is not None and old.doing == "gone" and doing == "training":
            return  # it was sent a message, but nobody knows yet whether it gets it
        since = old.since if old is not None and old.doing == doing else now
        contact = now if heard else old.last_contact if old is not None else None
        self._devices[client] = Device(client, doing, since, contact)

    def _write(self) -> None:
        now = self._clock()
        devices = tuple(self._devices[client] for client in sorted(self._devices))
        try:
            with replacing(self._path, mode=0o600) as file:
                file.write(msgspec.json.encode(Fleet(self._text(now), self._deadline, devices)))
        except StorageError:
            return  # the run itself will say so; it does not depend on this note
        self._written = now

    @staticmethod
    def _text(seconds: float) -> str:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
