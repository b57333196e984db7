"""The native arithmetic engines: C that computes, with vectors, on several numbers in lockstep.

`ifma` needs AVX-512 IFMA (Intel since 2019, AMD since 2022), `avx2` an x86-64 with AVX2 and FMA
(since 2013 and 2015), `portable` any 64-bit machine. The extension is built with the package if there is
a C compiler, and is silently absent if there is none. What the CPU can do is found out at run time.

The C code works on limbs and on pairs: x modulo root² is x0 + x1·root, with both parts modulo
root, which takes fewer products than arithmetic modulo a number of twice the size. This file
prepares the constants of a root; native/batch.h says what they are.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from dapfl.arrays import Rows
from dapfl.crypto.engines.base import Remainders, Ring, spread, to_ints, to_rows
from dapfl.crypto.engines.gmp import GmpRemainders, GmpRing
from dapfl.errors import InvalidCiphertext

Words = npt.NDArray[np.uint64]

# As in native/batch.h.
_BITS, _MAX_LIMBS, _CHUNKS, _MESSAGE_CHUNKS = 52, 80, 4, 2
_SMALLEST_ROOT = 64
_LINE = 64  # bytes of a cache line


def _load() -> ModuleType | None:
    try:
        return importlib.import_module("dapfl.crypto.engines._native")
    except ImportError:
        return None


_native: Any = _load()


def usable() -> tuple[str, ...]:
    """The native engines that this machine has, the fastest first."""
    return tuple(name for name, _ in _native.backends()) if _native else ()


class NativeEngine:
    """Computes with one backend of the C extension; roots too small or too large are left to GMP."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lanes: int = dict(_native.backends())[name]

    def ring(self, root: int) -> Ring:
        """The ring modulo root²."""
        limbs = _limbs(root.bit_length())
        if root.bit_length() < _SMALLEST_ROOT or limbs > _MAX_LIMBS:
            return GmpRing(root)
        return NativeRing(root, self, limbs)

    def remainders(self, p: int, q: int) -> Remainders:
        """What joins numbers modulo p and modulo q."""
        ring = self.ring(q)
        if isinstance(ring, NativeRing) and p.bit_length() <= q.bit_length() + 2:
            return NativeRemainders(p, ring)
        return GmpRemainders(p, q)


