"""What travels between CS and clients: typed, versioned, bounded, canonical.

    server → client   Delivery of Signed: a roster (Membership), models (Initial, Snapshot, Aggregate), then
                      orders (Call, Request, Proposal)
    client → server   Sealed(Delivery of Signed: Upload, Report, Notice, Answer, Share, Refusal)

Every signed body begins with its kind and its `Context`, so that a signature is good for one
federation, run, roster, round, sender, recipient, kind and model only. There is one encoding of a message:
bytes that decode to it but are not that encoding are refused. Whatever comes in, decoding
allocates no more than the message is long and raises nothing but ProtocolError.

docs/protocol.md describes the format byte by byte.
"""

import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterator
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from dapfl.errors import ProtocolError
from dapfl.federation.records import ClientReport, Reason

VERSION = 1
DIGEST_BYTES = 32
FEDERATION_BYTES = 16
_LARGE = 2**16  # bytes of a message that is not encoded again to see that it is canonical
PARTS = 32  # no delivery holds more signed bodies than this

Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_SERIAL_BYTES = 8
RUN_BYTES = 16
_SCOPE_BYTES = FEDERATION_BYTES + RUN_BYTES
Scope = Annotated[bytes, Meta(min_length=FEDERATION_BYTES, max_length=_SCOPE_BYTES + _SERIAL_BYTES)]
ReportBytes = Annotated[bytes, Meta(max_length=2**14)]  # see `decode_report`; empty if there is none
Round = Annotated[int, Meta(ge=0, lt=2**53)]
Participant = Annotated[int, Meta(ge=-1, lt=2**53)]

NO_MODEL = bytes(DIGEST_BYTES)
"""In the place of a model's name where there is no model: W(0) builds on none."""


