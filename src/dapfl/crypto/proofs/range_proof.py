"""A ciphertext with a proof that what it holds lies within bounds, for someone who cannot decrypt it.

A number from `least` to `most` is least + Σ w_j·b_j with bits b_j and weights 1, 2, 4, … of which the
last is made smaller, so that all of them add up to most - least: the sums of such weights are just the
numbers from 0 to most - least. Every bit is encrypted, c_j = g^(b_j)·r_j^n, with a proof that c_j or
c_j/g is an n-th power, which is to say that b_j is 0 or 1 (the 1-out-of-2 proof of Damgård and Jurik, PKC
2001, made non-interactive by hashing). g^least·∏ c_j^(w_j) is then a ciphertext of the number. Prover and
verifier need the public key only; what is proved holds whatever the prover knows, even the primes of n.
The proof reveals nothing else about the number.

>>> from dapfl.crypto.keys.key_generation import generate_keypair
>>> key = generate_keypair(512, allow_insecure_small_keys=True)
>>> proof = prove(600, 1, 1800, key.public_key, b"client 7")
>>> key.decrypt_int(verify(proof, 1, 1800, key.public_key, b"client 7"))
600

Why it holds. For a bit with c = c_j let u_0 = c and u_1 = c/g. The prover who knows u_b = r^n announces
a_b = s^n and answers a challenge e_b by z_b = s·r^(e_b); for the other one it picks e and z first and
sets a = z^n·u^(-e). Only the sum of the two challenges is fixed, by the hash of everything announced, so
one of them it could not pick. Two answers z, z' to one a with e ≠ e' give u^(e-e') = (z/z')^n, and
as |e-e'| is below the primes of n, u is an n-th power.

A proof leaves the a out: z^n·u^(-e) is the only one that fits. So the check is one comparison of hashes,
in which no number, and no sign of a number, can be replaced by another.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import gmpy2

from dapfl.crypto.engines.base import to_ints, to_rows
from dapfl.crypto.paillier import PublicKey
from dapfl.crypto.proofs.transcript import CHALLENGE_BITS, CHALLENGE_BYTES, Transcript
from dapfl.errors import CryptoError, InvalidProof

_LABEL = b"dapfl range proof 2"
_CHALLENGES = 1 << CHALLENGE_BITS


@dataclass(frozen=True)
class _Bit:
    """c_j; the answers for b_j = 0 and b_j = 1; and the challenge for b_j = 0."""

    ciphertext: int
    answers: tuple[int, int]
    challenge: int


def proof_bytes(least: int, most: int, key: PublicKey) -> int:
    """The length of a proof for numbers from `least` to `most`."""
    return CHALLENGE_BYTES + len(bit_weights(most - least)) * sum(_widths(key))


def bit_weights(largest: int) -> list[int]:
    """What the bits of a number from 0 to `largest` are worth, so that no choice of them exceeds it.

    >>> bit_weights(10), bit_weights(7), bit_weights(8)
    ([1, 2, 4, 3], [1, 2, 4], [1, 2, 4, 1])
    """
    weights: list[int] = []
    rest = largest
    while rest > 0:
        weights.append(min(1 << len(weights), rest))
        rest -= weights[-1]
    return weights


def prove(value: int, least: int, most: int, key: PublicKey, context: bytes) -> bytes:
    """A fresh encryption of `value`, with the proof that least ≤ value ≤ most, good for one context."""
    if not least <= value <= most:
        raise CryptoError(f"{value} cannot be shown to lie between {least} and {most}.")
    n, square = key.n, key.n * key.n
    bits = _bits_of(value - least, bit_weights(most - least))
    # One row of secrets for every bit: r, s, and the answer to the statement that does not hold.
    units = [tuple(_unit(n) for _ in range(3)) for _ in bits]
    powers = iter(_nth_powers([unit for row in units for unit in row], key))
    over_g = gmpy2.invert(key.g, square)
    ciphertexts, announced, false_challenges = [], [], []
    for bit in bits:
        r_n, s_n, z_n = next(powers), next(powers), next(powers)
        c = int(r_n * key.g % square) if bit else r_n
        false_u = c if bit else c * over_g % square
        false_e = secrets.randbits(CHALLENGE_BITS)
        false_a = int(z_n * gmpy2.powmod(false_u, -false_e, square) % square)
        ciphertexts.append(c)
        announced += [false_a, s_n] if bit else [s_n, false_a]
        false_challenges.append(false_e)
    challenge = _challenge(ciphertexts, announced, least, most, key, context)
    parts = []
    for bit, c, (r, s, false_z), false_e in zip(bits, ciphertexts, units, false_challenges, strict=True):
        true_e = (challenge - false_e) % _CHALLENGES
        z = int(s * gmpy2.powmod(r, true_e, n) % n)
        parts.append(_Bit(c, (false_z, z), false_e) if bit else _Bit(c, (z, false_z), true_e))
    return challenge.to_bytes(CHALLENGE_BYTES, "little") + b"".join(_pack(part, key) for part in parts)


def verify(proof: bytes, least: int, most: int, key: PublicKey, context: bytes) -> int:
    """The ciphertext of a number that is proved to lie between `least` and `most`, or InvalidProof."""
    if len(proof) != proof_bytes(least, most, key):
        raise InvalidProof(
            f"A proof for {least} to {most} has {proof_bytes(least, most, key)} bytes, not {len(proof)}."
        )
    weights, stream = bit_weights(most - least), BytesIO(proof)
    challenge = int.from_bytes(stream.read(CHALLENGE_BYTES), "little")
    parts = [_unpack(stream, key) for _ in weights]
    announced = _announcements(parts, challenge, key)
    ciphertexts = [part.ciphertext for part in parts]
    if _challenge(ciphertexts, announced, least, most, key, context) != challenge:
        raise InvalidProof(f"The number is not shown to lie between {least} and {most}.")
    square = key.n * key.n
    total = gmpy2.powmod(key.g, least, square)
    for c, weight in zip(ciphertexts, weights, strict=True):
        total = total * gmpy2.powmod(c, weight, square) % square
    return int(total)


def _bits_of(value: int, weights: Sequence[int]) -> list[bool]:
    """Bits whose weights add up to a value: the largest weights first, which is always possible here."""
    bits = [False] * len(weights)
    for place in sorted(range(len(weights)), key=weights.__getitem__, reverse=True):
        if weights[place] <= value:
            bits[place] = True
            value -= weights[place]
    return bits


def _announcements(parts: Sequence[_Bit], challenge: int, key: PublicKey) -> list[int]:
    """z^n·u^(-e) for both statements about every bit."""
    square, announced = key.n * key.n, []
    powers = iter(_nth_powers([z for part in parts for z in part.answers], key))
    for part in parts:
        over_c = gmpy2.invert(part.ciphertext, square)
        for over_u, e in (
            (over_c, part.challenge),
            (over_c * key.g % square, (challenge - part.challenge) % _CHALLENGES),
        ):
            announced.append(int(next(powers) * gmpy2.powmod(over_u, e, square) % square))
    return announced


def _challenge(
    ciphertexts: Sequence[int],
    announced: Sequence[int],
    least: int,
    most: int,
    key: PublicKey,
    context: bytes,
) -> int:
    """The challenge that fits these numbers, and that nobody could know before choosing them."""
    bounds = b"%d %d" % (least, most)
    numbers = to_rows([key.n, key.g, *ciphertexts, *announced], key.ciphertext_bytes)
    return Transcript(_LABEL, context, bounds, numbers).challenge()


def _nth_powers(numbers: Sequence[int], key: PublicKey) -> list[int]:
    """x^n modulo n² of every number. The numbers are secret, the exponent is not."""
    if not numbers:
        return []
    return to_ints(key.ring.public_powers(to_rows(numbers, key.modulus_bytes), key.n))


def _unit(n: int) -> int:
    while True:
        unit = secrets.randbelow(n)
        if gmpy2.gcd(unit, n) == 1:
            return unit


def _widths(key: PublicKey) -> list[int]:
    """Ciphertext, two answers, one challenge."""
    return [key.ciphertext_bytes, key.modulus_bytes, key.modulus_bytes, CHALLENGE_BYTES]


def _pack(bit: _Bit, key: PublicKey) -> bytes:
    numbers = (bit.ciphertext, *bit.answers, bit.challenge)
    return b"".join(x.to_bytes(width, "little") for x, width in zip(numbers, _widths(key), strict=True))


def _unpack(stream: BytesIO, key: PublicKey) -> _Bit:
    c, z0, z1, e0 = (int.from_bytes(stream.read(width), "little") for width in _widths(key))
    if not (c < key.n * key.n and max(z0, z1) < key.n) or gmpy2.gcd(c * z0 * z1, key.n) != 1:
        raise InvalidProof("The proof holds a number that is not a unit.")
    return _Bit(c, (z0, z1), e0)
