"""The portable engine: GMP, through gmpy2.

`gmpy2.powmod_base_list` lets go of the interpreter's lock, so powers run on all cores. Single
products do not: they take a few microseconds, less than handing the lock over.
"""

import secrets
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz

from dapfl.crypto.engine import Matrix, Remainders, Ring, spread, to_rows
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

    def combine(self, low: Matrix, high: Matrix) -> Matrix:
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

    def _powers(self, bases: Matrix, exponent: int, messages: Matrix | None, scale: int) -> Matrix:
        def work(rows: slice) -> Matrix:
            powers = gmpy2.powmod_base_list(_numbers(bases[rows]), exponent, self._modulus)
            return self._rows(powers, None if messages is None else messages[rows], scale)

        return spread(work, len(bases), 1)

    def _quotients(self, bases: Matrix, exponent: int, scale: int) -> Matrix:
        blinded = self._blind(_numbers(bases))

        def work(rows: slice) -> Matrix:
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

    def _product(self, batches: list[Matrix]) -> Matrix:
        products = _numbers(batches[0])
        for batch in batches[1:]:
            products = [a * b % self._modulus for a, b in zip(products, _numbers(batch), strict=True)]
        return to_rows(products, self.modulus_bytes)

    def build_table(
        self, base: int, exponent_bytes: int, window: int, spacing: int
    ) -> list[list[tuple[Any, Any]]]:
        """Entry [i][v] is the pair of base^(v·2^(window·spacing·i)): x = x0 + x1·root as (x0, x1)."""
        rows, power, table = -(-8 * exponent_bytes // (window * spacing)), mpz(base), []
        for index in range(rows):
            if index:
                power = gmpy2.powmod(power, mpz(1) << (window * spacing), self._modulus)
            row = [mpz(1)]
            for _ in range((1 << window) - 1):
                row.append(row[-1] * power % self._modulus)
            table.append([gmpy2.f_divmod(entry, self._root)[::-1] for entry in row])
        return table

    def table_powers(
        self, table: Any, exponents: Matrix, window: int, spacing: int, messages: Matrix | None, scale: int
    ) -> Matrix:
        """See `Ring.table_powers`; a table of one row is nothing that GMP does not do better itself."""
        if len(table) == 1:
            lower, upper = table[0][1]
            powers = gmpy2.powmod_exp_list(lower + upper * self._root, _numbers(exponents), self._modulus)
        else:
            digits = exponents if window == 8 else _nibbles(exponents)
            powers = [self._table_power(table, row.tobytes(), window, spacing) for row in digits]
        return self._rows(powers, messages, scale)

    def _table_power(self, table: Any, digits: bytes, window: int, spacing: int) -> Any:
        """A product of pairs: three small products and two small divisions beat one large of each."""
        root, divide = self._root, gmpy2.f_divmod
        x0, x1 = mpz(1), mpz(0)
        for start in reversed(range(spacing)):
            for _ in range(window if start < spacing - 1 else 0):
                carry, lower = divide(x0 * x0, root)
                x0, x1 = lower, (2 * x0 * x1 + carry) % root
            for row, digit in zip(table, digits[start::spacing], strict=False):
                y0, y1 = row[digit]
                carry, lower = divide(x0 * y0, root)
                x0, x1 = lower, (x0 * y1 + x1 * y0 + carry) % root
        return x0 + x1 * root

    def _rows(self, powers: list[Any], messages: Matrix | None, scale: int) -> Matrix:
        """Powers, times 1 + scale·message·root if there are messages."""
        if messages is not None:
            root, modulus = self._root, self._modulus
            pairs = zip(powers, _numbers(messages), strict=True)
            powers = [power * (1 + message * scale % root * root) % modulus for power, message in pairs]
        return to_rows(powers, self.modulus_bytes)


def _numbers(rows: Matrix) -> list[Any]:
    data, width = rows.tobytes(), rows.shape[1]
    read = mpz.from_bytes
    return [read(data[start : start + width], "little") for start in range(0, len(data), width)]


def _nibbles(rows: Matrix) -> Matrix:
    """Every byte as two digits of four bits, the low one first."""
    return np.stack([rows & 15, rows >> 4], axis=2).reshape(len(rows), -1)
