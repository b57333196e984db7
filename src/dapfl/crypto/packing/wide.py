"""Numbers of any size: what a model measures instead of learning, such as running variances.

A variance of raw features is a million as easily as one, and it is there after the first round: no range
could follow it. So tensors marked `wide` travel apart. A number x of client i becomes the integer
|D_i|·round(x·2^32), written in as many digits as the largest one needs, and each digit takes a slot.

No sum crosses its slot. With L = ⌊(256^slot_bytes − 1)/(2·max_clients)⌋ the base is the largest power of two
that is at most L, all digits of a number have its sign, and a slot holds digit + L, from 1 to 2L − 1. The sum
of m ≤ max_clients of them is at most 2L·m ≤ 256^slot_bytes − 1; m is known when the sum is decoded, so m·L is
subtracted exactly. The digits' sums, put together as integers, are the sum of the numbers: exact, as it is
for narrow tensors. Which tensors are wide is public and the same for all, so their slots tell nothing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapfl.arrays import Vector
from dapfl.crypto.packing.bounds import Bounds, altered_sum
from dapfl.crypto.packing.slots import Slots
from dapfl.errors import EncodingError

LARGEST_WIDE = 2.0**64
FRACTION_BITS = 32


class WideNumbers:
    """Lays out numbers within ±2^64 as digits in slots."""

    def __init__(self, bounds: Bounds, slot_bytes: int) -> None:
        self.offset: int = (256**slot_bytes - 1) // (2 * bounds.max_clients)
        self._bits = self.offset.bit_length() - 1  # of a digit
        if self._bits < 1:
            raise EncodingError(
                f"Slots of {slot_bytes} bytes cannot hold the digits of {bounds.max_clients} clients."
            )
        most = bounds.max_samples * int(LARGEST_WIDE) << FRACTION_BITS
        self.digits: int = -(-most.bit_length() // self._bits)

    def encode(self, numbers: Vector, sample_count: int) -> Slots:
        """The slots of |D_i|·x: the lowest digits of all numbers, then the next ones."""
        # A float32 times a power of two is exact in float64, so rint is the only rounding.
        scaled = np.rint(numbers.astype(np.float64) * 2.0**FRACTION_BITS)
        sign = np.sign(scaled).astype(np.int64)
        rest = _integers(np.abs(scaled)) * sample_count
        slots = np.empty((self.digits, len(numbers)), np.uint64)
        for place in range(self.digits):
            digit = (rest >> (place * self._bits)) & ((1 << self._bits) - 1)
            slots[place] = (sign * digit + self.offset).astype(np.uint64)
        return slots.reshape(-1)

    def decode(self, slots: Slots, contributors: int, sample_count: int) -> Vector:
        """Σ|D_i|·x_i / Σ|D_i|, the mean of Eq. 44."""
        sums = slots.astype(object).reshape(self.digits, -1) - contributors * self.offset
        total = sum(sums[place] << (place * self._bits) for place in range(self.digits))
        most = sample_count * int(LARGEST_WIDE) << FRACTION_BITS
        if len(slots) and max(abs(total)) > most:
            raise altered_sum(contributors)
        # A quotient of integers is rounded once, to the nearest float64; the last rounding is to float32.
        mean: Vector = (total / (sample_count << FRACTION_BITS)).astype(np.float32)
        return mean


def _integers(numbers: NDArray[np.float64]) -> NDArray[Any]:
    """Whole floats as Python's integers, which have no largest."""
    integers = np.empty(len(numbers), object)
    integers[:] = [int(number) for number in numbers]
    return integers
