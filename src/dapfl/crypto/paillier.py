"""The Paillier cryptosystem (Section III-B): Enc, Dec, Eval (Eqs. 8-10). KeyGen is in `key_generation`.

Plaintexts and ciphertexts are uint8 matrices with one number per row, little-endian, so that a batch
is one contiguous buffer from encryption to the network and back:

>>> import numpy as np
>>> from dapfl.crypto.keys.key_generation import generate_keypair
>>> key = generate_keypair(256, allow_insecure_small_keys=True)
>>> a = np.zeros((3, key.public_key.plaintext_bytes), np.uint8)
>>> b = a.copy()
>>> a[:, 0], b[:, 0] = [1, 2, 3], [10, 20, 30]
>>> total = key.public_key.add(key.public_key.encrypt(a), key.public_key.encrypt(b))
>>> key.decrypt(total)[:, 0].tolist()
[11, 22, 33]
"""

import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import gmpy2
import numpy as np

from dapfl.arrays import Rows
from dapfl.config import Randomness
from dapfl.crypto.engines import lanes
from dapfl.crypto.engines.base import (
    ArithmeticEngine,
    Remainders,
    Ring,
    check_rows,
    engine_named,
    first_not_below,
    to_ints,
    to_rows,
)
from dapfl.errors import CryptoError, InvalidCiphertext, KeyGenerationError

_ROWS_AT_ONCE = 4096  # that are multiplied into one another: 2 MB with keys of 2048 bits, not half of a model
_EXTRA_BYTES = 16  # a random number this much longer than its modulus is uniform up to 2^-128


