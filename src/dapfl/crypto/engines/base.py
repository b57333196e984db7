"""Arithmetic engines: arithmetic modulo a square, in batches, behind one interface.

These engines compute (`crypto.engine` of a configuration names one). They have nothing to do with the
engines of `dapfl.engines`, which say where the clients of a federation run.

A batch of big integers is a uint8 matrix with one number per row, little-endian. Everything that
Paillier needs is arithmetic modulo root², where root is n for the public operations and one of
the two primes for the owner of the key. A `Ring` is one such root, prepared:

* `powers`         x ↦ xᵉ for one public exponent (Eq. 8's ζⁿ);
* `quotients`      x ↦ L(xᵉ)·c for one secret exponent (Eqs. 9 and 12);
* `fixed_base`     e ↦ bᵉ for one base and many exponents;
* `product`        x, y, … ↦ x·y·… (Eq. 10);
* `power_product`  x_k, e_k ↦ ∏ x_k^(e_k) for public exponents (what batch proofs compare).

Members of a committee compute modulo the root itself: `residue_powers`, `residue_power_product`.

The public methods check every size before an engine, and native code behind it, sees a matrix.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from dapfl.arrays import Rows
from dapfl.errors import ConfigError, CryptoError, InvalidCiphertext

_WIDEST_EXPONENT = 4096  # bytes

_threads: int | None = None


def set_threads(count: int | None) -> None:
    """How many threads a batch may use in this process; None means one for every core."""
    global _threads
    if count is not None and count < 1:
        raise ConfigError(f"A batch needs at least one thread, not {count}.")
    _threads = count


def threads() -> int:
    """How many threads a batch may use in this process."""
    if _threads is not None:
        return _threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(work: Callable[[slice], Rows], count: int, grain: int) -> Rows:
    """`work` done on slices of `count` rows, each a multiple of `grain`, on as many threads as allowed.

    It only pays if `work` releases the interpreter lock.
    """
    workers = min(threads(), -(-count // grain))
    if workers <= 1:
        return work(slice(0, count))
    step = -(-count // (workers * grain)) * grain
    slices = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    with ThreadPoolExecutor(workers) as pool:
        return np.concatenate(list(pool.map(work, slices)))


def to_rows(numbers: Iterable[Any], width: int) -> Rows:
    """Non-negative integers as the rows of a matrix.

    >>> to_rows([1, 258], 3).tolist()
    [[1, 0, 0], [2, 1, 0]]
    """
    # gmpy2 writes big-endian bytes in half the time of little-endian ones.
    data = b"".join([number.to_bytes(width, "big") for number in numbers])
    return np.frombuffer(data, np.uint8).reshape(-1, width)[:, ::-1].copy()


def to_ints(rows: Rows) -> list[int]:
    """The rows of a matrix as integers.

    >>> to_ints(np.array([[1, 0, 0], [2, 1, 0]], np.uint8))
    [1, 258]
    """
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


def check_rows(rows: Rows, widest: int, what: str) -> Rows:
    """The same matrix, contiguous; anything that is not a byte matrix of at most that width is refused."""
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2:
        raise CryptoError(f"{what} must be a uint8 matrix with one number per row.")
    if not 1 <= rows.shape[1] <= widest:
        raise CryptoError(f"{what} have {rows.shape[1]} bytes per row; this key takes 1 to {widest}.")
    return np.ascontiguousarray(rows)


def first_not_below(rows: Rows, limit: int) -> int | None:
    """The first row that holds `limit` or more: the top bytes decide, and rare ties are compared in full."""
    width = rows.shape[1]
    if limit >> (8 * width):
        return None
    top = min(8, width)
    if width % 8:
        words = np.zeros((len(rows), 8), np.uint8)
        words[:, :top] = rows[:, width - top :]
    else:
        words = np.ascontiguousarray(rows)
    leading = words.view("<u8")[:, -1]
    suspects = np.flatnonzero(leading >= np.uint64(limit >> (8 * (width - top))))
    return next((int(i) for i in suspects if int.from_bytes(rows[i].tobytes(), "little") >= limit), None)


class FixedBase(Protocol):
    """Powers of one base."""

    def powers(self, exponents: Rows, messages: Rows | None = None, scale: int = 1) -> Rows:
        """base^exponent · (1 + scale·message·root) modulo root², row by row."""


class Ring(ABC):
    """The integers modulo root², for an odd root, as one engine computes with them."""

    lanes = 1
    """How many numbers the engine computes on in the time of one."""

    def __init__(self, root: int) -> None:
        if root < 3 or root % 2 == 0:
            raise CryptoError("A ring needs an odd root of at least 3.")
        self.root = root
        self.modulus = root * root
        self.root_bytes = (root.bit_length() + 7) // 8
        self.modulus_bytes = (2 * root.bit_length() + 7) // 8

    def powers(self, bases: Rows, exponent: int, messages: Rows | None = None, scale: int = 1) -> Rows:
        """base^exponent · (1 + scale·message·root) modulo root².

        The exponent may be public, or the bases random and secret: it is not protected otherwise. Where it is
        public, `public_powers` is faster.
        """
        bases = check_rows(bases, 2 * self.modulus_bytes, "Bases")
        if exponent < 1:
            raise CryptoError("An exponent must be positive.")
        messages = self.check_messages(messages, len(bases))
        return self._powers(bases, exponent, messages, scale % self.root)

    def public_powers(self, bases: Rows, exponent: int) -> Rows:
        """base^exponent modulo root², for an exponent that anyone may know."""
        bases = check_rows(bases, 2 * self.modulus_bytes, "Bases")
        if exponent < 1:
            raise CryptoError("An exponent must be positive.")
        return self._public_powers(bases, exponent)

    def residue_powers(self, bases: Rows, exponent: int) -> Rows:
        """base^exponent modulo the root, for a secret exponent and bases that anyone may have chosen.

        What is computed depends on the length of the exponent, not on its bits.
        """
        bases = check_rows(bases, 2 * self.modulus_bytes, "Bases")
        if exponent < 1:
            raise CryptoError("An exponent must be positive.")
        return self._residue_powers(bases, exponent)

    def quotients(self, bases: Rows, exponent: int, scale: int) -> Rows:
        """L(base^exponent)·scale modulo root, with L(x) = (x-1)/root, for a secret exponent.

        The exponent must send every root-th power to 1 (ϱ for n, p-1 for p). A base that is
        not a unit has no quotient: InvalidCiphertext says which one it is.
        """
        bases = check_rows(bases, 2 * self.modulus_bytes, "Ciphertexts")
        if exponent < 1:
            raise CryptoError("An exponent must be positive.")
        if not len(bases):
            return np.empty((0, self.root_bytes), np.uint8)
        return self._quotients(bases, exponent, scale % self.root)

    def fixed_base(self, base: int, exponent_bytes: int) -> FixedBase:
        """Powers of `base` for exponents of that many bytes."""
        from dapfl.crypto.engines.fixed_base import TabledBase

        return TabledBase(self, base % self.modulus, exponent_bytes)

    def product(self, batches: Sequence[Rows]) -> Rows:
        """The product of the batches modulo root², row by row."""
        if not batches:
            raise CryptoError("A product needs at least one batch.")
        for index, batch in enumerate(batches):
            if not isinstance(batch, np.ndarray) or batch.shape != (len(batches[0]), self.modulus_bytes):
                raise InvalidCiphertext(
                    f"Batch {index} is not a matrix of {len(batches[0])} rows of {self.modulus_bytes} bytes."
                )
            check_rows(batch, self.modulus_bytes, "Ciphertexts")
            if first_not_below(batch, self.modulus) is not None:
                raise InvalidCiphertext(f"Batch {index} holds a number that is not below n².")
        return self._product([np.ascontiguousarray(batch) for batch in batches])

    def power_product(self, bases: Rows, exponents: Rows) -> Rows:
        """∏ base^exponent modulo root² over all rows, as one row. The exponents must be public."""
        return self._power_product(*self._check_powers(bases, exponents), self.modulus_bytes)

    def residue_power_product(self, bases: Rows, exponents: Rows) -> Rows:
        """The same modulo the root."""
        return self._power_product(*self._check_powers(bases, exponents), self.root_bytes)

    def _check_powers(self, bases: Rows, exponents: Rows) -> tuple[Rows, Rows]:
        bases = check_rows(bases, 2 * self.modulus_bytes, "Bases")
        exponents = check_rows(exponents, _WIDEST_EXPONENT, "Exponents")
        if len(bases) != len(exponents):
            raise CryptoError(f"{len(exponents)} exponents do not fit {len(bases)} bases.")
        return bases, exponents

    def check_messages(self, messages: Rows | None, count: int) -> Rows | None:
        """The messages, if there are any, one for each of `count` powers."""
        if messages is None:
            return None
        if len(messages) != count:
            raise CryptoError(f"{len(messages)} messages do not fit {count} powers.")
        return check_rows(messages, 2 * self.root_bytes, "Messages")

    @abstractmethod
    def _powers(self, bases: Rows, exponent: int, messages: Rows | None, scale: int) -> Rows: ...

    def _public_powers(self, bases: Rows, exponent: int) -> Rows:
        return self._powers(bases, exponent, None, 1)

    @abstractmethod
    def _residue_powers(self, bases: Rows, exponent: int) -> Rows: ...

    @abstractmethod
    def _quotients(self, bases: Rows, exponent: int, scale: int) -> Rows: ...

    @abstractmethod
    def _product(self, batches: list[Rows]) -> Rows: ...

    @abstractmethod
    def _power_product(self, bases: Rows, exponents: Rows, width: int) -> Rows:
        """One row of `width` bytes: those of the root or of its square, which is the modulus then."""

    @abstractmethod
    def build_table(self, base: int, exponent_bytes: int, window: int, spacing: int) -> Any:
        """The powers of `base` that `table_powers` multiplies (see `engines.fixed_base`)."""

    @abstractmethod
    def table_powers(
        self, table: Any, exponents: Rows, window: int, spacing: int, messages: Rows | None, scale: int
    ) -> Rows:
        """base^exponent · (1 + scale·message·root) from a table of the same window and spacing."""


class Remainders(Protocol):
    """Chinese remainders for two odd moduli p and q without a common factor."""

    def combine(self, low: Rows, high: Rows) -> Rows:
        """The numbers below p·q that are `low` modulo p and `high` modulo q, row by row."""


class ArithmeticEngine(Protocol):
    """One way to compute."""

    name: str

    def ring(self, root: int) -> Ring:
        """The ring modulo root²."""

    def remainders(self, p: int, q: int) -> Remainders:
        """What joins numbers modulo p and modulo q."""


ENGINES = ("ifma", "avx2", "portable", "gmp")  # the fastest first


def available_engines() -> tuple[str, ...]:
    """The arithmetic engines that work on this machine, the fastest first."""
    from dapfl.crypto.engines import native

    return tuple(name for name in ENGINES if name == "gmp" or name in native.usable())


def engine_named(name: str) -> ArithmeticEngine:
    """The arithmetic engine of that name; ``auto`` is the fastest one that this machine has.

    >>> engine_named("gmp").name
    'gmp'
    """
    from dapfl.crypto.engines import gmp, native

    available = available_engines()
    if name == "auto":
        name = available[0]
    if name == "gmp":
        return gmp.GmpEngine()
    if name in available:
        return native.NativeEngine(name)
    if name in ENGINES:
        raise ConfigError(
            f"The arithmetic engine {name} does not work here: it needs a dapfl built with a C "
            f"compiler, and a CPU with these instructions. Choose auto, or one of: {', '.join(available)}."
        )
    raise ConfigError(f"No arithmetic engine is called '{name}'; choose auto, {', '.join(ENGINES)}.")
