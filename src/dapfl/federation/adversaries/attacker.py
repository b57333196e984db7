"""What every attacker can do: see and remember messages, and send bytes to CS and to clients."""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec import Struct

from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.paillier import PrivateKey
from dapfl.crypto.signature import sign
from dapfl.errors import ProtocolError
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.messages import (
    VERSION,
    Call,
    Context,
    Delivery,
    Proposal,
    Refusal,
    Signed,
    decode_delivery,
    decode_server_body,
    digest,
    encode,
)
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.transport import ClientId, Transport

Kind = TypeVar("Kind", Call, Proposal)


@dataclass
class Network:
    """The network as an attacker sees it, between the clients and CS."""

    transport: Transport
    server: CentralServer
    parameters: PublicParameters
    members: tuple[ClientId, ...] = ()  # of the committee, if there is one; those that are honest
    threshold: int = 0  # how many of them decrypt together
    timeout: float = 60.0
    sent: dict[ClientId, bytes] = field(default_factory=dict)  # to clients, in this exchange
    replies: dict[ClientId, bytes] = field(default_factory=dict)  # from clients, in this exchange
    old_sent: list[tuple[ClientId, bytes]] = field(default_factory=list)
    old_replies: list[tuple[ClientId, bytes]] = field(default_factory=list)
    refused_by: "dict[ClientId, list[Attacker]]" = field(default_factory=dict)  # since a client's last report


class Attacker(ABC):
    """One kind of attack; `outcomes` counts what became of its messages, by reason."""

    name: str
    what: str

    def __init__(self, network: Network) -> None:
        self.network = network
        self.outcomes: Counter[str] = Counter()
        self.unrecorded = 0  # refusals that no client's report has mentioned, or will
        self._key: PrivateKey | None = None

    @abstractmethod
    def attack(self) -> None:
        """Called in every exchange, when the honest replies are on their way but have not arrived."""

    def summary(self) -> str:
        """A line that says what became of this attacker."""
        total = sum(self.outcomes.values())
        through = self.outcomes["ACCEPTED"]
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.outcomes.items()))
        verdict = f"{through} GOT THROUGH" if through else "all refused" if total else "nothing to attack yet"
        line = f"{self.name}: {self.what}: {total} attempts, {verdict}" + (f" ({reasons})" if reasons else "")
        if self.unrecorded:
            line += f"; {self.unrecorded} of them by clients after their last report"
        return line

    def signed(self, like: bytes, body: Struct) -> Signed:
        """A body signed as well as an attacker can: by a key of its own, as long as the signature `like`."""
        encoded = encode(body)
        return Signed(encoded, sign(encoded, self._own_key(len(like))) if like else b"")

    def sealed(self, like: bytes, body: Struct) -> bytes:
        """A body signed likewise, and sealed by a key of the attacker's own."""
        delivery = encode(Delivery(VERSION, (self.signed(like, body),)))
        if not like:
            return delivery
        return envelope_named("hybrid").seal(delivery, self._own_key(len(like)).public_key, b"")

    def _own_key(self, signature_bytes: int) -> PrivateKey:
        if self._key is None:
            self._key = generate_keypair(4 * signature_bytes, allow_insecure_small_keys=True)
        return self._key

    def to_server(self, sender: ClientId, data: bytes) -> None:
        """Sends bytes to CS in a client's name."""
        rejections = self.network.server.rejections
        before = len(rejections)
        self.network.server.receive(sender, data)
        self.outcomes[rejections[before].reason if len(rejections) > before else "ACCEPTED"] += 1

    def to_client(self, client: ClientId, data: bytes) -> None:
        """Sends bytes to a client; what became of them is read from its sealed reply, as only CS could."""
        replies, failures = self.network.transport.exchange({client: data}, self.network.timeout)
        if client in failures:
            self.outcomes[failures[client]] += 1
            return
        if (client, replies[client]) in [*self.network.replies.items(), *self.network.old_replies]:
            self.outcomes["same-reply-again"] += 1
            return
        try:
            bodies = self.network.server.open(client, replies[client])
        except ProtocolError as error:
            self.outcomes[error.reason] += 1
            return
        refused = next((body.reason for body in bodies if isinstance(body, Refusal)), "ACCEPTED")
        self.outcomes[refused] += 1
        if refused != "ACCEPTED":
            self.unrecorded += 1
            self.network.refused_by.setdefault(client, []).append(self)


@dataclass(frozen=True)
class SeenOrder(Generic[Kind]):
    """An order as an attacker sees it: signed, but in the clear."""

    body: Kind
    digest: bytes
    signature: bytes


def order_in(message: bytes, kind: type[Kind]) -> SeenOrder[Kind] | None:
    """The order of this kind in a message to a client, if there is one."""
    try:
        parts = decode_delivery(message, len(message)).parts
        bodies = [(decode_server_body(part.body), part) for part in parts]
    except ProtocolError:
        return None
    for body, part in bodies:
        if isinstance(body, kind):
            return SeenOrder(body, digest(part.body), part.signature)
    return None


def call_in(message: bytes) -> SeenOrder[Call] | None:
    """The call in a message to a client, if there is one."""
    return order_in(message, Call)


def scope_of(context: Context) -> tuple[bytes, int]:
    """Federation with run and roster, and round: what a forged message copies from a real one."""
    return context.scope, context.round
