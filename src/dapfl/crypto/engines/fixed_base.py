"""Powers of a fixed base from tables, and how much memory the tables of a process may take.

With an exponent written in digits of `window` bits, e = Σ d_j·2^(window·j), a table row i holds
base^(v·2^(window·spacing·i)) for every digit v. The power is a product of one entry for every
digit; the digits that fall between two rows are reached by `window` squarings, `spacing - 1`
times in all. A wide spacing makes a small table:

    uses of the base   (window, spacing)   entries   2048-bit key   work for one power
    1                  (4, every digit)         16   10 KB          1,024 squarings, 256 products
    from 2             (4, 8)                  512   0.3 MB         28 squarings, 256 products
    from 64            (8, 6)                5,632   3.6 MB         40 squarings, 128 products
    from 1,024         (8, 2)               16,384   10 MB          8 squarings, 128 products

An entry y is kept as two numbers below the root: its unit y mod root, and its log, for which
y = unit·(1 + log·root) modulo root². Factors 1 + log·root multiply by adding their logs, so a
product of entries is a product by units, half as wide as y, and a sum of logs that is multiplied
in once, at the end. Entries have logs only if the base is a unit.

So a base earns its table by use. Tables are shared by the equal keys of a process; together they
stay below `MEMORY_LIMIT`, the least recently used being dropped, and no table grows to the largest
size while that would take more than half of the limit: twenty keys in turn must not displace each other.
"""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

import gmpy2
import numpy as np

from dapfl.arrays import Rows
from dapfl.crypto.engines.base import Ring, check_rows
from dapfl.errors import CryptoError

MEMORY_LIMIT = 96 * 2**20
_SHAPES = ((1024, 8, 2), (64, 8, 6), (2, 4, 8))  # uses, window, spacing


@dataclass
class _Entry:
    uses: int = 0
    window: int = 0
    spacing: int = 0
    table: Any = None
    size: int = 0


class TableCache:
    """The tables of this process, the least recently used first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[tuple[type[Ring], int, int, int], _Entry] = OrderedDict()
        self._lock = Lock()

    @property
    def size(self) -> int:
        """Bytes held, as 64-bit limbs."""
        return sum(entry.size for entry in self._entries.values())

    def table(self, ring: Ring, base: int, exponent_bytes: int, uses: int) -> tuple[Any, int, int]:
        """A table, its window and its spacing, worth building for that many more uses."""
        with self._lock:
            entry = self._entries.setdefault((type(ring), ring.root, base, exponent_bytes), _Entry())
            self._entries.move_to_end((type(ring), ring.root, base, exponent_bytes))
            entry.uses += uses
            window, spacing = self._shape(entry, ring, exponent_bytes)
            if (entry.window, entry.spacing) != (window, spacing):
                entry.table = ring.build_table(base, exponent_bytes, window, spacing)
                entry.window, entry.spacing = window, spacing
                entry.size = _size(ring, exponent_bytes, window, spacing)
                self._shrink()
            return entry.table, window, spacing

    def _shape(self, entry: _Entry, ring: Ring, exponent_bytes: int) -> tuple[int, int]:
        """The window and the spacing that the uses of a base have earned."""
        for uses, window, spacing in _SHAPES:
            if entry.uses >= uses:
                largest = (window, spacing) == _SHAPES[0][1:]
                spacing = min(spacing, 8 * exponent_bytes // window)
                growth = _size(ring, exponent_bytes, window, spacing) - entry.size
                if not largest or growth == 0 or self.size + growth <= self.limit // 2:
                    return window, spacing
        return 4, 2 * exponent_bytes

    def _shrink(self) -> None:
        while self.size > self.limit and len(self._entries) > 1:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget every table."""
        with self._lock:
            self._entries.clear()


TABLES = TableCache(MEMORY_LIMIT)


def _size(ring: Ring, exponent_bytes: int, window: int, spacing: int) -> int:
    """Bytes of a table: every entry is two numbers below the root, with some room."""
    rows = -(-8 * exponent_bytes // (window * spacing))
    return (rows << window) * (2 * ring.root_bytes * 5 // 4)


class TabledBase:
    """Powers of one base, with the table that its use has earned."""

    def __init__(self, ring: Ring, base: int, exponent_bytes: int) -> None:
        if exponent_bytes < 1:
            raise CryptoError("An exponent needs at least one byte.")
        if gmpy2.gcd(base, ring.root) != 1:
            raise CryptoError("A fixed base must be a unit modulo the root.")
        self._ring, self._base, self._exponent_bytes = ring, base, exponent_bytes

    def powers(self, exponents: Rows, messages: Rows | None = None, scale: int = 1) -> Rows:
        """base^exponent · (1 + scale·message·root) modulo root², row by row."""
        exponents = check_rows(exponents, self._exponent_bytes, "Exponents")
        if exponents.shape[1] != self._exponent_bytes:
            raise CryptoError(f"Exponents of this base have {self._exponent_bytes} bytes.")
        messages = self._ring.check_messages(messages, len(exponents))
        if not len(exponents):
            return np.empty((0, self._ring.modulus_bytes), np.uint8)
        table, window, spacing = TABLES.table(self._ring, self._base, self._exponent_bytes, len(exponents))
        return self._ring.table_powers(table, exponents, window, spacing, messages, scale % self._ring.root)
