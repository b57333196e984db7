"""What travels between CS and clients: typed, versioned, bounded, canonical.

    server → client   Delivery of Signed: models (Initial, Snapshot, Aggregate), then orders (Call, Request)
    client → server   Sealed(Delivery of Signed: Upload, Notice, Answer, Refusal)

Every signed body begins with its kind and its `Context`, so that a signature is good for one
federation, round, sender, recipient, kind and model only. There is one encoding of a message:
bytes that decode to it but are not that encoding are refused. Whatever comes in, decoding
allocates no more than the message is long and raises nothing but ProtocolError.

docs/protocol.md describes the format byte by byte.
"""

import hashlib
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from dapfl.errors import ProtocolError
from dapfl.federation.records import ClientReport, Name

VERSION = 1
DIGEST_BYTES = 32
FEDERATION_BYTES = 16
PARTS = 32  # more signed bodies than this never travel together

Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
FederationId = Annotated[bytes, Meta(min_length=FEDERATION_BYTES, max_length=FEDERATION_BYTES)]
Round = Annotated[int, Meta(ge=0, lt=2**53)]
Participant = Annotated[int, Meta(ge=-1, lt=2**53)]

NO_MODEL = bytes(DIGEST_BYTES)
"""The model before W(0)."""


class _Part(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Arrays instead of maps: short, and with one order of fields."""


class Context(_Part, frozen=True, array_like=True):
    """What a signature is bound to, besides the kind.

    `model` names the global model that the message is about. A model's name is the hash of the
    signed body that made it, Initial or Aggregate, which server and clients know alike, though
    the server cannot read the model itself. Names form a chain, as every Aggregate names the model
    that its contributions started from.
    """

    version: int
    federation: FederationId
    round: Round
    sender: Participant
    recipient: Participant
    model: Digest


class Initial(_Part, frozen=True, array_like=True, tag="initial"):
    """W(0), signed, in the clear (Eq. 30)."""

    context: Context
    weights: bytes


class Snapshot(_Part, frozen=True, array_like=True, tag="snapshot"):
    """The model that `context.model` names, for clients too far behind; readable by clients only."""

    context: Context
    box: bytes


class Aggregate(_Part, frozen=True, array_like=True, tag="aggregate"):
    """Ω_CS(t) and the legitimate set C(t) (Eq. 39); `context.model` names W(t)."""

    context: Context
    cohort: tuple[Participant, ...]
    contributions: bytes
    samples: bytes


class Call(_Part, frozen=True, array_like=True, tag="call"):
    """Take part in round t, from the model W(t) that `context.model` names."""

    context: Context


class Request(_Part, frozen=True, array_like=True, tag="request"):
    """CS asks for the global model that `context.model` names, or, of a witness, for its hash."""

    context: Context
    whole: bool


class Upload(_Part, frozen=True, array_like=True, tag="upload"):
    """Ω_i(t) (Eq. 34). `answers` is the hash of the call, `commitment` that of the weights W(t)."""

    context: Context
    answers: Digest
    commitment: Digest
    contribution: bytes
    samples: bytes
    report: ClientReport | None


class Notice(_Part, frozen=True, array_like=True, tag="notice"):
    """A client took part but has nothing to contribute."""

    context: Context
    answers: Digest
    commitment: Digest
    outcome: Literal["over-budget", "diverged"]
    report: ClientReport | None


class Answer(_Part, frozen=True, array_like=True, tag="answer"):
    """The global model a client was asked for; a witness leaves `weights` empty."""

    context: Context
    answers: Digest
    commitment: Digest
    weights: bytes


class Refusal(_Part, frozen=True, array_like=True, tag="refusal"):
    """A client does not do what a delivery asks; `answers` is the hash of the whole delivery."""

    context: Context
    answers: Digest
    reason: Name


ServerBody = Initial | Snapshot | Aggregate | Call | Request
ClientBody = Upload | Notice | Answer | Refusal
Message = TypeVar("Message")


class Signed(_Part, frozen=True, array_like=True):
    """A body and its signature (Ω ‖ (σ, σ̃))."""

    body: bytes
    signature: bytes


class Delivery(_Part, frozen=True, array_like=True):
    """Signed bodies that travel together."""

    version: int
    parts: Annotated[tuple[Signed, ...], Meta(min_length=1, max_length=PARTS)]


class Sealed(_Part, frozen=True, array_like=True):
    """ε₂ of a client's delivery, and whose key opens it."""

    version: int
    sender: Participant
    box: bytes


_encoder = msgspec.msgpack.Encoder()
_deliveries = msgspec.msgpack.Decoder(Delivery)
_sealed = msgspec.msgpack.Decoder(Sealed)
_server_bodies: msgspec.msgpack.Decoder[ServerBody] = msgspec.msgpack.Decoder(ServerBody)
_client_bodies: msgspec.msgpack.Decoder[ClientBody] = msgspec.msgpack.Decoder(ClientBody)


def encode(message: Struct) -> bytes:
    """The one encoding of a message."""
    return _encoder.encode(message)


def digest(data: bytes) -> bytes:
    """SHA-256, the hash of every name and commitment in the protocol."""
    return hashlib.sha256(data).digest()


def decode_delivery(data: bytes, limit: int) -> Delivery:
    """A delivery of at most `limit` bytes."""
    delivery = _decode(data, _deliveries, limit)
    _check_version(delivery.version)
    return delivery


def decode_sealed(data: bytes, limit: int) -> Sealed:
    """A sealed delivery of at most `limit` bytes."""
    sealed = _decode(data, _sealed, limit)
    _check_version(sealed.version)
    return sealed


def decode_server_body(data: bytes) -> ServerBody:
    """A body that CS signed."""
    body = _decode(data, _server_bodies, len(data))
    _check_version(body.context.version)
    return body


def decode_client_body(data: bytes) -> ClientBody:
    """A body that a client signed."""
    body = _decode(data, _client_bodies, len(data))
    _check_version(body.context.version)
    return body


def sealing_context(federation: bytes, sender: int) -> bytes:
    """What an envelope is bound to: it opens for one sender of one federation only."""
    return b"dapfl/%d/" % VERSION + federation + b"/%d" % sender


def _check_version(version: int) -> None:
    if version != VERSION:
        raise ProtocolError("wrong-version", f"{version} where this side speaks {VERSION}")


def _decode(data: bytes, decoder: "msgspec.msgpack.Decoder[Message]", limit: int) -> Message:
    if len(data) > limit:
        raise ProtocolError("oversized", f"{len(data)} bytes where at most {limit} can be right")
    try:
        message = decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise ProtocolError("malformed", type(error).__name__) from None
    if _encoder.encode(message) != data:
        raise ProtocolError("malformed", "not the canonical encoding")
    return message