@dataclass(frozen=True)
class PublicKey:
    """PK = (n, g), which encrypts, adds and (see `signature`) verifies.

    `randomness` is how a ciphertext is masked: ``full`` is the paper's ζⁿ with ζ uniform in
    Z*_n; ``djn`` is h_nʳ with h_n = hⁿ, h = -x² and r of half the bits of n (Damgård, Jurik and
    Nielsen), several times faster and as hard to break under their assumption.
    """

    n: int
    g: int
    randomness: Randomness = "djn"
    engine: str = field(default="auto", compare=False)

    def __post_init__(self) -> None:
        if self.n < 15 or self.n % 2 == 0:
            raise KeyGenerationError("n must be an odd product of two primes.")
        if not 1 < self.g < self.n * self.n or gmpy2.gcd(self.g, self.n) != 1:
            raise KeyGenerationError("g must be a unit modulo n².")
        if self.randomness not in ("djn", "full"):
            raise KeyGenerationError(f"There is no randomness '{self.randomness}'; choose djn or full.")

    @property
    def bits(self) -> int:
        """The size of n."""
        return self.n.bit_length()

    @property
    def plaintext_bytes(self) -> int:
        """The widest row that is below n whatever its bytes."""
        return (self.bits - 1) // 8

    @property
    def modulus_bytes(self) -> int:
        """The width of a number below n: what `decrypt` returns."""
        return (self.bits + 7) // 8

    @property
    def ciphertext_bytes(self) -> int:
        """The width of a number below n²."""
        return (2 * self.bits + 7) // 8

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that name this key."""
        width = self.ciphertext_bytes
        data = self.n.to_bytes(width, "big") + self.g.to_bytes(width, "big")
        return hashlib.sha256(b"dapfl public key 1" + data).hexdigest()[:32]

    def encrypt(self, plaintexts: Rows) -> Rows:
        """Enc (Eq. 8): one ciphertext for every row, each with randomness of its own."""
        rows = check_rows(plaintexts, self.plaintext_bytes, "Plaintexts")
        return self._encryption.encrypt(rows, self.draw_exponents(len(rows)))

    def encrypt_with(self, plaintexts: Rows, exponents: Rows) -> Rows:
        """Enc with djn randomness that the caller draws by `draw_exponents`, to prove something about it."""
        if self.randomness != "djn":
            raise CryptoError("Only djn randomness has exponents.")
        rows = check_rows(plaintexts, self.plaintext_bytes, "Plaintexts")
        return self._encryption.encrypt(rows, exponents)

    def masked(self, plaintexts: Rows, masks: Rows) -> Rows:
        """Enc with masks that were made before: ciphertexts of zero, each of which may be used once."""
        rows = check_rows(plaintexts, self.plaintext_bytes, "Plaintexts")
        if self.g != self.n + 1:
            raise CryptoError("Masks can be made before their plaintexts only for g = 1 + n.")
        return self.ring.powers(
            self.check_ciphertexts(masks), 1, rows
        )  # M is multiplied in, in constant time

    def add(self, a: Rows, b: Rows) -> Rows:
        """Ciphertexts of the sums of two batches, row by row (Eq. 10)."""
        return self.product([a, b])

    def product(self, batches: Sequence[Rows]) -> Rows:
        """Ciphertexts of the sums over all batches, row by row (Eq. 10)."""
        return self.ring.product(batches)

    def check_ciphertexts(self, ciphertexts: Rows) -> Rows:
        """The same matrix, contiguous; InvalidCiphertext unless its rows are numbers below n²."""
        rows = check_rows(ciphertexts, self.ciphertext_bytes, "Ciphertexts")
        if rows.shape[1] != self.ciphertext_bytes:
            raise InvalidCiphertext(
                f"A ciphertext of this key has {self.ciphertext_bytes} bytes, not {rows.shape[1]}."
            )
        outside = first_not_below(rows, self.n * self.n)
        if outside is not None:
            raise InvalidCiphertext(f"Ciphertext {outside} is not below n².")
        return rows

    def validate(self, ciphertexts: Rows) -> None:
        """Raise InvalidCiphertext unless every row is a unit modulo n², as a ciphertext must be."""
        rows = self.check_ciphertexts(ciphertexts)
        # A product is a unit if and only if every factor is: one gcd for the whole batch.
        while len(rows) > 1:
            size = min(len(rows) // 2, max(_ROWS_AT_ONCE, len(rows) // 1000))
            blocks = [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)]
            rows = np.concatenate([self.ring.product(blocks), rows[len(blocks) * size :]])
        if len(rows) and gmpy2.gcd(to_ints(rows)[0], self.n) != 1:
            culprit = next(i for i, c in enumerate(to_ints(ciphertexts)) if gmpy2.gcd(c, self.n) != 1)
            raise InvalidCiphertext(f"Ciphertext {culprit} shares a factor with n.")

    def encrypt_int(self, plaintext: int, zeta: int | None = None) -> int:
        """A ciphertext of one number below n; with `zeta` exactly g^M·ζⁿ mod n² (Eq. 8)."""
        if not 0 <= plaintext < self.n:
            raise CryptoError("A plaintext must lie between 0 and n - 1.")
        if zeta is None:
            row = to_rows([plaintext], self.modulus_bytes)
            return to_ints(self._encryption.encrypt(row, self.draw_exponents(1)))[0]
        if not 0 < zeta < self.n:
            raise CryptoError("The randomness ζ must lie between 1 and n - 1.")
        modulus = self.n * self.n
        g_power = 1 + plaintext * self.n if self.g == self.n + 1 else gmpy2.powmod(self.g, plaintext, modulus)
        (zeta_power,) = to_ints(self.ring.public_powers(to_rows([zeta], self.modulus_bytes), self.n))
        return int(g_power * zeta_power % modulus)

    def add_int(self, a: int, b: int) -> int:
        """A ciphertext of the sum of two plaintexts, from their ciphertexts."""
        return a * b % (self.n * self.n)

    def multiply_int(self, ciphertext: int, factor: int) -> int:
        """A ciphertext of `factor` times the plaintext."""
        return int(gmpy2.powmod(ciphertext, factor % self.n, self.n * self.n))

    def using(self, engine: str) -> Self:
        """The same key, computing with another engine."""
        return replace(self, engine=engine)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("n", "g", "randomness", "engine")}

    @cached_property
    def ring(self) -> Ring:
        """Arithmetic modulo n², in batches."""
        return engine_named(self.engine).ring(self.n)

    @cached_property
    def _encryption(self) -> "_Encryption":
        return _Encryption(self, self.ring)

    @property
    def mask_bytes(self) -> int:
        """The length of the exponent r of djn randomness: half the bits of n."""
        return (self.bits + 15) // 16

    @cached_property
    def h_n(self) -> int:
        """h_n = hⁿ mod n² with h = -x² mod n; x is derived from n, so that everyone agrees on it."""
        data, counter = self.n.to_bytes(self.modulus_bytes, "big"), 0
        while True:
            name = b"dapfl djn base 1" + counter.to_bytes(4, "big")
            x = int.from_bytes(
                hashlib.shake_256(name + data).digest(self.modulus_bytes + _EXTRA_BYTES), "big"
            )
            h = -x * x % self.n
            if gmpy2.gcd(h, self.n) == 1 and h != 1:
                return int(gmpy2.powmod(h, self.n, self.n * self.n))
            counter += 1

    def draw_exponents(self, count: int) -> Rows:
        """The random exponents r of djn randomness, one per row."""
        data = bytearray(secrets.token_bytes(count * self.mask_bytes))
        return np.frombuffer(data, np.uint8).reshape(count, self.mask_bytes)


class _Encryption:
    """Eq. 8 in one ring: modulo n² for everyone, modulo p² and q² for the owner of the key."""

    def __init__(self, key: PublicKey, ring: Ring) -> None:
        self._ring = ring
        self._width = key.modulus_bytes
        self._cofactor = key.n // ring.root  # (1+n)^M = 1 + M·cofactor·root modulo root²
        self._masks = ring.fixed_base(key.h_n, key.mask_bytes) if key.randomness == "djn" else None
        self._g_powers = None if key.g == key.n + 1 else ring.fixed_base(key.g, key.modulus_bytes)

    def encrypt(self, plaintexts: Rows, exponents: Rows) -> Rows:
        """g^M times a random mask: h_nʳ, or the paper's ζⁿ."""
        if self._masks is None:
            return self.encrypt_with(plaintexts, random_units(len(plaintexts), self._ring))
        messages = plaintexts if self._g_powers is None else None
        return self._times_g(self._masks.powers(exponents, messages, self._cofactor), plaintexts)

    def encrypt_with(self, plaintexts: Rows, units: Rows) -> Rows:
        """g^M·ζ^root. Modulo p², the n-th powers are the p-th powers: fresh units do as well as ζ mod p."""
        messages = plaintexts if self._g_powers is None else None
        masks = self._ring.powers(units, self._ring.root, messages, self._cofactor)
        return self._times_g(masks, plaintexts)

    def _times_g(self, masks: Rows, plaintexts: Rows) -> Rows:
        if self._g_powers is None:
            return masks  # they hold (1+n)^M already
        wide = np.zeros((len(plaintexts), self._width), np.uint8)
        wide[:, : plaintexts.shape[1]] = plaintexts
        return self._ring.product([masks, self._g_powers.powers(wide)])


