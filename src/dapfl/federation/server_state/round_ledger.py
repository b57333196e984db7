"""The ledger of one round: who was sent what, who has answered, what was rejected.

It makes sure that CS accepts the answer to each order once, and only from the client that was sent it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from mmap import mmap

from dapfl.errors import ProtocolError
from dapfl.federation.messages import Signed, SignedInPlace
from dapfl.federation.records import ClientReport, Rejection, Status
from dapfl.federation.transport import ClientId


@dataclass(frozen=True)
class SentOrder:
    """An order that a client was sent, by its kind (see `messages.order_kind`), and the model it is about."""

    kind: str
    model: bytes


@dataclass
class RoundLedger:
    """Round t at CS, open until `close`."""

    round: int
    called: tuple[ClientId, ...] = ()
    closed: bool = False
    status: dict[ClientId, Status] = field(default_factory=dict)
    reports: dict[ClientId, ClientReport] = field(default_factory=dict)
    rejections: list[Rejection] = field(default_factory=list)
    cohort: tuple[ClientId, ...] = ()  # C(t), once the aggregate is made
    evidence: dict[ClientId, Signed] = field(default_factory=dict)  # uploads as they were signed
    _orders: dict[tuple[ClientId, bytes], SentOrder] = field(default_factory=dict)
    _deliveries: dict[tuple[ClientId, bytes], str] = field(default_factory=dict)
    _answered: set[tuple[ClientId, bytes]] = field(default_factory=set)

    @property
    def model_round(self) -> int:
        """t while the round is open: the current model is W(t). After that it is W(t+1)."""
        return self.round + self.closed

    # What was sent -----------------------------------------------------------------------------

    def note_order(self, client: ClientId, order: bytes, sent: SentOrder) -> None:
        """This client has been sent the order with this hash."""
        self._orders[client, order] = sent

    def note_delivery(self, client: ClientId, delivery: bytes, kind: str) -> None:
        """This client has been sent the delivery with this hash."""
        self._deliveries[client, delivery] = kind

    def asked(self, model: bytes, *kinds: str) -> set[ClientId]:
        """Who has been sent orders of these kinds about a model."""
        orders = self._orders.items()
        return {client for (client, _), sent in orders if sent.model == model and sent.kind in kinds}

    # What came back ----------------------------------------------------------------------------

    def expect(self, client: ClientId, order: bytes, *kinds: str) -> SentOrder:
        """The order that an answer names; ProtocolError if it was never sent, or is answered already."""
        sent = self._orders.get((client, order))
        if sent is None or sent.kind not in kinds:
            raise ProtocolError("not-asked", f"client {client} was not asked for this")
        if (client, order) in self._answered:
            raise ProtocolError("duplicate", f"client {client} has answered this already")
        return sent

    def answer(self, client: ClientId, order: bytes) -> None:
        """The answer to an order is taken; there will be no other."""
        self._answered.add((client, order))

    def expect_report(self, client: ClientId, order: bytes) -> None:
        """ProtocolError unless the client has just answered this call and not reported on it yet."""
        if (client, order) not in self._answered or client in self.reports:
            raise ProtocolError("not-asked", f"client {client} was not asked for a report")

    def take_refusal(self, client: ClientId, delivery: bytes) -> str:
        """Takes the refusal of a delivery, once, and says what kind of delivery it was."""
        kind = self._deliveries.pop((client, delivery), None)
        if kind is None:
            raise ProtocolError("not-asked", f"client {client} refuses what it was not sent")
        return kind

    def reject(self, client: ClientId, reason: str) -> None:
        """Notes that a message was rejected; the client that it names may still send a good one."""
        self.rejections.append(Rejection(client, reason))

    def note_mismatch(self, client: ClientId) -> None:
        """Notes, once per round, that a client has named another model than the others."""
        mismatch = Rejection(client, "model-mismatch")
        if mismatch not in self.rejections:
            self.rejections.append(mismatch)

    def keep(self, client: ClientId, upload: Signed) -> None:
        """Keeps an upload as it was signed, in memory that goes back to the system with it.

        Uploads are large, and all of them are kept for a while. A heap would stay as large as it once was.
        """
        memory = mmap(-1, len(upload.body))
        memory[:] = upload.body
        self.evidence[client] = SignedInPlace(memoryview(memory).toreadonly(), upload.signature)

    # What became of the clients ----------------------------------------------------------------

    def mark(self, clients: Iterable[ClientId], status: Status) -> None:
        """Sets the status of these clients."""
        self.status.update(dict.fromkeys(clients, status))

    def fail(self, client: ClientId, reason: str) -> None:
        """Nothing usable will come from this client, for this reason, unless it has come already."""
        self.status.setdefault(client, Status.FAILED.because(reason))

    def close(self) -> None:
        """The round is over: every client that was called and has no status gets one that says why."""
        self.closed = True
        for rejection in self.rejections:
            if rejection.at == "server" and rejection.client in self.called:
                self.status.setdefault(rejection.client, Status.REJECTED.because(rejection.reason))
        for client in self.called:
            self.status.setdefault(client, Status.FAILED.because("no-reply"))
