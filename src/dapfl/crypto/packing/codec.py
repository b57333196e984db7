"""The interface of the vector codecs, and what they need to know about a model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dapfl.arrays import Rows, Vector
from dapfl.crypto.packing.bounds import Bounds, altered_sum
from dapfl.crypto.packing.slots import WIDEST, SlotRows, Slots
from dapfl.crypto.packing.wide import LARGEST_WIDE, WideNumbers
from dapfl.errors import EncodingError

# Weights lie within ±2^10, whatever the codec: larger ones are a training run that has diverged. Tensors that
# may rightly be larger are marked as wide.
LARGEST = 1024.0


@dataclass(frozen=True)
class Segment:
    """One tensor of the flat vector: weights start to stop.

    `nonnegative` marks numbers that mean nothing below zero (a running variance): where rounding
    would leave the decoded mean below zero, it is zero. `wide` marks a tensor whose numbers may be of any
    size up to 2^64: it takes more slots, and is exact whatever the codec.
    """

    name: str
    start: int
    stop: int
    nonnegative: bool = False
    wide: bool = False

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.stop - self.start

    @property
    def part(self) -> slice:
        """Its place in the flat vector."""
        return slice(self.start, self.stop)

    @property
    def limit(self) -> float:
        """The largest absolute value that can be encoded."""
        return LARGEST_WIDE if self.wide else LARGEST


def wide_size(segments: tuple[Segment, ...]) -> int:
    """How many numbers of a model are in wide tensors."""
    return sum(segment.size for segment in segments if segment.wide)


@dataclass(frozen=True)
class ReferenceModels:
    """What all clients know at round t: W(t), W(t-1) if there was one, and where the tensors lie."""

    current: Vector
    previous: Vector | None = None
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if self.previous is not None and self.previous.shape != self.current.shape:
            raise EncodingError(
                f"W(t) has {self.current.size} weights and W(t-1) {self.previous.size}: they differ."
            )
        if not self.segments:
            object.__setattr__(self, "segments", (Segment("vector", 0, self.size),))
        edges = [0, *(segment.stop for segment in self.segments)]
        if [segment.start for segment in self.segments] != edges[:-1] or edges[-1] != self.size:
            raise EncodingError(f"The segments do not cover the {self.size} weights of W(t) in order.")

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.current.size

    def of(self, segment: Segment) -> "ReferenceModels":
        """The same for one tensor alone."""
        part = segment.part
        previous = None if self.previous is None else self.previous[part]
        return ReferenceModels(self.current[part], previous, (replace(segment, start=0, stop=segment.size),))


@dataclass(frozen=True)
class Encoded:
    """A client's contribution as plaintext rows, and what stays with the client."""

    plaintexts: Rows
    residual: Vector | None = None
    deferred: int = 0


@dataclass(frozen=True)
class EncodedSlots:
    """A narrow tensor of a contribution in slots, and what stays with the client."""

    slots: Slots
    residual: Vector | None = None
    deferred: int = 0


