"""The global model as clients know it: W(t), its name, and how it is derived from signed bytes.

All clients of a federation hold SK_CS and get the same broadcast, so clients that share a process
share one `ModelStore`: what one has verified and decrypted, the others need not do again.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dapfl.crypto.packing import CompactCodec, ModelContext, Segment, VectorCodec
from dapfl.errors import EncodingError, ProtocolError
from dapfl.federation.messages import (
    Aggregate,
    Initial,
    ServerBody,
    Signed,
    Snapshot,
    decode_delivery,
    decode_server_body,
    digest,
    encode,
    sealing_context,
)
from dapfl.federation.suite import ClientSuite, Rows, rows_of
from dapfl.federation.transport import SERVER

Vector = NDArray[np.float32]
Value = TypeVar("Value")


@dataclass(frozen=True)
class GlobalModel:
    """W(t) under its name; `previous` is the model before it, which the codec `compact` refers to."""

    name: bytes
    weights: Vector
    previous: Vector | None = None

    @cached_property
    def commitment(self) -> bytes:
        """The hash of the weights, which all honest clients agree on."""
        return commitment_of(self.weights)


def commitment_of(weights: Vector) -> bytes:
    """The hash of a model's weights.

    >>> commitment_of(np.zeros(3, np.float32)).hex()[:16]
    'fb597ca38da69dc7'
    """
    return digest(b"dapfl global model" + to_bytes(weights))


def to_bytes(weights: Vector) -> bytes:
    """Weights as they travel: little-endian float32."""
    return np.ascontiguousarray(weights, "<f4").tobytes()


def from_bytes(data: bytes, size: int) -> Vector:
    """Weights as they came; anything but `size` finite numbers is refused."""
    if len(data) != 4 * size:
        raise ProtocolError("wrong-size", f"{len(data)} bytes of weights where the model has {4 * size}")
    weights = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(weights).all():
        raise ProtocolError("not-finite", "a model with weights that are not numbers")
    weights.flags.writeable = False
    return weights


def is_relative(codec: VectorCodec) -> bool:
    """Whether aggregates of this codec say only how the model changed."""
    return isinstance(codec, CompactCodec)


@dataclass(frozen=True)
class Shape:
    """What everyone knows of the federation's numbers before it starts."""

    codec: VectorCodec
    segments: tuple[Segment, ...]
    min_cohort: int

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.segments[-1].stop

    def context(self, model: GlobalModel | None) -> ModelContext:
        """What the codec is told of the model that a contribution starts from."""
        if model is None:  # only the codec `exact` is asked this, and it looks at the size alone
            return ModelContext(np.zeros(self.size, np.float32), None, self.segments)
        return ModelContext(model.weights, model.previous, self.segments)

    def upload_limit(self, row_bytes: int) -> int:
        """More bytes than any honest upload or answer has, whatever the envelope."""
        numbers = (self.codec.plaintext_count(self.size) + 64) * row_bytes + 4 * self.size
        return 2 * numbers + numbers // 8 + 2**17  # Paillier's envelope makes 512 bytes of 255

    def delivery_limit(self, row_bytes: int) -> int:
        """More bytes than any honest delivery has: a snapshot, and a few aggregates after it."""
        return 4 * self.upload_limit(row_bytes)


@dataclass(frozen=True)
class Part:
    """A body that CS has signed, and the hash by which it is named."""

    digest: bytes
    body: ServerBody

    @property
    def model(self) -> bytes:
        """The name of the model that this part makes; nothing is called by the name of an order."""
        return self.body.context.model if isinstance(self.body, Snapshot) else self.digest


