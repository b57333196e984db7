"""Live attackers on the wire of a normal run (`dapfl run --adversary NAME[,NAME]`).

An attacker sees every byte, may put any bytes before the server in anyone's name and before any
client, at any time, and keeps what it saw. It does not keep the honest messages from arriving:
against that there is no cryptography, only the round's deadline. Outsiders have no key of the
federation; insiders are an enrolled client, with the keys of one, gone bad.

What became of each attack is counted, so that the run can say so at its end.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from msgspec import Struct

from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.paillier import PrivateKey, generate_keypair
from dapfl.crypto.signature import sign
from dapfl.errors import ConfigError, EncodingError, ProtocolError
from dapfl.federation.messages import (
    VERSION,
    Aggregate,
    Call,
    Context,
    Delivery,
    Notice,
    Refusal,
    Request,
    Sealed,
    Signed,
    Upload,
    decode_client_body,
    decode_delivery,
    decode_sealed,
    decode_server_body,
    digest,
    encode,
    sealing_context,
)
from dapfl.federation.models import Shape
from dapfl.federation.server import CentralServer
from dapfl.federation.suite import ClientSuite
from dapfl.federation.transport import SERVER, ClientId, Exchange, Transport
from dapfl.randomness import stream

_KEPT = 64  # messages that an attacker remembers from earlier exchanges
_LARGEST = 2**28  # an attacker on this machine does not fill its memory to make a point


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


class Eavesdropper(Attacker):
    """Reads whatever can be read without a key."""

    name = "eavesdropper"
    what = "listens to every byte"

    def __init__(self, field_: Field) -> None:
        super().__init__(field_)
        self.bytes = 0
        self.messages = 0
        self.read = 0

    def attack(self) -> None:
        """Tries to read each client's message as if it were not sealed."""
        for message in (*self.field.sent.values(), *self.field.replies.values()):
            self.bytes += len(message)
            self.messages += 1
        for message in self.field.replies.values():
            try:
                sealed = decode_sealed(message, len(message))
                parts = decode_delivery(sealed.box, len(sealed.box)).parts
                self.read += sum(isinstance(decode_client_body(part.body), Upload) for part in parts)
            except ProtocolError:
                continue

    def summary(self) -> str:
        """What it heard and how much of it it could read."""
        verdict = f"READ {self.read} CONTRIBUTIONS" if self.read else "read no contribution"
        return f"{self.name}: {self.what}: {self.messages} messages, {self.bytes:,} bytes, {verdict}"


class Masquerade(Attacker):
    """Pretends to be a client: with a key of its own, and with another client's sealed message."""

    name = "masquerade"
    what = "uploads in the name of clients"

    def attack(self) -> None:
        """One forged upload, and one stolen envelope under another name."""
        victims = [client for client in self.field.replies if _call(self.field.sent[client])][:2]
        for victim in victims:
            call = _call(self.field.sent[victim])
            assert call is not None
            context = Context(VERSION, *_scope(call.body.context), victim, SERVER, call.body.context.model)
            rows = self.field.shape.codec.plaintext_count(self.field.shape.size)
            numbers = bytes(rows * self.field.server.row_bytes)
            count = self.field.shape.codec.encode_count(1).tobytes()
            forged = Upload(context, call.digest, digest(b"W"), numbers, count, None)
            self.to_server(victim, encode(Sealed(VERSION, victim, self.sealed(call.signature, forged))))
        if len(victims) == 2:
            stolen = self.field.replies[victims[1]]
            self.to_server(victims[0], stolen)
            box = decode_sealed(stolen, len(stolen)).box
            self.to_server(victims[0], encode(Sealed(VERSION, victims[0], box)))


class Tamper(Attacker):
    """Alters one bit of a copy of each message."""

    name = "tamper"
    what = "flips one bit of messages"

    def attack(self) -> None:
        """One bit of every message from a client, and of one message to a client."""
        t = self.field.server.ledger.round
        for client, message in self.field.replies.items():
            self.to_server(client, _flipped(message, stream(t, "tamper", client)))
        for client, message in list(self.field.sent.items())[:1]:
            self.to_client(client, _flipped(message, stream(t, "tamper", "down", client)))


class Replay(Attacker):
    """Sends again what was good before."""

    name = "replay"
    what = "repeats messages of earlier exchanges"

    def attack(self) -> None:
        """Old messages to the server, and an old call to a client."""
        for client, message in self.field.old_replies[-8:]:
            self.to_server(client, message)
        for client, message in self.field.old_sent[:1]:
            self.to_client(client, message)


