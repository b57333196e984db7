"""Keys of threshold Paillier: a committee of L members, any t of whom decrypt together.

A ciphertext c = (1+n)^m·ρ^n is opened by whoever finds ρ, the n-th root of c modulo n. So the secret is
that of RSA with the exponent n: d = 1/n modulo p'q', for safe primes p = 2p'+1 and q = 2q'+1. The dealer
(the KDC) shares it as Shoup does for RSA signatures (Eurocrypt 2000): member i holds s_i = f(i) modulo
p'q' for a random polynomial f of degree t-1 with f(0) = d. Any t-1 shares are distributed alike whatever
d is. Public are v, a random square modulo n, and v_i = v^(s_i), by which everyone checks what members
compute (`threshold`). After dealing, nobody needs the primes, and they are not kept.

Encryption, packing and proofs use the public key as before. The squares modulo n form a cyclic group of
order p'q', which has no prime factor below 2^1000; the proofs of `threshold` rest on that.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import gmpy2

from dapfl.config import Randomness
from dapfl.crypto.keys.key_generation import check_size, keypair_from_primes
from dapfl.crypto.keys.safe_primes import is_safe_prime, safe_prime
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import KeyGenerationError

MEMBERS, THRESHOLD = 5, 4  # two of them may collude (`Committee.colluders`)
_LARGEST_COMMITTEE = 32  # Δ = L! lengthens every exponent: by 7 bits for 5 members, by 118 for 32


@dataclass(frozen=True)
class Committee:
    """What everyone knows of a committee: the public key, t, and how shares are checked."""

    public_key: PublicKey
    threshold: int
    v: int
    verification_keys: tuple[int, ...]
    """v_1 … v_L."""

    def __post_init__(self) -> None:
        key = self.public_key
        check_committee(self.members, self.threshold)
        if key.g != key.n + 1:
            raise KeyGenerationError("A committee decrypts only under g = 1 + n.")
        for number in (self.v, *self.verification_keys):
            if not 1 < number < key.n or gmpy2.gcd(number, key.n) != 1:
                raise KeyGenerationError("A verification key must be a unit modulo n.")

    @property
    def members(self) -> int:
        """L. Members are numbered from 1 on."""
        return len(self.verification_keys)

    @property
    def delta(self) -> int:
        """Δ = L!, which makes all coefficients of Lagrange's interpolation whole numbers."""
        return math.factorial(self.members)

    @property
    def colluders(self) -> int:
        """How many members may collude with whoever asks, if all the others answer only once.

        An asker that cheats shows one batch to some members and another batch to the rest. Two sets of t
        members have 2t - L in common at least; if one of those does not collude, only one batch is decrypted.
        A negative number means that even an asker without any colluder gets both.
        """
        return 2 * self.threshold - self.members - 1

    def using(self, engine: str) -> Self:
        """The same committee, computing with another engine."""
        return replace(self, public_key=self.public_key.using(engine))


@dataclass(frozen=True)
class KeyShare:
    """What member i alone knows: s_i."""

    committee: Committee
    member: int
    secret: int = field(repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.member <= self.committee.members:
            raise KeyGenerationError(f"There is no member {self.member} in this committee.")
        if not 1 <= self.secret < self.committee.public_key.n:
            raise KeyGenerationError("A share lies between 1 and n - 1.")

    def fits(self) -> bool:
        """Whether v_i is v^(s_i): whether this is the share that the committee knows of."""
        committee = self.committee
        power = gmpy2.powmod_sec(committee.v, self.secret, committee.public_key.n)
        return bool(power == committee.verification_keys[self.member - 1])

    def using(self, engine: str) -> Self:
        """The same share, computing with another engine."""
        return replace(self, committee=self.committee.using(engine))


def generate_committee(
    bits: int = 2048,
    *,
    members: int = MEMBERS,
    threshold: int = THRESHOLD,
    randomness: Randomness = "djn",
    engine: str = "auto",
    allow_insecure_small_keys: bool = False,
) -> tuple[KeyShare, ...]:
    """A new key of that size, as the shares of its members; nobody has it whole.

    >>> shares = generate_committee(128, allow_insecure_small_keys=True)
    >>> [share.member for share in shares], shares[0].committee.threshold
    ([1, 2, 3, 4, 5], 4)
    """
    check_size(bits, allow_insecure_small_keys)
    check_committee(members, threshold)
    if bits < 48 or bits % 16:
        raise KeyGenerationError(f"A key size is a multiple of 16 bits, at least 48; not {bits}.")
    while True:
        p, q = safe_prime(bits // 2), safe_prime(bits // 2)
        if abs(p - q) >> max(bits // 2 - 100, 0):
            break
    key = keypair_from_primes(
        p, q, randomness=randomness, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
    )
    return deal(key, members=members, threshold=threshold)


def deal(key: PrivateKey, *, members: int = MEMBERS, threshold: int = THRESHOLD) -> tuple[KeyShare, ...]:
    """The shares of a key with safe primes. Whoever keeps the key itself decrypts alone."""
    check_committee(members, threshold)
    if not (is_safe_prime(key.p) and is_safe_prime(key.q)):
        raise KeyGenerationError("Only a key with safe primes can be shared.")
    if members >= min(key.p, key.q) // 2:
        raise KeyGenerationError("The primes are too small for so many members.")
    n = key.public_key.n
    order = (key.p // 2) * (key.q // 2)  # p'q'
    d = int(gmpy2.invert(n, order))
    polynomial = [d, *(secrets.randbelow(order) for _ in range(threshold - 1))]
    values = evaluate(polynomial, range(1, members + 1), order)
    v = pow(_random_unit(n), 2, n)
    verification_keys = tuple(int(gmpy2.powmod_sec(v, value, n)) for value in values)
    committee = Committee(key.public_key, threshold, v, verification_keys)
    return tuple(KeyShare(committee, i, value) for i, value in enumerate(values, 1))


def evaluate(polynomial: Sequence[int], points: Sequence[int], modulus: int) -> list[int]:
    """The values of a polynomial, given by its coefficients from the constant one on.

    >>> evaluate([5, 1, 2], [0, 1, 10], 100)
    [5, 8, 15]
    """
    return [sum(a * x**k for k, a in enumerate(polynomial)) % modulus for x in points]


def check_committee(members: int, threshold: int) -> None:
    """Refuse a committee that cannot be."""
    if not 1 <= threshold <= members <= _LARGEST_COMMITTEE:
        raise KeyGenerationError(
            f"A committee has 1 to {_LARGEST_COMMITTEE} members, and from 1 to all of them decrypt: "
            f"any {threshold} of {members} is not possible."
        )


def _random_unit(n: int) -> int:
    while True:
        unit = secrets.randbelow(n)
        if gmpy2.gcd(unit, n) == 1:
            return unit
