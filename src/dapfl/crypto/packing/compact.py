"""The codec `compact`: 16-bit slots on differences to the model that every client knows."""

from collections.abc import Iterator

import numpy as np

from dapfl.arrays import Vector
from dapfl.crypto.packing.bounds import Bounds
from dapfl.crypto.packing.codec import EncodedSlots, ReferenceModels, Segment, VectorCodec, check_slots
from dapfl.crypto.packing.slots import Slots
from dapfl.errors import EncodingError

# Every client can express at least this many steps in each direction, however many clients there are.
LEAST_LEVELS = 127
LEAST_RANGE = 2.0**-16
FIRST_RANGE = 4.0  # of a tensor in the first round, at least
_BLOCK = 2**14  # numbers that are encoded or decoded at once


class CompactCodec(VectorCodec):
    """16-bit slots on differences to W(t).

    Client i has c = |D_i|·(ŵ_i − W(t)) + residual to send, and sends u = round(c/step), at most L in size;
    c − u·step is its next residual. With R the range of the tensor, step = max_samples·R/L: a client can
    express any difference up to R, and a larger one if it has fewer samples. It sends u + L in each slot.

    No sum crosses its slot. 0 ≤ u + L ≤ 2L for every client and L = ⌊(256^slot_bytes − 1)/(2·max_clients)⌋,
    so the sum of m ≤ max_clients of them is at most 2L·m ≤ 256^slot_bytes − 1; m is known when the sum is
    decoded, so m·L is subtracted exactly. Slots have 2 bytes while that leaves every client L ≥ 127 (up to
    258 clients), then 3, then 4.

    Nothing is lost: what was sent and the residuals always add up to what clients had to send. An entry
    with |c| beyond L·step is `deferred`: all of its excess arrives in later rounds.

    R must be known to all and follow the model. After a step it is four times the largest step of the
    tensor, max|W(t) − W(t-1)|, since single clients move further than their mean; but at least a quarter of
    max|W(t)|, so that it never collapses as training settles (nor, for a tensor of zeros, under 2^-16).
    In the first round there is no step to go by: four times max|W(0)|, at least 4, since small networks move
    far at once, and what is deferred comes too late. For a tensor that did not move it is max|W(t)|, at least
    1/4. For a tensor that may not be negative R is never under max|W(t)|: a fall to zero is within it.
    """

    name = "compact"

    def __init__(self, bounds: Bounds, plaintext_bytes: int) -> None:
        for slot_bytes in (2, 3, 4):
            self.levels = (256**slot_bytes - 1) // (2 * bounds.max_clients)
            if self.levels >= LEAST_LEVELS:
                break
        else:
            raise EncodingError(f"The compact codec cannot add {bounds.max_clients} clients: use 'exact'.")
        super().__init__(bounds, plaintext_bytes, slot_bytes)

    def _encode(
        self, local: Vector, sample_count: int, reference: ReferenceModels, residual: Vector | None
    ) -> EncodedSlots:
        """u + L in each slot, and the part of c that u leaves over."""
        slots = self.rows.empty(reference.size)
        left = np.empty(reference.size, dtype=np.float32)
        deferred = 0
        for segment in reference.segments:
            step = self.step(reference, segment)
            for part in _blocks(segment.start, segment.stop):
                wanted = local[part].astype(np.float64)
                wanted -= reference.current[part]
                wanted *= sample_count
                if residual is not None:
                    wanted += residual[part]
                u = np.rint(wanted / step)
                deferred += int(np.count_nonzero(np.abs(u) > self.levels))
                np.clip(u, -self.levels, self.levels, out=u)
                slots[part] = u + self.levels
                left[part] = wanted - u * step
        return EncodedSlots(slots, left, deferred)

    def _decode(
        self, slots: Slots, contributors: int, sample_count: int, reference: ReferenceModels
    ) -> Vector:
        """W(t) + Σu_i·step/Σ|D_i|, Eq. 44 on differences."""
        check_slots(slots, contributors, 2 * self.levels * contributors)
        model = np.empty(reference.size, dtype=np.float32)
        for segment in reference.segments:
            worth = self.step(reference, segment) / sample_count
            for part in _blocks(segment.start, segment.stop):
                totals = slots[part].astype(np.int64)
                totals -= contributors * self.levels
                mean = totals * worth
                mean += reference.current[part]
                if segment.nonnegative:
                    np.maximum(mean, 0.0, out=mean)
                model[part] = mean
        return model

    def step(self, reference: ReferenceModels, segment: Segment) -> float:
        """What one unit of a slot is worth for a tensor, in weight times samples."""
        return self.bounds.max_samples * tensor_range(reference, segment) / self.levels


def _blocks(start: int, stop: int) -> Iterator[slice]:
    """A tensor piece by piece: the work on a whole one, in float64, would take more memory than a model."""
    for place in range(start, stop, _BLOCK):
        yield slice(place, min(place + _BLOCK, stop))


def _largest(vector: Vector, minus: Vector | None = None) -> float:
    """max|vector - minus|; not a number if one of them is none."""
    blocks = _blocks(0, len(vector))
    parts = (vector[part] if minus is None else vector[part] - minus[part] for part in blocks)
    return float(np.max([np.abs(part).max() for part in parts]))


def tensor_range(reference: ReferenceModels, segment: Segment) -> float:
    """R of a tensor, from W(t) and W(t-1) alone (see CompactCodec)."""
    part = slice(segment.start, segment.stop)
    current = reference.current[part]
    if not len(current):
        return 1.0
    size = _largest(current)
    first = reference.previous is None
    moved = 0.0 if reference.previous is None else _largest(current, reference.previous[part])
    if not np.isfinite(size + moved):
        raise EncodingError(f"Tensor '{segment.name}' of the global model holds numbers that are not finite.")
    if first:
        return max(4 * size, FIRST_RANGE)
    if moved == 0.0:
        return max(size, 0.25)
    return max(4 * moved, size if segment.nonnegative else size / 4, LEAST_RANGE)