class Reorder(Attacker):
    """Lets messages arrive early, twice and in the wrong order."""

    name = "reorder"
    what = "delivers messages twice, last first"

    def attack(self) -> None:
        """The first copies are the messages themselves, only early; the second are one too many."""
        for client in sorted(self.field.replies, reverse=True):
            self.field.server.receive(client, self.field.replies[client])
            self.to_server(client, self.field.replies[client])


class Malformed(Attacker):
    """Sends what is no message."""

    name = "malformed"
    what = "sends random, truncated and empty bytes"

    def attack(self) -> None:
        """To the server and to a client."""
        rng = stream(self.field.server.ledger.round, "malformed")
        for client, message in list(self.field.replies.items())[:2]:
            for junk in (rng.bytes(1000), message[: len(message) // 2], message + b"\x00", b""):
                self.to_server(client, junk)
        for client, message in list(self.field.sent.items())[:1]:
            for junk in (rng.bytes(1000), message[: len(message) // 2]):
                self.to_client(client, junk)


class Oversized(Attacker):
    """Sends more than any message can be."""

    name = "oversized"
    what = "sends messages too large to be true"

    def attack(self) -> None:
        """One byte more than the limit, to the server and to a client."""
        shape, width = self.field.shape, self.field.server.row_bytes
        for client in list(self.field.replies)[:1]:
            if (size := shape.upload_limit(width) + 1) <= _LARGEST:
                self.to_server(client, bytes(size))
            if (size := shape.delivery_limit(width) + 1) <= _LARGEST:
                self.to_client(client, bytes(size))


class ForgedAggregate(Attacker):
    """Hands clients a model of its own making."""

    name = "forged-aggregate"
    what = "sends clients an aggregate that CS never signed"

    def attack(self) -> None:
        """An aggregate in the form of a real one, and a call that builds on it."""
        for client, message in list(self.field.sent.items())[:2]:
            call = _call(message)
            if call is None:
                continue
            t = call.body.context.round + 1  # a fresh round: nothing but the signature gives it away
            rows = self.field.shape.codec.plaintext_count(self.field.shape.size)
            omega = Aggregate(
                msgspec.structs.replace(call.body.context, round=t - 1),
                tuple(range(1, 4)),
                bytes(rows * self.field.server.row_bytes),
                bytes(self.field.server.row_bytes),
            )
            made = self.signed(call.signature, omega)
            order = Call(msgspec.structs.replace(call.body.context, round=t, model=digest(made.body)))
            parts = (made, self.signed(call.signature, order))
            self.to_client(client, encode(Delivery(VERSION, parts)))


class RogueRequest(Attacker):
    """Asks clients for the global model in the name of CS."""

    name = "rogue-request"
    what = "asks clients for the global model"

    def attack(self) -> None:
        """A request in the form of a real one, together with all that leads to the model."""
        for client, message in list(self.field.sent.items())[:2]:
            call = _call(message)
            if call is None:
                continue
            context = msgspec.structs.replace(call.body.context, recipient=client)
            rogue = self.signed(call.signature, Request(context, whole=True))
            models = decode_delivery(message, len(message)).parts[:-1]
            self.to_client(client, encode(Delivery(VERSION, (*models, rogue))))


class Insider(Attacker):
    """An enrolled client with the keys of one, gone bad."""

    def __init__(self, field_: Field, client: ClientId, suite: ClientSuite) -> None:
        super().__init__(field_)
        self.client = client
        self.suite = suite

    def attack(self) -> None:
        """Answers the call that it was sent like everyone else."""
        call = _call(self.field.sent.get(self.client, b""))
        if call is None:
            return
        context = Context(VERSION, *_scope(call.body.context), self.client, SERVER, call.body.context.model)
        body = encode(self.answer(context, call.digest))
        delivery = encode(Delivery(VERSION, (Signed(body, self.suite.sign(body)),)))
        box = self.suite.seal(delivery, sealing_context(call.body.context.federation, self.client))
        self.to_server(self.client, encode(Sealed(VERSION, self.client, box)))

    @abstractmethod
    def answer(self, context: Context, call: bytes) -> Upload | Notice:
        """What it sends."""

    def zeros(self) -> bytes:
        """A contribution in the right form."""
        codec = self.field.shape.codec
        rows = np.zeros((codec.plaintext_count(self.field.shape.size), codec.plaintext_bytes), np.uint8)
        return self.suite.encrypt(rows).tobytes()


class WrongSize(Insider):
    """Sends a vector of the wrong length."""

    name = "wrong-size"
    what = "an enrolled client uploads a vector of the wrong size"

    def answer(self, context: Context, call: bytes) -> Upload:
        """One number too few."""
        contribution = self.zeros()[: -self.suite.row_bytes]
        return Upload(context, call, digest(b"W"), contribution, self.suite.prove_count(1), None)


class NotANumber(Insider):
    """Has trained until its weights are no numbers."""

    name = "nan"
    what = "an enrolled client contributes weights that are NaN"

    def answer(self, context: Context, call: bytes) -> Upload | Notice:
        """NaN has no encoding, so all that it can send is a notice without a contribution."""
        shape = self.field.shape
        try:
            weights = np.full(shape.size, np.nan, np.float32)
            rows = shape.codec.encode(weights, 1, shape.context(None)).plaintexts
        except EncodingError:
            return Notice(context, call, digest(b"W"), "diverged", None)
        contribution = self.suite.encrypt(rows).tobytes()
        return Upload(context, call, digest(b"W"), contribution, self.suite.prove_count(1), None)


class AbsurdSize(Insider):
    """Claims to hold more samples than the federation allows, to outweigh everyone."""

    name = "absurd-size"
    what = "an enrolled client claims 10^12 samples"

    def answer(self, context: Context, call: bytes) -> Upload:
        """A good proof, with the encryption of an absurd number in the place of its first bit."""
        row = np.zeros((1, self.field.shape.codec.plaintext_bytes), np.uint8)
        row[0, :5] = list((10**12).to_bytes(5, "little"))
        count = self.suite.encrypt(row).tobytes() + self.suite.prove_count(1)[self.suite.row_bytes :]
        return Upload(context, call, digest(b"W"), self.zeros(), count, None)


OUTSIDERS: dict[str, type[Attacker]] = {
    kind.name: kind
    for kind in (
        Eavesdropper,
        Masquerade,
        Tamper,
        Replay,
        Reorder,
        Malformed,
        Oversized,
        ForgedAggregate,
        RogueRequest,
    )
}
INSIDERS: dict[str, type[Insider]] = {kind.name: kind for kind in (WrongSize, NotANumber, AbsurdSize)}


class Adversaries:
    """A transport with attackers on it; the honest messages pass unchanged."""

    def __init__(
        self,
        names: Sequence[str],
        transport: Transport,
        server: CentralServer,
        shape: Shape,
        insiders: Mapping[ClientId, ClientSuite],
    ) -> None:
        """`insiders` are the attackers' own ids and what they do with their keys, in the order of names."""
        check_names(names)
        self._transport = transport
        self._insiders = set(insiders)
        self._field = Field(transport, server, shape)
        enrolled = iter(insiders.items())
        self._attackers: list[Attacker] = [
            OUTSIDERS[name](self._field)
            if name in OUTSIDERS
            else INSIDERS[name](self._field, *next(enrolled))
            for name in names
        ]

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float) -> Exchange:
        """Carries the honest messages; attackers strike while the replies are on their way."""
        honest = {client: data for client, data in messages.items() if client not in self._insiders}
        replies, failures = self._transport.exchange(honest, timeout)
        here = self._field
        here.timeout = timeout
        here.sent, here.replies = dict(messages), dict(replies)
        for attacker in self._attackers:
            attacker.attack()
        here.old_sent = [*here.old_sent, *((c, data) for c, data in here.sent.items() if c in replies)][
            :_KEPT
        ]
        here.old_replies = [*here.old_replies, *here.replies.items()][-_KEPT:]
        return Exchange(replies, failures)

    def summary(self) -> tuple[str, ...]:
        """What became of each attacker, one line each."""
        return tuple(attacker.summary() for attacker in self._attackers)


def check_names(names: Sequence[str]) -> None:
    """ConfigError if one of the adversaries does not exist."""
    for name in names:
        if name not in OUTSIDERS and name not in INSIDERS:
            known = ", ".join([*OUTSIDERS, *INSIDERS])
            raise ConfigError(f"There is no adversary '{name}': choose among {known}.")


@dataclass(frozen=True)
class _SeenCall:
    """A call as an attacker sees it: signed, but in the clear."""

    body: Call
    digest: bytes
    signature: bytes


def _call(message: bytes) -> _SeenCall | None:
    """The call in a message to a client, if there is one."""
    try:
        parts = decode_delivery(message, len(message)).parts
        bodies = [(decode_server_body(part.body), part) for part in parts]
    except ProtocolError:
        return None
    for body, part in bodies:
        if isinstance(body, Call):
            return _SeenCall(body, digest(part.body), part.signature)
    return None


def _scope(context: Context) -> tuple[bytes, int]:
    return context.federation, context.round


def _flipped(message: bytes, rng: np.random.Generator) -> bytes:
    """The message with one bit changed."""
    place = int(rng.integers(8 * len(message)))
    altered = bytearray(message)
    altered[place // 8] ^= 1 << place % 8
    return bytes(altered)
