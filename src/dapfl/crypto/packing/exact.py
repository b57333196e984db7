"""The codec `exact`: fixed point at float32 level."""

import numpy as np
from numpy.typing import NDArray

from dapfl.arrays import Rows, Vector
from dapfl.crypto.packing.bounds import Bounds
from dapfl.crypto.packing.codec import LARGEST, EncodedSlots, ReferenceModels, VectorCodec, check_slots
from dapfl.crypto.packing.slots import WIDEST, Slots
from dapfl.errors import EncodingError

FRACTION_BITS = 28
FEWEST_FRACTION_BITS = 20


class ExactCodec(VectorCodec):
    """Fixed point at float32 level.

    A weight w with |w| ≤ 2^10 becomes q = round(w·2^f), |q| ≤ M = 2^(10+f). Client i sends
    |D_i|·(q + M) in each slot: never negative, so no borrow; Σ|D_i| is known when the sum is decoded, so
    Σ|D_i|·M is subtracted exactly.

    No sum crosses its slot. Each slot holds at most 2M·|D_i| ≤ 2M·max_samples, the sum of at most
    max_clients of them at most 2M·max_samples·max_clients, and the slot width is the byte length of that
    very number. As slots are whole bytes and rows hold whole slots, no row reaches 256^plaintext_bytes.

    f is at least 28 (an error of at most 2^-29 per weight, half a float32 step at 0.03) while that fits a
    64-bit slot, and takes what its last byte leaves over; larger federations get the bits that are left, and
    under 20 the bounds are refused. The division of Eq. 44 is by Σ|D_i|·2^f in float64.
    """

    name = "exact"

    def __init__(self, bounds: Bounds, plaintext_bytes: int) -> None:
        most = 2 * int(LARGEST) * bounds.max_samples * bounds.max_clients  # of a slot, but for 2^f
        slot_bytes = min(WIDEST, -(-(most << FRACTION_BITS).bit_length() // 8))
        self.fraction_bits = 8 * slot_bytes - most.bit_length()
        if self.fraction_bits < FEWEST_FRACTION_BITS:
            raise EncodingError(
                f"{bounds.max_clients} clients with up to {bounds.max_samples} samples leave "
                f"{max(0, self.fraction_bits)} bits for fractions of weights within ±{LARGEST:g}; "
                f"{FEWEST_FRACTION_BITS} are needed. Declare tighter bounds."
            )
        self.offset = int(LARGEST) << self.fraction_bits
        super().__init__(bounds, plaintext_bytes, slot_bytes)

    def _encode(
        self, local: Vector, sample_count: int, reference: ReferenceModels, residual: Vector | None
    ) -> EncodedSlots:
        """|D_i|·(q + M) in each slot (Eq. 33); there is never a residual."""
        if residual is not None:
            raise EncodingError("The exact codec leaves no residual: this one comes from a compact run.")
        # A float32 times a power of two is exact in float64, so rint is the only rounding.
        q = np.rint(local.astype(np.float64) * 2.0**self.fraction_bits).astype(np.int64)
        return EncodedSlots((q + self.offset).view(np.uint64) * np.uint64(sample_count))

    def _decode(
        self, slots: Slots, contributors: int, sample_count: int, reference: ReferenceModels
    ) -> Vector:
        """(Σ|D_i|·q_i) / (Σ|D_i|·2^f), Eq. 44."""
        mean = self._total(slots, contributors, sample_count) / sample_count
        return mean.astype(np.float32)

    def total(self, sums: Rows, size: int, contributors: int, sample_count: int) -> NDArray[np.float64]:
        """Σ|D_i|·q_i / 2^f of `size` numbers: the weighted sum itself, before Eq. 44 divides it by Σ|D_i|."""
        self._check_sum(contributors, sample_count)
        return self._total(self.rows.unpack(sums, size), contributors, sample_count)

    def _total(self, slots: Slots, contributors: int, sample_count: int) -> NDArray[np.float64]:
        check_slots(slots, contributors, 2 * self.offset * sample_count)
        # Wraps modulo 2^64 to the signed sum, which lies within ±2^63.
        totals = (slots.astype(np.uint64, copy=False) - np.uint64(self.offset * sample_count)).view(np.int64)
        # Dividing by a power of two rounds nothing, so the order of the two divisions does not matter.
        return totals.astype(np.float64) / 2.0**self.fraction_bits
