"""What every attacker can do: see, remember, and put bytes before the server and the clients."""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field

from msgspec import Struct

from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.paillier import PrivateKey, generate_keypair
from dapfl.crypto.signature import sign
from dapfl.errors import ProtocolError
from dapfl.federation.messages import (
    VERSION,
    Call,
    Context,
    Delivery,
    Refusal,
    Signed,
    decode_delivery,
    decode_server_body,
    digest,
    encode,
)
from dapfl.federation.models import Shape
from dapfl.federation.server import CentralServer
from dapfl.federation.transport import ClientId, Transport


@dataclass
class Field:
    """Where an attacker stands: between a transport and a server."""

    transport: Transport
    server: CentralServer
    shape: Shape
    timeout: float = 60.0
    sent: dict[ClientId, bytes] = field(default_factory=dict)  # to clients, in this exchange
    replies: dict[ClientId, bytes] = field(default_factory=dict)  # from clients, in this exchange
    old_sent: list[tuple[ClientId, bytes]] = field(default_factory=list)
    old_replies: list[tuple[ClientId, bytes]] = field(default_factory=list)


class Attacker(ABC):
    """One kind of attack; `outcomes` counts the names of what became of its messages."""

    name: str
    what: str

    def __init__(self, field_: Field) -> None:
        self.field = field_
        self.outcomes: Counter[str] = Counter()
        self._key: PrivateKey | None = None

    @abstractmethod
    def attack(self) -> None:
        """Called in every exchange, when the honest replies are on their way but not yet there."""

    def summary(self) -> str:
        """A line that says what became of this attacker."""
        total = sum(self.outcomes.values())
        through = self.outcomes["ACCEPTED"]
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.outcomes.items()))
        verdict = f"{through} GOT THROUGH" if through else "all refused" if total else "nothing to attack yet"
        return f"{self.name}: {self.what}: {total} attempts, {verdict}" + (f" ({reasons})" if reasons else "")

    def signed(self, model: bytes, body: Struct) -> Signed:
        """A body signed as well as an attacker can: in the form of a signature it saw, by its own key."""
        encoded = encode(body)
        return Signed(encoded, sign(encoded, self._own_key(len(model))) if model else b"")

    def sealed(self, model: bytes, body: Struct) -> bytes:
        """A body sealed as well as an attacker can, by a key of its own."""
        delivery = encode(Delivery(VERSION, (self.signed(model, body),)))
        if not model:
            return delivery
        return envelope_named("hybrid").seal(delivery, self._own_key(len(model)).public_key, b"")

    def _own_key(self, signature_bytes: int) -> PrivateKey:
        if self._key is None:
            self._key = generate_keypair(4 * signature_bytes, allow_insecure_small_keys=True)
        return self._key

    def to_server(self, sender: ClientId, data: bytes) -> None:
        """Puts bytes before the server in a client's name."""
        rejections = self.field.server.ledger.rejections
        before = len(rejections)
        self.field.server.receive(sender, data)
        self.outcomes[rejections[before].reason if len(rejections) > before else "ACCEPTED"] += 1

    def to_client(self, client: ClientId, data: bytes) -> None:
        """Puts bytes before a client, and reads in its sealed reply, as only CS can, what became of them."""
        replies, failures = self.field.transport.exchange({client: data}, self.field.timeout)
        if client in failures:
            self.outcomes[failures[client]] += 1
            return
        if (client, replies[client]) in [*self.field.replies.items(), *self.field.old_replies]:
            self.outcomes["same-reply-again"] += 1
            return
        try:
            bodies = self.field.server.open(client, replies[client])
        except ProtocolError as error:
            self.outcomes[error.reason] += 1
            return
        refused = next((body.reason for body in bodies if isinstance(body, Refusal)), "ACCEPTED")
        self.outcomes[refused] += 1


@dataclass(frozen=True)
class SeenCall:
    """A call as an attacker sees it: signed, but in the clear."""

    body: Call
    digest: bytes
    signature: bytes


def call_in(message: bytes) -> SeenCall | None:
    """The call in a message to a client, if there is one."""
    try:
        parts = decode_delivery(message, len(message)).parts
        bodies = [(decode_server_body(part.body), part) for part in parts]
    except ProtocolError:
        return None
    for body, part in bodies:
        if isinstance(body, Call):
            return SeenCall(body, digest(part.body), part.signature)
    return None


def scope_of(context: Context) -> tuple[bytes, int]:
    """Federation and round: what a forged message copies from a real one."""
    return context.federation, context.round
