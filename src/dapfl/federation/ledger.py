"""What the server must not forget: within a round, and across its own crashes.

`RoundLedger` sees to it that each (sender, round, kind) is taken once and only when asked for.
`Ledger` keeps the server's state on disk, step by step, for a server whose clients outlive it: an
aggregate is on the disk before anyone is sent it, so no round ever has two.
"""

from dataclasses import dataclass, field
from pathlib import Path

from dapfl.errors import ProtocolError
from dapfl.federation.records import ClientReport, Rejection
from dapfl.federation.transport import ClientId
from dapfl.files import replacing


@dataclass(frozen=True)
class Asked:
    """An order that a client was sent, and the model that it is about."""

    kind: str
    model: bytes


@dataclass
class RoundLedger:
    """The open round: who was asked for what, who has answered, what was turned away."""

    round: int
    closed: bool = False
    status: dict[ClientId, str] = field(default_factory=dict)
    reports: dict[ClientId, ClientReport] = field(default_factory=dict)
    rejections: list[Rejection] = field(default_factory=list)
    _orders: dict[tuple[ClientId, bytes], Asked] = field(default_factory=dict)
    _deliveries: dict[tuple[ClientId, bytes], str] = field(default_factory=dict)
    _taken: set[tuple[ClientId, bytes]] = field(default_factory=set)

    def ask(self, client: ClientId, order: bytes, asked: Asked) -> None:
        """Notes that this client has been sent the order with this hash."""
        self._orders[client, order] = asked

    def asked(self, model: bytes, *kinds: str) -> set[ClientId]:
        """Who has been sent orders of these kinds about a model."""
        orders = self._orders.items()
        return {client for (client, _), asked in orders if asked.model == model and asked.kind in kinds}

    def send(self, client: ClientId, delivery: bytes, kind: str) -> None:
        """Notes that this client has been sent the delivery with this hash."""
        self._deliveries[client, delivery] = kind

    def expect(self, client: ClientId, order: bytes, *kinds: str) -> Asked:
        """What an answer is about; ProtocolError if it was not asked for, or has been taken already."""
        asked = self._orders.get((client, order))
        if asked is None or asked.kind not in kinds:
            raise ProtocolError("not-asked", f"client {client} was not asked for this")
        if (client, order) in self._taken:
            raise ProtocolError("duplicate", f"client {client} has answered this already")
        return asked

    def take(self, client: ClientId, order: bytes) -> None:
        """Takes the answer to an order; there will be no other."""
        self._taken.add((client, order))

    def take_refusal(self, client: ClientId, delivery: bytes) -> str:
        """Takes the refusal of a delivery, once; says what kind of delivery it was."""
        kind = self._deliveries.pop((client, delivery), None)
        if kind is None:
            raise ProtocolError("not-asked", f"client {client} refuses what it was not sent")
        return kind

    def reject(self, client: ClientId, reason: str) -> None:
        """Notes a message that was turned away; the client it names may still send a good one."""
        self.rejections.append(Rejection(client, reason))

    def close(self, asked: "set[ClientId]") -> None:
        """The round is over: every client that was asked and has no status gets one that says why."""
        self.closed = True
        for rejection in self.rejections:
            if rejection.at == "server" and rejection.client in asked:
                self.status.setdefault(rejection.client, f"rejected:{rejection.reason}")
        for client in asked:
            self.status.setdefault(client, "failed:no-reply")


class Ledger:
    """The server's state on disk; every write replaces the one before, whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, state: bytes) -> None:
        """Keeps this state; when it returns, a crash cannot undo it."""
        with replacing(self.path, mode=0o600) as file:
            file.write(state)

    def read(self) -> bytes | None:
        """The last state that was kept, if any."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