class NativeRing(Ring):
    """The integers modulo root², computed by the C extension."""

    def __init__(self, root: int, engine: NativeEngine, limbs: int) -> None:
        super().__init__(root)
        self.backend, self.lanes = engine.name, engine.lanes
        self._limbs = limbs
        self.radix = 1 << (_BITS * limbs)
        self.constants = self._prepare()
        self._scales: dict[int, Words] = {}

    def _prepare(self) -> Words:
        limbs, root, modulus = self._limbs, self.root, self.modulus
        cut = _cut(root.bit_length())
        mu = (1 << (_BITS * (cut + 2 * limbs))) // modulus
        minus_inverse = -pow(root, -1, 1 << (4 * _BITS)) % (1 << (4 * _BITS))
        header = [limbs, self.root_bytes, self.modulus_bytes, cut]
        lift = [self._pair(pow(self.radix, power + 2, modulus)) for power in range(_CHUNKS)]
        return np.concatenate(
            [
                np.array(header, np.uint64),
                self._words(minus_inverse, 4),
                self.words(root),
                self._cover(),
                self._pair(self.radix % modulus),
                *lift,
                self._words(modulus, 2 * limbs),
                self._words(mu, 2 * limbs),
            ]
        )

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """What rings that share lanes have in common."""
        return self.backend, self._limbs, self.root_bytes, self.modulus_bytes

    def montgomery(self, number: int) -> Words:
        """The limbs of number·R modulo the root."""
        return self._scale(number % self.root)[: self._limbs]

    def words(self, number: int) -> Words:
        """The limbs of a number as long as the root."""
        return self._words(number, self._limbs)

    def _words(self, number: int, limbs: int) -> Words:
        mask = (1 << _BITS) - 1
        return np.array([number >> (_BITS * i) & mask for i in range(limbs)], np.uint64)

    def _pair(self, number: int) -> Words:
        """x0 + x1·root as the limbs of x0 and of x1."""
        upper, lower = divmod(number, self.root)
        return np.concatenate([self.words(lower), self.words(upper)])

    def _cover(self) -> Words:
        """A multiple of the root, above 2R, in limbs of at least 2^52 - 1: less any q, none is negative."""
        base = 1 << _BITS
        multiple = (2 * self.radix // self.root + 1) * self.root
        words = [multiple >> (_BITS * i) & (base - 1) for i in range(self._limbs - 1)]
        words.append(multiple >> (_BITS * (self._limbs - 1)))
        for i in range(self._limbs - 1):
            words[i] += base
            words[i + 1] -= 1
        return np.array(words, np.uint64)

    def _scale(self, scale: int) -> Words:
        """scale·R^(i+1) modulo the root, for every chunk i of a message."""
        if scale not in self._scales:
            numbers = [scale * pow(self.radix, i + 1, self.root) % self.root for i in range(_MESSAGE_CHUNKS)]
            self._scales[scale] = np.concatenate([self.words(number) for number in numbers])
        return self._scales[scale]

    def _powers(self, bases: Rows, exponent: int, messages: Rows | None, scale: int) -> Rows:
        def fill(rows: slice, out: Rows) -> None:
            part = None if messages is None else messages[rows]
            width = 0 if messages is None else messages.shape[1]
            _native.powers(
                self.backend,
                self.constants,
                bases[rows],
                bases.shape[1],
                _bytes(exponent),
                part,
                width,
                self._scale(scale),
                out,
            )

        return _filled(fill, len(bases), self.modulus_bytes, self.lanes)

    def _public_powers(self, bases: Rows, exponent: int) -> Rows:
        if not hasattr(_native, "public_powers"):
            return self._powers(bases, exponent, None, 1)  # an older extension

        def fill(rows: slice, out: Rows) -> None:
            width = bases.shape[1]
            _native.public_powers(self.backend, self.constants, bases[rows], width, _bytes(exponent), out)

        return _filled(fill, len(bases), self.modulus_bytes, self.lanes)

    def _residue_powers(self, bases: Rows, exponent: int) -> Rows:
        def fill(rows: slice, out: Rows) -> None:
            width = bases.shape[1]
            _native.residue_powers(self.backend, self.constants, bases[rows], width, _bytes(exponent), out)

        return _filled(fill, len(bases), self.root_bytes, self.lanes)

    def _quotients(self, bases: Rows, exponent: int, scale: int) -> Rows:
        factor = self.montgomery(scale)

        def fill(rows: slice, out: Rows) -> None:
            width = bases.shape[1]
            bad = _native.quotients(
                self.backend, self.constants, bases[rows], width, _bytes(exponent), factor, out
            )
            if bad < len(out):
                raise InvalidCiphertext(f"Number {rows.start + bad} is not a ciphertext of this key.")

        return _filled(fill, len(bases), self.root_bytes, self.lanes)

    def _product(self, batches: list[Rows]) -> Rows:
        def fill(rows: slice, out: Rows) -> None:
            _native.product(self.backend, self.constants, tuple(batch[rows] for batch in batches), out)

        return _filled(fill, len(batches[0]), self.modulus_bytes, 64 * self.lanes)

    def _power_product(self, bases: Rows, exponents: Rows, width: int) -> Rows:
        def work(rows: slice) -> Rows:
            out = np.empty((1, width), np.uint8)
            widths = bases.shape[1], exponents.shape[1]
            _native.power_product(
                self.backend, self.constants, bases[rows], widths[0], exponents[rows], widths[1], out
            )
            return out

        # With fewer rows, squarings that threads do not share would cost more than the threads save.
        parts = spread(work, len(bases), 16 * self.lanes)
        modulus = self.root if width == self.root_bytes else self.modulus
        return to_rows([math.prod(to_ints(parts)) % modulus], width)

    def combine(self, low: Rows, high: Rows, p: Words, inverse: Words, width: int) -> Rows:
        """low + p·((high - low)·inverse modulo root); inverse is in Montgomery form."""

        def fill(rows: slice, out: Rows) -> None:
            widths = low.shape[1], high.shape[1]
            _native.combine(
                self.backend,
                self.constants,
                low[rows],
                widths[0],
                high[rows],
                widths[1],
                p,
                inverse,
                out,
                width,
            )

        return _filled(fill, len(low), width, 64 * self.lanes)

    def build_table(self, base: int, exponent_bytes: int, window: int, spacing: int) -> Any:
        """See `Ring.build_table`: the limbs of a unit and of its log, entry after entry."""
        rows = -(-8 * exponent_bytes // (window * spacing))
        table = _on_lines((rows << window) * 2 * self._limbs)
        row = base.to_bytes(self.modulus_bytes, "little")
        inverse = self.words(self.radix * pow(base, -1, self.root) % self.root)
        _native.build_table(
            self.backend, self.constants, row, inverse, window, spacing, exponent_bytes, table
        )
        return table

    def table_powers(
        self, table: Any, exponents: Rows, window: int, spacing: int, messages: Rows | None, scale: int
    ) -> Rows:
        """See `Ring.table_powers`."""

        def fill(rows: slice, out: Rows) -> None:
            part = None if messages is None else messages[rows]
            width = 0 if messages is None else messages.shape[1]
            _native.table_powers(
                self.backend,
                self.constants,
                table,
                window,
                spacing,
                exponents.shape[1],
                exponents[rows],
                part,
                width,
                self._scale(scale),
                out,
            )

        return _filled(fill, len(exponents), self.modulus_bytes, self.lanes)


def share_lanes(rings: Sequence[Ring]) -> TypeGuard[Sequence[NativeRing]]:
    """Whether numbers of these rings can share lanes: same engine, same sizes, more than one ring."""
    if not hasattr(_native, "lane_quotients_residues"):
        return False  # an extension that was built before the last change of its sources
    shapes = {ring.shape if isinstance(ring, NativeRing) else None for ring in rings}
    return len(rings) > 1 and len(shapes) == 1 and None not in shapes


def lane_powers(rings: Sequence[NativeRing], bases: Rows, exponents: Sequence[int], messages: Rows) -> Rows:
    """base^exponent · (1 + message·root) modulo root², each row in its own ring."""
    first, constants, digits = _lanes(rings, exponents)

    def fill(rows: slice, out: Rows) -> None:
        _native.lane_powers(
            first.backend,
            len(out),
            constants[rows],
            bases[rows],
            bases.shape[1],
            digits[rows],
            digits.shape[1],
            messages[rows],
            messages.shape[1],
            out,
        )

    return _filled(fill, len(rings), first.modulus_bytes, first.lanes)


def lane_quotients(
    rings: Sequence[NativeRing], bases: Rows, exponents: Sequence[int], scales: Sequence[int]
) -> tuple[Rows, Rows]:
    """L(base^exponent)·scale, and base^exponent modulo the root, each row in its own ring."""
    first, constants, digits = _lanes(rings, exponents)
    factors = np.stack([ring.montgomery(scale) for ring, scale in zip(rings, scales, strict=True)])
    residues = np.empty((len(rings), first.root_bytes), np.uint8)

    def fill(rows: slice, out: Rows) -> None:
        _native.lane_quotients_residues(
            first.backend,
            len(out),
            constants[rows],
            bases[rows],
            bases.shape[1],
            digits[rows],
            digits.shape[1],
            factors[rows],
            out,
            residues[rows],
        )

    return _filled(fill, len(rings), first.root_bytes, first.lanes), residues


def _filled(fill: Callable[[slice, Rows], None], count: int, width: int, grain: int) -> Rows:
    """`count` rows of `width` bytes, which `fill` writes slice by slice, on as many threads as allowed."""

    def work(rows: slice) -> Rows:
        out = np.empty((rows.stop - rows.start, width), np.uint8)
        fill(rows, out)
        return out

    return spread(work, count, grain)


def _on_lines(count: int) -> Words:
    """Room for words that begins with a cache line: then an entry of a table takes no more lines than it
    fills, and all of them are fetched ahead."""
    room = np.empty(count + _LINE // 8, np.uint64)
    start = -room.ctypes.data % _LINE // 8
    return room[start : start + count]


def _lanes(rings: Sequence[NativeRing], exponents: Sequence[int]) -> tuple[NativeRing, Words, Rows]:
    """A ring for the sizes, the constants of all rings, and the exponents as rows of one width."""
    width = max((exponent.bit_length() + 7) // 8 for exponent in exponents)
    return rings[0], np.stack([ring.constants for ring in rings]), to_rows(exponents, width)


class NativeRemainders:
    """Chinese remainders as Garner computes them, modulo p and the root of a ring."""

    def __init__(self, p: int, ring: NativeRing) -> None:
        self._ring, self._p = ring, ring.words(p)
        self._inverse = ring.words(ring.radix * pow(p, -1, ring.root) % ring.root)
        self._width = ((p * ring.root).bit_length() + 7) // 8

    def combine(self, low: Rows, high: Rows) -> Rows:
        """The numbers below p·root that are `low` modulo p and `high` modulo root, row by row."""
        return self._ring.combine(low, high, self._p, self._inverse, self._width)


def _limbs(root_bits: int) -> int:
    """Limbs of a root: 8 bits to spare for sums, blocks of 4, and room for Barrett's quotient."""
    limbs = -(-(root_bits + 8) // (4 * _BITS)) * 4
    fits = 4 * root_bits - _BITS * _cut(root_bits) <= 2 * _BITS * limbs - 8
    return limbs if fits else limbs + 4


def _cut(root_bits: int) -> int:
    """Barrett: how many low limbs of a product of two numbers below N = root² the quotient ignores.

    2^(52·cut) is below 2^-7·N, and `_limbs` keeps the rest below 2^(104·limbs - 8). So what `cut`
    ignores is worth less than 2^-7 of a unit, what μ rounds off less than 2^-8, and the estimate
    ⌊rest·μ / 2^(104·limbs)⌋ is the quotient or one less.
    """
    return (2 * root_bits - 9) // _BITS


def _bytes(exponent: int) -> bytes:
    return exponent.to_bytes((exponent.bit_length() + 7) // 8, "little")