def random_units(count: int, ring: Ring) -> Rows:
    """Uniform elements of Z*_root. They are not reduced: x^root modulo root² depends on x mod root only."""
    if ring.root.bit_length() > 256:  # a random number shares no factor with such a root, ever
        width = ring.root_bytes + _EXTRA_BYTES
        return np.frombuffer(bytearray(secrets.token_bytes(count * width)), np.uint8).reshape(count, width)
    units: list[int] = []
    while len(units) < count:
        unit = secrets.randbelow(ring.root)
        if gmpy2.gcd(unit, ring.root) == 1:
            units.append(unit)
    return to_rows(units, ring.root_bytes)


@dataclass(frozen=True, repr=False)
class PrivateKey:
    """SK, held as the primes: decrypts, signs (see `signature`), and encrypts faster than `PublicKey`.

    All its powers are taken modulo p² and q² and joined by Chinese remainders.
    """

    p: int
    q: int
    public_key: PublicKey

    def __post_init__(self) -> None:
        if self.p * self.q != self.public_key.n:
            raise KeyGenerationError("The primes do not belong to the public key.")
        _ = self._scales

    def __repr__(self) -> str:
        return f"PrivateKey(bits={self.public_key.bits}, fingerprint={self.public_key.fingerprint!r})"

    def decrypt(self, ciphertexts: Rows) -> Rows:
        """Dec (Eq. 9): the plaintexts, as rows of `public_key.modulus_bytes`.

        Raises InvalidCiphertext for anything that is not a unit modulo n².
        """
        if len(ciphertexts) == 1:
            (plaintext,) = decrypt_each([self], [ciphertexts])  # p and q side by side
            if plaintext is None:
                raise InvalidCiphertext("This number is not a ciphertext of this key.")
            return plaintext
        rows = self.public_key.check_ciphertexts(ciphertexts)
        low = self._ring_p.quotients(rows, self.p - 1, self._scales[0])
        high = self._ring_q.quotients(rows, self.q - 1, self._scales[1])
        return self._plaintext_remainders.combine(low, high)

    def encrypt(self, plaintexts: Rows) -> Rows:
        """The same as `public_key.encrypt`, computed modulo p² and q²."""
        key = self.public_key
        rows = check_rows(plaintexts, key.plaintext_bytes, "Plaintexts")
        exponents = key.draw_exponents(len(rows))
        low, high = (encryption.encrypt(rows, exponents) for encryption in self._encryptions)
        return self._ciphertext_remainders.combine(low, high)

    def masks(self, count: int) -> Rows:
        """Fresh ciphertexts of zero, for `PublicKey.masked`."""
        return self.encrypt(np.zeros((count, 1), np.uint8))

    def decrypt_beside(
        self, ciphertexts: Sequence[int], bases: Sequence[int], exponents: tuple[int, int]
    ) -> list[tuple[int | None, tuple[int, int]]]:
        """For each pair of numbers Dec of the one, and the other^exponent modulo p and modulo q, all of it in
        the same lanes.

        The exponents, one for each prime, are secret. What is not a ciphertext decrypts to None.
        """
        count = len(ciphertexts)
        rings = (self._ring_p, self._ring_q) * (2 * count)
        numbers = [number for each in zip(ciphertexts, bases, strict=True) for number in each for _ in "pq"]
        quotients, residues = lanes.quotients(
            rings,
            to_rows(numbers, self.public_key.ciphertext_bytes),
            (self.p - 1, self.q - 1, *exponents) * count,
            (*self._scales, 0, 0) * count,
        )
        results: list[tuple[int | None, tuple[int, int]]] = []
        for start in range(0, len(rings), 4):
            one, other, *powers = [to_ints(row)[0] for row in residues[start : start + 4]]
            halves = quotients[start], quotients[start + 1]
            good = one == other == 1
            plaintext = to_ints(self._plaintext_remainders.combine(*halves))[0] if good else None
            results.append((plaintext, (powers[0], powers[1])))
        return results

    def decrypt_int(self, ciphertext: int) -> int:
        """The plaintext of one ciphertext."""
        if not 0 < ciphertext < self.public_key.n * self.public_key.n:
            raise InvalidCiphertext("A ciphertext lies between 1 and n² - 1.")
        return to_ints(self.decrypt(to_rows([ciphertext], self.public_key.ciphertext_bytes)))[0]

    def using(self, engine: str) -> Self:
        """The same key, computing with another engine."""
        return replace(self, public_key=self.public_key.using(engine))

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("p", "q", "public_key")}

    @cached_property
    def _engine(self) -> ArithmeticEngine:
        return engine_named(self.public_key.engine)

    @cached_property
    def _ring_p(self) -> Ring:
        return self._engine.ring(self.p)

    @cached_property
    def _ring_q(self) -> Ring:
        return self._engine.ring(self.q)

    @cached_property
    def _plaintext_remainders(self) -> Remainders:
        return self._engine.remainders(self.p, self.q)

    @cached_property
    def _ciphertext_remainders(self) -> Remainders:
        return self._engine.remainders(self.p * self.p, self.q * self.q)

    @cached_property
    def _encryptions(self) -> tuple[_Encryption, _Encryption]:
        return _Encryption(self.public_key, self._ring_p), _Encryption(self.public_key, self._ring_q)

    @cached_property
    def _scales(self) -> tuple[int, int]:
        """L(g^(p-1) mod p²)⁻¹ mod p and the same for q: Eq. 7's δ, one half for each prime."""
        scales, key = [], self.public_key
        for prime in (self.p, self.q):
            if key.g == key.n + 1:
                power = (1 + (prime - 1) * key.n) % (prime * prime)
            else:
                power = gmpy2.powmod_sec(key.g, prime - 1, prime * prime)
            try:
                scales.append(int(gmpy2.invert(power // prime, prime)))
            except ZeroDivisionError:
                raise KeyGenerationError("g does not generate: L(g^ϱ) has no inverse modulo n.") from None
        return scales[0], scales[1]


def decrypt_each(keys: Sequence[PrivateKey], ciphertexts: Sequence[Rows]) -> list[Rows | None]:
    """Dec of one ciphertext under each key, in one go; None in the place of what is not a ciphertext.

    >>> from dapfl.crypto.keys.key_generation import generate_keypair
    >>> keys = [generate_keypair(256, allow_insecure_small_keys=True) for _ in range(2)]
    >>> rows = [to_rows([key.public_key.encrypt_int(42)], key.public_key.ciphertext_bytes) for key in keys]
    >>> [to_ints(plaintext) for plaintext in decrypt_each(keys, rows)]
    [[42], [42]]
    """
    plaintexts: list[Rows | None] = [None] * len(keys)
    good: dict[int, Rows] = {}
    for index, (key, row) in enumerate(zip(keys, ciphertexts, strict=True)):
        with suppress(InvalidCiphertext):
            good[index] = key.public_key.check_ciphertexts(row)
    for width in {row.shape[1] for row in good.values()}:
        chosen = [index for index, row in good.items() if row.shape[1] == width]
        # The rings of p and q of each key in turn.
        rings = [ring for index in chosen for ring in (keys[index]._ring_p, keys[index]._ring_q)]
        exponents = [prime - 1 for index in chosen for prime in (keys[index].p, keys[index].q)]
        scales = [scale for index in chosen for scale in keys[index]._scales]
        bases = np.concatenate([good[index] for index in chosen for _ in range(2)])
        halves, residues = lanes.quotients(rings, bases, exponents, scales)
        for place, index in enumerate(chosen):
            low, high = 2 * place, 2 * place + 1
            if to_ints(residues[low]) == to_ints(residues[high]) == [1]:
                plaintexts[index] = keys[index]._plaintext_remainders.combine(halves[low], halves[high])
    return plaintexts
