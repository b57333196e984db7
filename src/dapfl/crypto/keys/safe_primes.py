"""Safe primes: p = 2p' + 1 with p' prime as well, found by a sieve.

Of the odd numbers of 1,023 bits about one in 190,000 is such a p'. A sieve strikes out every candidate for
which p' or p has a factor below 2^17, which leaves about 1,100 to be tested for one that is found.
"""

import secrets
from functools import cache

import gmpy2
import numpy as np
from numpy.typing import NDArray

_SIEVE_LIMIT = 1 << 17
_WINDOW = 1 << 17  # candidates p' = start, start + 2, … sieved together
_PRIME_ROUNDS = 40


def safe_prime(bits: int) -> int:
    """A random safe prime of exactly that many bits, the top two set so that products have full size.

    >>> p = safe_prime(64)
    >>> p.bit_length(), gmpy2.is_prime(p), gmpy2.is_prime(p // 2)
    (64, True, True)
    """
    while True:
        start = secrets.randbits(bits - 1) | 3 << (bits - 3) | 1
        for half in _survivors(start):
            p = 2 * half + 1
            if p.bit_length() == bits and _is_probable_prime(half) and _is_probable_prime(p):
                return p


def is_safe_prime(p: int) -> bool:
    """Whether p and (p-1)/2 are odd primes."""
    return p > 5 and all(gmpy2.is_prime(number, _PRIME_ROUNDS) for number in (p, p // 2)) and p % 2 == 1


def _is_probable_prime(number: int) -> bool:
    """Fermat's test turns nearly all composites away at a fraction of the cost."""
    return bool(gmpy2.powmod(2, number - 1, number) == 1 and gmpy2.is_prime(number, _PRIME_ROUNDS))


def _survivors(start: int) -> list[int]:
    """Those of start, start + 2, … for which neither they nor twice them plus 1 has a small factor."""
    alive = np.ones(_WINDOW, np.bool_)
    primes = _small_primes()
    for prime in primes[primes < min(start, _SIEVE_LIMIT)].tolist():
        half, rest = (prime + 1) // 2, start % prime  # half is 1/2 modulo the prime
        alive[-rest * half % prime :: prime] = False  # start + 2k = 0
        alive[(-half - rest) * half % prime :: prime] = False  # 2(start + 2k) + 1 = 0
    return [start + 2 * k for k in np.flatnonzero(alive).tolist()]


@cache
def _small_primes() -> NDArray[np.int64]:
    """The odd primes below the limit of the sieve."""
    sieve = np.ones(_SIEVE_LIMIT, np.bool_)
    sieve[:3] = False
    sieve[4::2] = False
    for number in range(3, int(_SIEVE_LIMIT**0.5) + 1, 2):
        if sieve[number]:
            sieve[number * number :: number] = False
    return np.flatnonzero(sieve)
