"""Rows of slots: many small non-negative integers inside each big plaintext.

A plaintext is a row of `plaintext_bytes` bytes, little-endian, smaller than n whatever it holds.
It carries `per_row` slots of `slot_bytes` whole bytes each; slot k is worth 256^(k·slot_bytes).
Slots never straddle rows and the bytes left over at the top of a row are zero.

Adding two rows as integers adds their slots, as long as no slot's sum reaches 256^slot_bytes: then
nothing carries into the neighbour, and no row reaches 256^plaintext_bytes ≤ n. The codecs
prove that bound; this module only lays out bytes.

>>> rows = SlotRows(slot_bytes=2, plaintext_bytes=5).pack(np.array([1, 2, 258], dtype=np.uint64))
>>> rows.tolist()
[[1, 0, 2, 0, 0], [2, 1, 0, 0, 0]]
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapfl.arrays import Rows
from dapfl.errors import EncodingError

Slots = NDArray[np.unsignedinteger[Any]]

# A slot's value is handled as one machine word of 1, 2, 4 or 8 bytes.
WIDEST = 8


@dataclass(frozen=True)
class SlotRows:
    """The layout of slots in plaintext rows."""

    slot_bytes: int
    plaintext_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.slot_bytes <= WIDEST:
            raise EncodingError(f"A slot of {self.slot_bytes} bytes cannot be laid out: 1 to {WIDEST} can.")
        if self.per_row == 0:
            raise EncodingError(
                f"A plaintext of {self.plaintext_bytes} bytes cannot hold a slot of {self.slot_bytes} bytes: "
                "use a larger key."
            )

    @property
    def per_row(self) -> int:
        """How many slots one plaintext holds."""
        return self.plaintext_bytes // self.slot_bytes

    @property
    def _word(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The smallest word that holds a slot."""
        return np.dtype(f"<u{next(width for width in (1, 2, 4, 8) if width >= self.slot_bytes)}")

    def empty(self, size: int) -> Slots:
        """Room for the values of `size` slots."""
        return np.empty(size, self._word)

    def row_count(self, size: int) -> int:
        """How many plaintexts `size` slots need."""
        return -(-size // self.per_row)

    def pack(self, slots: Slots) -> Rows:
        """The rows that hold these slots; the last row is filled up with zeros."""
        count = self.row_count(len(slots))
        octets = np.ascontiguousarray(slots, dtype=self._word).view(np.uint8)
        octets = octets.reshape(len(slots), self._word.itemsize)
        padded = np.zeros((count * self.per_row, self.slot_bytes), dtype=np.uint8)
        padded[: len(slots)] = octets[:, : self.slot_bytes]
        rows = np.zeros((count, self.plaintext_bytes), dtype=np.uint8)
        rows[:, : self.per_row * self.slot_bytes] = padded.reshape(count, -1)
        return rows

    def unpack(self, rows: Rows, size: int) -> Slots:
        """The first `size` slots of rows; decrypted rows may be wider than the plaintexts were."""
        used = self.per_row * self.slot_bytes
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[0] != self.row_count(size):
            shape = f"{rows.dtype} {'x'.join(map(str, rows.shape))}"
            raise EncodingError(
                f"{size} numbers take {self.row_count(size)} rows of bytes; these are {shape}: "
                "they were packed for another vector or another key."
            )
        if rows.shape[1] < used or rows[:, used:].any():
            raise EncodingError(
                f"The rows do not hold {self.per_row} slots of {self.slot_bytes} bytes and nothing else: "
                "they were packed by another codec, or decrypted with the wrong key."
            )
        slots = np.zeros(rows.shape[0] * self.per_row, self._word)
        octets = slots.view(np.uint8).reshape(len(slots), self._word.itemsize)
        octets[:, : self.slot_bytes] = rows[:, :used].reshape(-1, self.slot_bytes)
        return slots[:size]

    def add(self, batches: Iterable[Rows]) -> Rows:
        """The slot-wise sum of batches of equal shape: what the product of their ciphertexts decrypts to."""
        total: Slots | None = None
        rows = 0
        for batch in batches:
            slots = self.unpack(batch, len(batch) * self.per_row)
            if total is None:
                total, rows = slots.copy(), len(batch)
            elif len(batch) != rows:
                raise EncodingError(f"A batch of {len(batch)} rows cannot be added to batches of {rows}.")
            else:
                total += slots
        if total is None:
            raise EncodingError("There is nothing to add: the list of batches is empty.")
        return self.pack(total)