class _Part(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Encoded as an array, not a map: shorter, and with only one order of fields."""


class Context(_Part, frozen=True, array_like=True):
    """What a signature is bound to, besides the kind.

    `model` names the global model that the message is about. A model's name is the hash of the signed body
    that makes it, Initial or Aggregate. Server and clients both know that hash, even while the server does
    not know the model itself. Names form a chain: every Aggregate names the model that its contributions
    start from.

    `scope` is what `make_scope` makes of the federation, the run and the roster.
    """

    version: int
    scope: Scope
    round: Round
    sender: Participant
    recipient: Participant
    model: Digest

    @property
    def federation(self) -> bytes:
        """The id of the federation."""
        return self.scope[:FEDERATION_BYTES]

    @property
    def run(self) -> bytes:
        """The id of the run: keys may serve several. (Runs of version 0.1 have none.)"""
        return self.scope[FEDERATION_BYTES:_SCOPE_BYTES]

    @property
    def roster(self) -> int:
        """The serial of the roster; 0 in a federation whose clients have not changed."""
        return int.from_bytes(self.scope[_SCOPE_BYTES:], "big")


def make_scope(federation: bytes, run: bytes, roster: int) -> bytes:
    """Federation, run and roster, as contexts name them.

    >>> len(make_scope(bytes(16), bytes(16), 0)), len(make_scope(bytes(16), bytes(16), 1))
    (32, 40)
    """
    return federation + run + (roster.to_bytes(_SERIAL_BYTES, "big") if roster else b"")


class Membership(_Part, frozen=True, array_like=True, tag="membership"):
    """The roster that the KDC has signed (see `membership.roster`), for clients that may not have it."""

    context: Context
    roster: bytes


class Initial(_Part, frozen=True, array_like=True, tag="initial"):
    """W(0), signed, in the clear (Eq. 30)."""

    context: Context
    weights: bytes


class Snapshot(_Part, frozen=True, array_like=True, tag="snapshot"):
    """The model that `context.model` names; readable by clients only.

    With a shared key it is for clients that are too far behind. With a committee every client gets it, and
    `cohort` is the C(t) of the round that made the model.
    """

    context: Context
    box: bytes
    cohort: tuple[Participant, ...]


class Aggregate(_Part, frozen=True, array_like=True, tag="aggregate"):
    """Ω_CS(t) and the legitimate set C(t) (Eq. 39); `context.model` names W(t)."""

    context: Context
    cohort: tuple[Participant, ...]
    contributions: bytes
    sample_count: bytes


class Call(_Part, frozen=True, array_like=True, tag="call"):
    """Take part in round t, from the model W(t) that `context.model` names."""

    context: Context


class Request(_Part, frozen=True, array_like=True, tag="request"):
    """CS asks a client for the global model that `context.model` names, or a witness for its hash."""

    context: Context
    whole: bool


class Signed(_Part, frozen=True, array_like=True):
    """A body and its signature (Ω ‖ (σ, σ̃))."""

    body: bytes
    signature: bytes


class Proposal(_Part, frozen=True, array_like=True, tag="proposal"):
    """CS asks the committee to decrypt the sums over a cohort in round t.

    `uploads` are what the clients of the cohort have signed, in the order of the clients; `counts` are their
    proofs of |D_i|. Members check all of it and work out the sums themselves.
    """

    context: Context
    uploads: tuple[Signed, ...]
    counts: tuple[bytes, ...]


class Upload(_Part, frozen=True, array_like=True, tag="upload"):
    """Ω_i(t) (Eq. 34). `answers` is the hash of the call, `commitment` that of the weights W(t)."""

    context: Context
    answers: Digest
    commitment: Digest
    contribution: bytes
    sample_count: bytes
    report: ReportBytes


class Notice(_Part, frozen=True, array_like=True, tag="notice"):
    """A client took part but has nothing to contribute."""

    context: Context
    answers: Digest
    commitment: Digest
    outcome: Literal["over-budget", "diverged"]
    report: ReportBytes


class Answer(_Part, frozen=True, array_like=True, tag="answer"):
    """The global model a client was asked for; a witness leaves `weights` empty."""

    context: Context
    answers: Digest
    commitment: Digest
    weights: bytes


class Refusal(_Part, frozen=True, array_like=True, tag="refusal"):
    """A client refuses to do what a delivery asks; `answers` is the hash of the whole delivery."""

    context: Context
    answers: Digest
    reason: Reason


class Report(_Part, frozen=True, array_like=True, tag="report"):
    """The report that belongs to an upload, where committee members get to see uploads."""

    context: Context
    answers: Digest
    report: ReportBytes


class Share(_Part, frozen=True, array_like=True, tag="share"):
    """A committee member's decryption share of the sums of a proposal, and its proof."""

    context: Context
    answers: Digest
    numbers: bytes
    proof: bytes


RecoveryOrder = Request | Proposal
"""What CS may ask of clients to recover a model."""

RecoveryAnswer = Answer | Share

Order = Call | RecoveryOrder
ServerBody = Membership | Initial | Snapshot | Aggregate | Order
ClientBody = Upload | Report | Notice | RecoveryAnswer | Refusal
Message = TypeVar("Message")


class Delivery(_Part, frozen=True, array_like=True):
    """Signed bodies that travel together."""

    version: int
    parts: Annotated[tuple[Signed, ...], Meta(min_length=1, max_length=PARTS)]


class Sealed(_Part, frozen=True, array_like=True):
    """ε₂ of a client's delivery, and whose key opens it."""

    version: int
    sender: Participant
    box: bytes


# Models and contributions are large. Here a large field is a view of the message that it came in or goes out
# with, not a copy.


class SignedInPlace(Signed, frozen=True, array_like=True):
    """A signed body that lies in memory of another object."""

    body: memoryview  # type: ignore[assignment]


class _DeliveryInPlace(Delivery, frozen=True, array_like=True):
    parts: Annotated[tuple[SignedInPlace, ...], Meta(min_length=1, max_length=PARTS)]


class _SealedInPlace(Sealed, frozen=True, array_like=True):
    box: memoryview  # type: ignore[assignment]


class _UploadInPlace(Upload, frozen=True, array_like=True, tag="upload"):
    contribution: memoryview  # type: ignore[assignment]


class _InitialInPlace(Initial, frozen=True, array_like=True, tag="initial"):
    weights: memoryview  # type: ignore[assignment]


class _SnapshotInPlace(Snapshot, frozen=True, array_like=True, tag="snapshot"):
    box: memoryview  # type: ignore[assignment]


class _AggregateInPlace(Aggregate, frozen=True, array_like=True, tag="aggregate"):
    contributions: memoryview  # type: ignore[assignment]


class _ProposalInPlace(Proposal, frozen=True, array_like=True, tag="proposal"):
    uploads: tuple[SignedInPlace, ...]


_ServerBodyInPlace = Membership | _InitialInPlace | _SnapshotInPlace | _AggregateInPlace | Order
_ClientBodyInPlace = _UploadInPlace | Report | Notice | RecoveryAnswer | Refusal

_encoder = msgspec.msgpack.Encoder()
_deliveries: msgspec.msgpack.Decoder[Delivery] = msgspec.msgpack.Decoder(Delivery)
_deliveries_in_place: msgspec.msgpack.Decoder[Delivery] = msgspec.msgpack.Decoder(_DeliveryInPlace)
_sealed: msgspec.msgpack.Decoder[Sealed] = msgspec.msgpack.Decoder(_SealedInPlace)
_server_bodies: msgspec.msgpack.Decoder[ServerBody] = msgspec.msgpack.Decoder(ServerBody)
_server_bodies_in_place: msgspec.msgpack.Decoder[ServerBody] = msgspec.msgpack.Decoder(_ServerBodyInPlace)
_proposals_in_place: msgspec.msgpack.Decoder[Proposal] = msgspec.msgpack.Decoder(_ProposalInPlace)
_reports = msgspec.msgpack.Decoder(ClientReport)
_client_bodies: msgspec.msgpack.Decoder[ClientBody] = msgspec.msgpack.Decoder(ClientBody)
_client_bodies_in_place: msgspec.msgpack.Decoder[ClientBody] = msgspec.msgpack.Decoder(_ClientBodyInPlace)


def encode(message: Struct) -> bytes:
    """The one encoding of a message."""
    return _encoder.encode(message)


def deliver_proposal(proposal: Proposal, sign: Callable[[bytes], bytes]) -> tuple[bytes, Signed, Proposal]:
    """A delivery of nothing but a proposal; the signed proposal; and the same proposal once more.

    A proposal is as large as all uploads together. So it is written into the delivery, and signed there: the
    signed body, and the uploads of the proposal that is returned, are views of the delivery. The proposal
    that was given is used up: it lets go of each upload once that is written.
    """
    length = sum(map(len, _pieces(proposal)))
    uploads = deque(proposal.uploads)
    msgspec.structs.force_setattr(proposal, "uploads", ())
    buffer = io.BytesIO()
    buffer.write(b"\x92" + _encoder.encode(VERSION) + b"\x91\x92" + _header(length))
    start = buffer.tell()
    tag = proposal.__struct_config__.tag
    buffer.writelines([_array(4), *_pieces(tag), *_pieces(proposal.context), _array(len(uploads))])
    while uploads:
        buffer.writelines(_pieces(uploads.popleft()))
    buffer.writelines(_pieces(proposal.counts))
    with buffer.getbuffer() as written:
        signature = sign(written[start:])  # type: ignore[arg-type]  # looked at, not kept
    buffer.write(_encoder.encode(signature))
    message = buffer.getvalue()  # the buffer itself, not a copy
    body = memoryview(message)[start : start + length]
    return message, SignedInPlace(body, signature), _proposals_in_place.decode(body)


def digest(*pieces: bytes | memoryview) -> bytes:
    """SHA-256, by which the protocol makes every name and commitment, of the pieces one after the other."""
    state = hashlib.sha256()
    for piece in pieces:
        state.update(piece)
    return state.digest()


def decode_delivery(data: bytes, limit: int, *, in_place: bool = False) -> Delivery:
    """A delivery of at most `limit` bytes. `in_place`, its bodies are views of the data."""
    delivery = _decode(data, _deliveries_in_place if in_place else _deliveries, limit)
    _check_version(delivery.version)
    return delivery


def decode_sealed(data: bytes, limit: int) -> Sealed:
    """A sealed delivery of at most `limit` bytes, whose box is a view of the data."""
    sealed = _decode(data, _sealed, limit)
    _check_version(sealed.version)
    return sealed


def decode_server_body(data: bytes, *, in_place: bool = False) -> ServerBody:
    """A body that CS signed. `in_place`, a model in it is a view of the data."""
    body = _decode(data, _server_bodies_in_place if in_place else _server_bodies, len(data))
    _check_version(body.context.version)
    return body


def decode_client_body(data: bytes, *, in_place: bool = False) -> ClientBody:
    """A body that a client signed. `in_place`, a contribution is a view of the data."""
    body = _decode(data, _client_bodies_in_place if in_place else _client_bodies, len(data))
    _check_version(body.context.version)
    return body


def decode_report(data: bytes) -> ClientReport:
    """What a client tells about its round. Nobody vouches for it, so it is dropped if it is not in bounds.

    It travels as bytes within a body, so that a report that is dropped leaves the contribution alone.
    """
    try:
        return _decode(data, _reports, len(data))
    except ProtocolError:
        raise ProtocolError("bad-report", "a report that is not within its bounds") from None


def order_kind(order: Order) -> str:
    """The kind of an order: a client accepts one of each kind per round."""
    match order:
        case Call():
            return "call"
        case Proposal():
            return "decrypt"
        case Request():
            return "request" if order.whole else "witness"


def contribution_binding(context: Context) -> bytes:
    """What the proof of a contribution is bound to: its federation, round, sender and model."""
    return b"dapfl contribution/" + encode(context)


def associated_data(federation: bytes, sender: int) -> bytes:
    """What an envelope is bound to: it opens for one sender of one federation only."""
    return b"dapfl/%d/" % VERSION + federation[:FEDERATION_BYTES] + b"/%d" % sender


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
    if not _is_canonical(message, data):
        raise ProtocolError("malformed", "not the canonical encoding")
    return message


def _is_canonical(message: object, data: bytes) -> bool:
    """Whether the data is the one encoding of the message that was decoded from it."""
    if len(data) < _LARGE:
        return _encoder.encode(message) == data
    place, view = 0, memoryview(data)
    for piece in _pieces(message):
        # A view needs no look: everything before it is canonical, so it was decoded from this very place.
        if not isinstance(piece, memoryview) and view[place : place + len(piece)] != piece:
            return False
        place += len(piece)
    return place == len(data)


def _pieces(value: object) -> Iterator[bytes | memoryview]:
    """What `encode` makes of a value, piece by piece, without a copy of its bytes and views."""
    if isinstance(value, bytes | memoryview):
        yield _header(len(value))
        yield value
    elif isinstance(value, _Part):
        tag = value.__struct_config__.tag
        items = msgspec.structs.astuple(value)
        yield from _pieces(items if tag is None else (tag, *items))
    elif isinstance(value, tuple):
        yield _array(len(value))
        for item in value:
            yield from _pieces(item)
    else:
        yield _encoder.encode(value)


def _array(count: int) -> bytes:
    """What comes before so many items."""
    return _encoder.encode((None,) * count)[:-count] if count else b"\x90"


def _header(length: int) -> bytes:
    """What comes before so many bytes."""
    width = 1 if length < 2**8 else 2 if length < 2**16 else 4
    return {1: b"\xc4", 2: b"\xc5", 4: b"\xc6"}[width] + length.to_bytes(width, "big")