class VectorCodec(ABC):
    """Packs |D_i|·ŵ_i into plaintexts whose sum decodes to the weighted mean (Eqs 33, 44)."""

    name: ClassVar[str]

    def __init__(self, bounds: Bounds, plaintext_bytes: int, slot_bytes: int) -> None:
        self.bounds = bounds
        self.plaintext_bytes = plaintext_bytes
        self.rows = SlotRows(slot_bytes, plaintext_bytes)
        self.wide = WideNumbers(bounds, slot_bytes)
        self._count_row = SlotRows(min(WIDEST, plaintext_bytes), plaintext_bytes)
        if bounds.max_samples * bounds.max_clients >= 256**self._count_row.slot_bytes:
            raise EncodingError(
                f"A plaintext of {plaintext_bytes} bytes cannot count the samples of {bounds}."
            )

    def encode(
        self, local: Vector, sample_count: int, reference: ReferenceModels, residual: Vector | None = None
    ) -> Encoded:
        """The contribution |D_i|·ŵ_i(t) of Eq. 33; `residual` is what the last one could not express."""
        self._check_input(local, sample_count, reference, residual)
        slots = self.rows.empty(self._slot_count(reference.size, wide_size(reference.segments)))
        left: Vector | None = None
        at = deferred = 0
        # Tensor by tensor: whole copies of a large model would take more memory than all the rest.
        for segment in _narrow(reference):
            part = segment.part
            old = None if residual is None else residual[part]
            encoded = self._encode(local[part], sample_count, reference.of(segment), old)
            slots[at : at + segment.size] = encoded.slots
            if encoded.residual is not None:
                left = np.zeros_like(local) if left is None else left
                left[part] = encoded.residual
            at, deferred = at + segment.size, deferred + encoded.deferred
        if at < len(slots):
            slots[at:] = self.wide.encode(_wide_numbers(local, reference), sample_count)
        return Encoded(self.rows.pack(slots), left, deferred)

    def decode(self, sums: Rows, contributors: int, sample_count: int, reference: ReferenceModels) -> Vector:
        """W(t+1) of Eq. 44 from the decrypted sums over `contributors` clients and `sample_count` samples."""
        self._check_sum(contributors, sample_count)
        slots = self.rows.unpack(sums, self._slot_count(reference.size, wide_size(reference.segments)))
        model = np.empty(reference.size, np.float32)
        at = 0
        for segment in _narrow(reference):
            theirs = slots[at : at + segment.size]
            model[segment.part] = self._decode(theirs, contributors, sample_count, reference.of(segment))
            at += segment.size
        if at < len(slots):
            self._decode_wide(slots[at:], contributors, sample_count, reference, model)
        return model

    def _decode_wide(
        self, slots: Slots, contributors: int, sample_count: int, reference: ReferenceModels, model: Vector
    ) -> None:
        numbers, at = self.wide.decode(slots, contributors, sample_count), 0
        for segment in reference.segments:
            if segment.wide:
                theirs = numbers[at : at + segment.size]
                model[segment.part] = np.maximum(theirs, 0.0) if segment.nonnegative else theirs
                at += segment.size

    @abstractmethod
    def _encode(
        self, local: Vector, sample_count: int, reference: ReferenceModels, residual: Vector | None
    ) -> EncodedSlots:
        """A slot for each number of a narrow tensor, which is all that the arguments hold."""

    @abstractmethod
    def _decode(
        self, slots: Slots, contributors: int, sample_count: int, reference: ReferenceModels
    ) -> Vector:
        """The mean of a narrow tensor."""

    def plaintext_count(self, size: int, wide: int = 0) -> int:
        """How many plaintexts a vector of `size` numbers takes, of which `wide` are in wide tensors."""
        return self.rows.row_count(self._slot_count(size, wide))

    def _slot_count(self, size: int, wide: int) -> int:
        return size - wide + wide * self.wide.digits

    def add_plain(self, batches: Iterable[Rows]) -> Rows:
        """Eq. 39 without encryption: the same integers added in the clear."""
        return self.rows.add(batches)

    def encode_count(self, sample_count: int) -> Rows:
        """|D_i| as a plaintext of its own, Eq. 34."""
        self._check_sample_count(sample_count)
        return self._count_row.pack(np.array([sample_count], dtype=np.uint64))

    def decode_count(self, row: Rows, contributors: int) -> int:
        """Σ|D_i| from its decrypted sum, Eq. 43; more than the declared bounds allow is an error."""
        total = int(self._count_row.unpack(row, 1)[0])
        self._check_sum(contributors, total)
        return total

    def add_counts(self, rows: Iterable[Rows]) -> Rows:
        """The sum of encoded counts without encryption."""
        return self._count_row.add(rows)

    def _check_sample_count(self, sample_count: int) -> None:
        if not 1 <= sample_count <= self.bounds.max_samples:
            raise EncodingError(
                f"A client with {sample_count} samples cannot contribute: this federation declared 1 to "
                f"{self.bounds.max_samples}."
            )

    def _check_sum(self, contributors: int, sample_count: int) -> None:
        if not 1 <= contributors <= self.bounds.max_clients:
            raise EncodingError(
                f"A sum of {contributors} contributions cannot be decoded: this federation declared 1 to "
                f"{self.bounds.max_clients} clients."
            )
        if not contributors <= sample_count <= contributors * self.bounds.max_samples:
            raise EncodingError(
                f"{contributors} clients cannot hold {sample_count} samples in all: this federation declared "
                f"1 to {self.bounds.max_samples} each."
            )

    def _check_input(
        self, local: Vector, sample_count: int, reference: ReferenceModels, residual: Vector | None
    ) -> None:
        self._check_sample_count(sample_count)
        for name, vector in (("vector", local), ("residual", residual)):
            if vector is None:
                continue
            if vector.dtype != np.float32 or vector.shape != reference.current.shape:
                raise EncodingError(
                    f"The {name} to encode is {vector.dtype} of shape {vector.shape}; the model has "
                    f"{reference.size} float32 weights."
                )
        large = np.empty(len(local), np.bool_)
        for segment in reference.segments:
            large[segment.part] = ~(np.abs(local[segment.part]) <= np.float32(segment.limit))  # so is NaN
        _refuse(large, local, reference)
        if residual is not None:
            _refuse(~np.isfinite(residual), residual, reference)


def _narrow(reference: ReferenceModels) -> Iterator[Segment]:
    return (segment for segment in reference.segments if not segment.wide)


def _wide_numbers(vector: Vector, reference: ReferenceModels) -> Vector:
    return np.concatenate([vector[segment.part] for segment in reference.segments if segment.wide])


def check_slots(slots: Slots, contributors: int, most: int) -> None:
    """EncodingError if a slot of a sum is above what that many contributors can have sent."""
    if len(slots) and int(slots.max()) > most:
        raise altered_sum(contributors)


def _refuse(bad: NDArray[np.bool_], vector: Vector, reference: ReferenceModels) -> None:
    """Names the first bad number of a vector, if there is one."""
    if not bad.any():
        return
    first = int(np.argmax(bad))
    segment = next(segment for segment in reference.segments if first < segment.stop)
    value = float(vector[first])
    wrong = f"beyond ±{segment.limit:g}" if np.isfinite(value) else "not a number to add"
    raise EncodingError(
        f"Tensor '{segment.name}' cannot be encoded: entry {first - segment.start} is {value:g}, {wrong} "
        f"({np.count_nonzero(bad)} such entries in all). Training has diverged: lower the learning rate."
    )
