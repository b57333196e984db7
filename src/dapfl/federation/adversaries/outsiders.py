"""Attackers without a key of the federation."""

import msgspec
import numpy as np

from dapfl.errors import ProtocolError
from dapfl.federation.adversaries.attacker import Attacker, Network, call_in, scope_of
from dapfl.federation.messages import (
    VERSION,
    Aggregate,
    Call,
    Context,
    Delivery,
    Request,
    Sealed,
    Upload,
    decode_client_body,
    decode_delivery,
    decode_sealed,
    digest,
    encode,
)
from dapfl.federation.transport import SERVER
from dapfl.randomness import stream

_LARGEST = 2**28  # larger messages are not sent: they would fill the memory of this machine


class Eavesdropper(Attacker):
    """Reads whatever can be read without a key."""

    name = "eavesdropper"
    what = "listens to every byte"

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.bytes = 0
        self.messages = 0
        self.read = 0

    def attack(self) -> None:
        """Tries to read each client's message as if it were not sealed."""
        for message in (*self.network.sent.values(), *self.network.replies.values()):
            self.bytes += len(message)
            self.messages += 1
        for message in self.network.replies.values():
            try:
                sealed = decode_sealed(message, len(message))
                parts = decode_delivery(sealed.box, len(sealed.box)).parts
                self.read += sum(isinstance(decode_client_body(part.body), Upload) for part in parts)
            except ProtocolError:
                continue

    def summary(self) -> str:
        """How much it heard, and how much of that it could read."""
        verdict = f"READ {self.read} CONTRIBUTIONS" if self.read else "read no contribution"
        return f"{self.name}: {self.what}: {self.messages} messages, {self.bytes:,} bytes, {verdict}"


class Masquerade(Attacker):
    """Pretends to be a client: with a key of its own, and with another client's sealed message."""

    name = "masquerade"
    what = "uploads in the name of clients"

    def attack(self) -> None:
        """One forged upload, and one stolen envelope under another name."""
        victims = [client for client in self.network.replies if call_in(self.network.sent[client])][:2]
        for victim in victims:
            call = call_in(self.network.sent[victim])
            assert call is not None
            context = Context(VERSION, *scope_of(call.body.context), victim, SERVER, call.body.context.model)
            rows = self.network.parameters.contribution_rows
            numbers = bytes(rows * self.network.server.row_bytes)
            count = self.network.parameters.codec.encode_count(1).tobytes()
            forged = Upload(context, call.digest, digest(b"W"), numbers, count, b"")
            self.to_server(victim, encode(Sealed(VERSION, victim, self.sealed(call.signature, forged))))
        if len(victims) == 2:
            stolen = self.network.replies[victims[1]]
            self.to_server(victims[0], stolen)
            box = decode_sealed(stolen, len(stolen)).box
            self.to_server(victims[0], encode(Sealed(VERSION, victims[0], box)))


class Tamper(Attacker):
    """Alters one bit of a copy of each message."""

    name = "tamper"
    what = "flips one bit of messages"

    def attack(self) -> None:
        """One bit of every message from a client, and of one message to a client."""
        t = self.network.server.round
        for client, message in self.network.replies.items():
            self.to_server(client, _flipped(message, stream(t, "tamper", client)))
        for client, message in list(self.network.sent.items())[:1]:
            self.to_client(client, _flipped(message, stream(t, "tamper", "down", client)))


class Replay(Attacker):
    """Sends again what was good before."""

    name = "replay"
    what = "repeats messages of earlier exchanges"

    def attack(self) -> None:
        """Old messages to the server, and an old call to a client."""
        for client, message in self.network.old_replies[-8:]:
            self.to_server(client, message)
        for client, message in self.network.old_sent[:1]:
            self.to_client(client, message)


class Reorder(Attacker):
    """Lets messages arrive early, twice and in the wrong order."""

    name = "reorder"
    what = "delivers messages twice, last first"

    def attack(self) -> None:
        """The first copy is the message itself, only earlier; the second is one too many."""
        for client in sorted(self.network.replies, reverse=True):
            self.network.server.receive(client, self.network.replies[client])
            self.to_server(client, self.network.replies[client])


class Malformed(Attacker):
    """Sends bytes that are not a message."""

    name = "malformed"
    what = "sends random, truncated and empty bytes"

    def attack(self) -> None:
        """To the server and to a client."""
        rng = stream(self.network.server.round, "malformed")
        for client, message in list(self.network.replies.items())[:2]:
            for junk in (rng.bytes(1000), message[: len(message) // 2], message + b"\x00", b""):
                self.to_server(client, junk)
        for client, message in list(self.network.sent.items())[:1]:
            for junk in (rng.bytes(1000), message[: len(message) // 2]):
                self.to_client(client, junk)


class Oversized(Attacker):
    """Sends more than any message can be."""

    name = "oversized"
    what = "sends messages larger than any real one"

    def attack(self) -> None:
        """One byte more than the limit, to the server and to a client."""
        parameters, width = self.network.parameters, self.network.server.row_bytes
        for client in list(self.network.replies)[:1]:
            if (size := parameters.upload_limit(width) + 1) <= _LARGEST:
                self.to_server(client, bytes(size))
            if (size := parameters.delivery_limit(width) + 1) <= _LARGEST:
                self.to_client(client, bytes(size))


class ForgedAggregate(Attacker):
    """Hands clients a model of its own making."""

    name = "forged-aggregate"
    what = "sends clients an aggregate that CS never signed"

    def attack(self) -> None:
        """An aggregate in the form of a real one, and a call that builds on it."""
        for client, message in list(self.network.sent.items())[:2]:
            call = call_in(message)
            if call is None:
                continue
            t = call.body.context.round + 1  # a new round, so that only the signature can give it away
            rows = self.network.parameters.contribution_rows
            omega = Aggregate(
                msgspec.structs.replace(call.body.context, round=t - 1),
                tuple(range(1, 4)),
                bytes(rows * self.network.server.row_bytes),
                bytes(self.network.server.row_bytes),
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
        for client, message in list(self.network.sent.items())[:2]:
            call = call_in(message)
            if call is None:
                continue
            context = msgspec.structs.replace(call.body.context, recipient=client)
            rogue = self.signed(call.signature, Request(context, whole=True))
            models = decode_delivery(message, len(message)).parts[:-1]
            self.to_client(client, encode(Delivery(VERSION, (*models, rogue))))


def _flipped(message: bytes, rng: np.random.Generator) -> bytes:
    """The message with one bit changed."""
    place = int(rng.integers(8 * len(message)))
    altered = bytearray(message)
    altered[place // 8] ^= 1 << place % 8
    return bytes(altered)


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
