"""The portable arithmetic engine: GMP, through gmpy2.

`gmpy2.powmod_base_list` releases the interpreter lock, so powers run on all cores. Single products
do not: they take a few microseconds, less than handing over the lock.
"""

import secrets
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz

from dapfl.arrays import Rows
from dapfl.crypto.engines.base import Remainders, Ring, spread, to_rows
from dapfl.errors import InvalidCiphertext


class GmpEngine:
    """Works everywhere."""

    name = "gmp"

    def ring(self, root: int) -> Ring:
        """The ring modulo root²."""
        return GmpRing(root)

    def remainders(self, p: int, q: int) -> Remainders:
        """What joins numbers modulo p and modulo q."""
        return GmpRemainders(p, q)


class GmpRemainders:
    """Chinese remainders as Garner computes them: low + p·((high - low)/p mod q)."""

    def __init__(self, p: int, q: int) -> None:
        self._p, self._q, self._inverse = mpz(p), mpz(q), gmpy2.invert(p, q)
        self._width = ((p * q).bit_length() + 7) // 8

    def combine(self, low: Rows, high: Rows) -> Rows:
        """The numbers below p·q that are `low` modulo p and `high` modulo q, row by row."""
        p, q, inverse = self._p, self._q, self._inverse
        pairs = zip(_numbers(low), _numbers(high), strict=True)
        return to_rows((a + p * ((b - a) * inverse % q) for a, b in pairs), self._width)


