"""The interface of the vector codecs, and what they need to know about a model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np

from dapfl.arrays import Rows, Vector
from dapfl.crypto.packing.slots import WIDEST, SlotRows, Slots
from dapfl.errors import EncodingError

# Weights lie within ±2^10, whatever the codec: larger ones are a training run that has diverged.
LARGEST = 1024.0


@dataclass(frozen=True)
class Segment:
    """One tensor of the flat vector: weights start to stop.

    `nonnegative` marks numbers that mean nothing below zero (a running variance): where rounding
    would leave the decoded mean below zero, it is zero.
    """

    name: str
    start: int
    stop: int
    nonnegative: bool = False


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


@dataclass(frozen=True)
class Bounds:
    """What every participant has declared never to exceed; all headroom follows from it."""

    max_samples: int
    max_clients: int

    def __post_init__(self) -> None:
        if self.max_samples < 1 or self.max_clients < 1:
            raise EncodingError(
                f"Bounds of {self.max_samples} samples and {self.max_clients} clients leave nothing to add: "
                "both must be at least 1."
            )


@dataclass(frozen=True)
class Encoded:
    """A client's contribution as plaintext rows, and what stays with the client."""

    plaintexts: Rows
    residual: Vector | None = None
    deferred: int = 0


class VectorCodec(ABC):
    """Packs |D_i|·ŵ_i into plaintexts whose sum decodes to the weighted mean (Eqs 33, 44)."""

    name: ClassVar[str]

    def __init__(self, bounds: Bounds, plaintext_bytes: int, slot_bytes: int) -> None:
        self.bounds = bounds
        self.plaintext_bytes = plaintext_bytes
        self.rows = SlotRows(slot_bytes, plaintext_bytes)
        self._count_row = SlotRows(min(WIDEST, plaintext_bytes), plaintext_bytes)
        if bounds.max_samples * bounds.max_clients >= 256**self._count_row.slot_bytes:
            raise EncodingError(
                f"A plaintext of {plaintext_bytes} bytes cannot count the samples of {bounds}."
            )

    @abstractmethod
    def encode(
        self, local: Vector, sample_count: int, reference: ReferenceModels, residual: Vector | None = None
    ) -> Encoded:
        """The contribution |D_i|·ŵ_i(t) of Eq. 33; `residual` is what the last one could not express."""

    @abstractmethod
    def decode(self, sums: Rows, contributors: int, sample_count: int, reference: ReferenceModels) -> Vector:
        """W(t+1) of Eq. 44 from the decrypted sums over `contributors` clients and `sample_count` samples."""

    def plaintext_count(self, size: int) -> int:
        """How many plaintexts a vector of `size` weights takes."""
        return self.rows.row_count(size)

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
        for name, vector, limit in (("vector", local, LARGEST), ("residual", residual, np.inf)):
            if vector is None:
                continue
            if vector.dtype != np.float32 or vector.shape != reference.current.shape:
                raise EncodingError(
                    f"The {name} to encode is {vector.dtype} of shape {vector.shape}; the model has "
                    f"{reference.size} float32 weights."
                )
            if not (np.abs(vector) <= limit).all() or not np.isfinite(vector).all():
                _refuse(vector, limit, reference)

    def _read(
        self, sums: Rows, contributors: int, sample_count: int, reference: ReferenceModels, most: int
    ) -> Slots:
        """The slots of a sum, none above what that many contributors can have sent."""
        self._check_sum(contributors, sample_count)
        slots = self.rows.unpack(sums, reference.size)
        if reference.size and int(slots.max()) > most:
            raise EncodingError(
                f"The sum holds numbers that {contributors} contributions of this codec cannot add up to: "
                "it was altered, or belongs to another round."
            )
        return slots


def _refuse(vector: Vector, limit: float, reference: ReferenceModels) -> NoReturn:
    """Names the first number of a vector that is not finite or beyond ±limit."""
    bad = ~(np.abs(vector) <= limit) | ~np.isfinite(vector)
    first = int(np.argmax(bad))
    segment = next(segment for segment in reference.segments if first < segment.stop)
    value = float(vector[first])
    wrong = f"beyond ±{limit:g}" if np.isfinite(value) else "not a number to add"
    raise EncodingError(
        f"Tensor '{segment.name}' cannot be encoded: entry {first - segment.start} is {value:g}, {wrong} "
        f"({np.count_nonzero(bad)} such entries in all). Training has diverged: lower the learning rate."
    )