class ModelStore:
    """What this process has already verified and worked out, the latest few of each."""

    def __init__(self) -> None:
        self._models: Latest[GlobalModel] = Latest(3)
        self._parts: Latest[Part] = Latest(4)
        self._deliveries: Latest[tuple[Part, ...]] = Latest(1)

    def opened(self, message: bytes, limit: int, suite: ClientSuite) -> tuple[Part, ...]:
        """The parts of a delivery; a broadcast to many clients of this process is opened once."""

        def open_() -> tuple[Part, ...]:
            return tuple(self.verified(signed, suite) for signed in decode_delivery(message, limit).parts)

        return self._deliveries.get(message, open_)

    def verified(self, signed: Signed, suite: ClientSuite) -> Part:
        """What CS has signed (Eqs 31, 41); nothing is read before that is proved."""

        def verify() -> Part:
            suite.verify(signed.body, signed.signature)
            return Part(digest(signed.body), decode_server_body(signed.body))

        return self._parts.get(digest(encode(signed)), verify)

    def model(self, name: bytes, work_out: Callable[[], GlobalModel]) -> GlobalModel:
        """The model of that name, worked out if this process has not met it lately."""
        return self._models.get(name, work_out)


class Latest(Generic[Value]):
    """Remembers the few values that were used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[bytes, Value] = OrderedDict()

    def get(self, key: bytes, make: Callable[[], Value]) -> Value:
        """The value under this key, made if it is not remembered; one that cannot be made is not."""
        if key not in self._values:
            self._values[key] = make()
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]


@dataclass(frozen=True)
class Derivation:
    """How the models of a delivery follow from each other and from the model a client has."""

    shape: Shape
    suite: ClientSuite
    store: ModelStore
    known: GlobalModel | None

    def model(self, name: bytes, parts: Sequence[Part]) -> GlobalModel:
        """The model called `name`: the one known, or what the signed parts make of it."""
        if self.known is not None and self.known.name == name:
            return self.known
        for part in parts:
            if part.model == name:
                return self._made(name, part.body, parts)
        raise ProtocolError("unknown-model", "nothing in this delivery leads to the model it is about")

    def _made(self, name: bytes, body: ServerBody, parts: Sequence[Part]) -> GlobalModel:
        match body:
            case Initial():
                return self.store.model(
                    name, lambda: GlobalModel(name, from_bytes(body.weights, self.shape.size))
                )
            case Snapshot():
                return self.store.model(name, lambda: self._opened(body))
            case Aggregate():
                base: GlobalModel | None = None
                if is_relative(self.shape.codec):
                    # Each step is on the one before. The parts get fewer, so a false chain comes to an end.
                    base = self.model(body.context.model, [part for part in parts if part.body is not body])
                return self.store.model(name, lambda: self._aggregated(name, body, base))
            case _:
                raise ProtocolError("malformed", "an order in the place of a model")

    def _opened(self, snapshot: Snapshot) -> GlobalModel:
        context = sealing_context(snapshot.context.federation, SERVER)
        data = self.suite.unseal(snapshot.box, context)
        half = 4 * self.shape.size
        current = from_bytes(data[:half], self.shape.size)
        previous = from_bytes(data[half:], self.shape.size) if len(data) > half else None
        return GlobalModel(snapshot.context.model, current, previous)

    def _aggregated(self, name: bytes, omega: Aggregate, base: GlobalModel | None) -> GlobalModel:
        """W(t+1) out of Ω_CS(t): Eqs 42 to 44."""
        codec, cohort = self.shape.codec, omega.cohort
        if list(cohort) != sorted(set(cohort)):
            raise ProtocolError("bad-aggregate", "a cohort that counts a client twice")
        if len(cohort) < self.shape.min_cohort:
            # The sum of one contribution is that client's model, which nobody may read.
            raise ProtocolError("below-min-cohort", f"an aggregate of {len(cohort)}")
        rows = codec.plaintext_count(self.shape.size)
        contributions = rows_of(omega.contributions, rows, self.suite.row_bytes)
        sums = self.suite.decrypt(contributions)  # Eq. 42
        count: Rows = self.suite.decrypt(rows_of(omega.samples, 1, self.suite.row_bytes))  # Eq. 43
        try:
            samples = codec.decode_count(count, len(cohort))
            weights = codec.decode(sums, len(cohort), samples, self.shape.context(base))  # Eq. 44
        except EncodingError:
            # Someone reported an impossible |D_i|, or sent numbers that no client can have encoded.
            raise ProtocolError("bad-aggregate", "sums that honest contributions cannot add up to") from None
        weights.flags.writeable = False
        return GlobalModel(name, weights, None if base is None else base.weights)