class GmpRing(Ring):
    """The integers modulo root², computed by GMP."""

    def __init__(self, root: int) -> None:
        super().__init__(root)
        self._root, self._modulus = mpz(root), mpz(root * root)
        self._blinding = mpz(0)

    def _powers(self, bases: Rows, exponent: int, messages: Rows | None, scale: int) -> Rows:
        def work(rows: slice) -> Rows:
            powers = gmpy2.powmod_base_list(_numbers(bases[rows]), exponent, self._modulus)
            return self._rows(powers, None if messages is None else messages[rows], scale)

        return spread(work, len(bases), 1)

    def _residue_powers(self, bases: Rows, exponent: int) -> Rows:
        """By `mpz_powm_sec`: half as long again as `mpz_powm`, but as long for every exponent."""
        secret = mpz(exponent)
        powers = [gmpy2.powmod_sec(base % self._root, secret, self._root) for base in _numbers(bases)]
        return to_rows(powers, self.root_bytes)

    def _quotients(self, bases: Rows, exponent: int, scale: int) -> Rows:
        blinded = self._blind(_numbers(bases))

        def work(rows: slice) -> Rows:
            powers = gmpy2.powmod_base_list(blinded[rows], exponent, self._modulus)
            quotients = []
            for index, power in enumerate(powers):
                quotient, one = gmpy2.f_divmod(power, self._root)
                if one != 1:
                    raise InvalidCiphertext(f"Number {rows.start + index} is not a ciphertext of this key.")
                quotients.append(quotient * scale % self._root)
            return to_rows(quotients, self.root_bytes)

        return spread(work, len(bases), 1)

    def _blind(self, bases: list[Any]) -> list[Any]:
        """Each base times a fresh root-th power, which the exponent sends to 1.

        `mpz_powm` takes a time that depends on its base; whoever chose the ciphertext no longer
        knows the base. The factors are successive squares of a random one.
        """
        factor = self._blinding
        while gmpy2.gcd(factor, self._root) != 1:
            seed = mpz(secrets.randbelow(self.modulus))
            factor = gmpy2.powmod(seed, self._root, self._modulus)
        blinded = []
        for base in bases:
            factor = factor * factor % self._modulus
            blinded.append(base * factor % self._modulus)
        self._blinding = factor
        return blinded

    def _product(self, batches: list[Rows]) -> Rows:
        products = _numbers(batches[0])
        for batch in batches[1:]:
            products = [a * b % self._modulus for a, b in zip(products, _numbers(batch), strict=True)]
        return to_rows(products, self.modulus_bytes)

    def _power_product(self, bases: Rows, exponents: Rows, width: int) -> Rows:
        """Pippenger's buckets: bases whose exponents have the same digit are multiplied first."""
        modulus = self._root if width == self.root_bytes else self._modulus
        numbers, total = [base % modulus for base in _numbers(bases)], mpz(1)
        for digits in reversed(_nibbles(exponents).T.tolist()):
            buckets = [mpz(1)] * 16
            for base, digit in zip(numbers, digits, strict=True):
                if digit:
                    buckets[digit] = buckets[digit] * base % modulus
            # ∏ bucket^digit: a bucket is multiplied in as often as its digit says.
            above = part = mpz(1)
            for bucket in reversed(buckets[1:]):
                above = above * bucket % modulus
                part = part * above % modulus
            total = gmpy2.powmod(total, 16, modulus) * part % modulus
        return to_rows([total], width)

    def build_table(
        self, base: int, exponent_bytes: int, window: int, spacing: int
    ) -> list[tuple[list[Any], list[Any]]]:
        """Row i: the units and the logs of base^(v·2^(window·spacing·i)) for all digits v (`fixed_base`)."""
        rows, power, table = -(-8 * exponent_bytes // (window * spacing)), mpz(base), []
        for index in range(rows):
            if index:
                power = gmpy2.powmod(power, mpz(1) << (window * spacing), self._modulus)
            inverse_power = gmpy2.invert(power, self._root)
            units, logs, entry, inverse = [], [], mpz(1), mpz(1)
            for _ in range(1 << window):
                upper, unit = gmpy2.f_divmod(entry, self._root)
                units.append(unit)
                logs.append(upper * inverse % self._root)
                entry = entry * power % self._modulus
                inverse = inverse * inverse_power % self._root
            table.append((units, logs))
        return table

    def table_powers(
        self, table: Any, exponents: Rows, window: int, spacing: int, messages: Rows | None, scale: int
    ) -> Rows:
        """See `Ring.table_powers`; for a table of one row, GMP's own powers are faster."""
        modulus = self._modulus
        if len(table) == 1:
            units, logs = table[0]
            base = units[1] * (1 + logs[1] * self._root)
            return self._rows(gmpy2.powmod_exp_list(base, _numbers(exponents), modulus), messages, scale)
        digits = (exponents if window == 8 else _nibbles(exponents)).T.tolist()
        powers, sums = [mpz(1)] * len(exponents), [mpz(0)] * len(exponents)
        for start in reversed(range(spacing)):
            if start < spacing - 1:
                powers = gmpy2.powmod_base_list(powers, 1 << window, modulus)
                sums = [total << window for total in sums]
            # All exponents take their entries of a row in turn: a row stays in the cache, a table does not.
            for (units, logs), row in zip(table, digits[start::spacing], strict=False):
                powers = [x * units[digit] % modulus for x, digit in zip(powers, row, strict=True)]
                sums = [total + logs[digit] for total, digit in zip(sums, row, strict=True)]
        return self._rows(powers, messages, scale, sums)

    def _rows(
        self, powers: Iterable[Any], messages: Rows | None, scale: int, logs: Iterable[Any] = repeat(0)
    ) -> Rows:
        """power · (1 + (log + scale·message)·root), row by row."""
        root, modulus = self._root, self._modulus
        texts = repeat(0) if messages is None else _numbers(messages)
        parts = zip(powers, logs, texts, strict=False)
        return to_rows(
            [power * (1 + (log + scale * text) % root * root) % modulus for power, log, text in parts],
            self.modulus_bytes,
        )


def _numbers(rows: Rows) -> list[Any]:
    """The rows of a matrix as GMP's integers, read as one number and cut, which takes less time."""
    numbers: list[Any] = gmpy2.unpack(mpz.from_bytes(rows.tobytes(), "little"), 8 * rows.shape[1])
    # Rows of zeros at the end leave no trace in a number, and no rows at all are still the number 0.
    return (numbers + [mpz(0)] * (len(rows) - len(numbers)))[: len(rows)]


def _nibbles(rows: Rows) -> Rows:
    """Every byte as two digits of four bits, the low one first."""
    return np.stack([rows & 15, rows >> 4], axis=2).reshape(len(rows), 2 * rows.shape[1])
