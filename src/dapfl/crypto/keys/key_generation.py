"""KeyGen (Section III-B, Eqs. 7 and 11): Paillier key pairs from random or given primes."""

import secrets
from collections.abc import Callable

import gmpy2

from dapfl.config import SECURE_BITS, Generator, Randomness
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import KeyGenerationError

_PRIME_ROUNDS = 40


def generate_keypair(
    bits: int = 2048,
    *,
    generator: Generator = "n+1",
    randomness: Randomness = "djn",
    engine: str = "auto",
    allow_insecure_small_keys: bool = False,
) -> PrivateKey:
    """KeyGen (Eqs. 7 and 11) with random primes: an n of exactly `bits` bits."""
    check_size(bits, allow_insecure_small_keys)
    if bits < 32 or bits % 16:
        raise KeyGenerationError(f"A key size is a multiple of 16 bits, at least 32; not {bits}.")
    p = _random_prime(bits // 2)
    while True:
        # A third of all q do not go with p: they are left out before they are tested, which takes longer.
        q = _random_prime(bits // 2, lambda q: randomness != "djn" or gmpy2.gcd(p - 1, q - 1) == 2)
        if abs(p - q) >> max(bits // 2 - 100, 0) and not _misfit(p, q, randomness):
            return _build(p, q, generator, randomness, engine)


def keypair_from_primes(
    p: int,
    q: int,
    *,
    generator: Generator | int = "n+1",
    randomness: Randomness = "djn",
    engine: str = "auto",
    allow_insecure_small_keys: bool = False,
) -> PrivateKey:
    """KeyGen (Eq. 7) from given primes; `generator` may be a number g.

    >>> key = keypair_from_primes(7, 11, allow_insecure_small_keys=True)
    >>> key.decrypt_int(key.public_key.encrypt_int(42))
    42
    """
    check_size((p * q).bit_length(), allow_insecure_small_keys)
    if refusal := _refusal(p, q, randomness):
        raise KeyGenerationError(refusal)
    return _build(p, q, generator, randomness, engine)


def check_size(bits: int, allow_insecure_small_keys: bool) -> None:
    """Refuse a key that is too small to protect anything, unless told to take it."""
    if bits < SECURE_BITS and not allow_insecure_small_keys:
        raise KeyGenerationError(
            f"A key of {bits} bits is not secure; choose {SECURE_BITS} or more "
            "(tests may pass allow_insecure_small_keys=True)."
        )


def _random_prime(bits: int, is_wanted: Callable[[int], bool] = lambda candidate: True) -> int:
    """A prime of that many bits, 3 modulo 4, the top two bits set so that products have full size."""
    while True:
        candidate = secrets.randbits(bits) | (3 << (bits - 2)) | 3
        if is_wanted(candidate) and gmpy2.is_prime(candidate, _PRIME_ROUNDS):
            return candidate


def _refusal(p: int, q: int, randomness: Randomness) -> str:
    """Why two numbers cannot be the primes of a key; nothing if they can."""
    if p == q or min(p, q) < 3 or not (gmpy2.is_prime(p, _PRIME_ROUNDS) and gmpy2.is_prime(q, _PRIME_ROUNDS)):
        return "A key needs two different odd primes."
    return _misfit(p, q, randomness)


def _misfit(p: int, q: int, randomness: Randomness) -> str:
    """Why two primes cannot be those of one key; nothing if they can."""
    if gmpy2.gcd(p * q, (p - 1) * (q - 1)) != 1:
        return "The primes must satisfy gcd(pq, (p-1)(q-1)) = 1 (Section III-B)."
    if randomness == "djn" and (p % 4 != 3 or q % 4 != 3 or gmpy2.gcd(p - 1, q - 1) != 2):
        return "djn randomness needs p = q = 3 modulo 4 and gcd(p-1, q-1) = 2; choose full for these primes."
    return ""


def _build(p: int, q: int, generator: Generator | int, randomness: Randomness, engine: str) -> PrivateKey:
    n = p * q
    if generator != "random":
        g = n + 1 if generator == "n+1" else generator
        return PrivateKey(p, q, PublicKey(n, g, randomness, engine))
    while True:
        try:
            return PrivateKey(p, q, PublicKey(n, secrets.randbelow(n * n), randomness, engine))
        except KeyGenerationError:
            continue  # one g in about p has no δ; the paper draws another
