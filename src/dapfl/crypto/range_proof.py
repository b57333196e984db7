"""A ciphertext with a proof that what it holds is small, for someone who cannot decrypt it.

The number is encrypted bit by bit, c_j = g^(b_j)·r_j^n, and for every bit there is a proof that c_j
or c_j/g is an n-th power, which is to say that b_j is 0 or 1 (the 1-out-of-2 proof of Damgård and
Jurik, PKC 2001, made non-interactive by hashing). ∏ c_j^(2^j) is then a ciphertext of Σ b_j·2^j,
which is below 2^bits whatever the prover knows: even the primes of n, as clients of Dap-FL do.
The proof tells nothing else about the number.

>>> from dapfl.crypto.paillier import generate_keypair
>>> key = generate_keypair(512, allow_insecure_small_keys=True)
>>> proof = prove(600, 11, key, b"client 7")
>>> key.decrypt_int(verify(proof, 11, key.public_key, b"client 7"))
600

Why it holds. For a bit with c = c_j let u_0 = c and u_1 = c/g. The prover who knows u_b = r^n sends
a_b = s^n and answers a challenge e_b by z_b = s·r^(e_b); for the other one it picks e and z first and
sets a = z^n·u^(-e). Only the sum of the two challenges is fixed, by the hash of everything sent, so
one of them it could not pick. Two answers z, z' to one a with e ≠ e' give u^(e-e') = (z/z')^n, and
as |e-e'| is below the primes of n, u is an n-th power.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import gmpy2

from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import CryptoError, InvalidProof

_LABEL = b"dapfl range proof 1"
_CHALLENGE_BITS = 128  # guessing a challenge succeeds once in 2^128
_CHALLENGES = 1 << _CHALLENGE_BITS
_WEIGHT_BITS = 64


@dataclass(frozen=True)
class _Bit:
    """c_j; and for b_j = 0 and b_j = 1 what was announced and answered; and the challenge for b_j = 0."""

    ciphertext: int
    announced: tuple[int, int]
    answers: tuple[int, int]
    challenge: int


def proof_bytes(bits: int, key: PublicKey) -> int:
    """The length of a proof for numbers below 2^bits."""
    return bits * _bit_bytes(key)


def prove(value: int, bits: int, key: PrivateKey, context: bytes) -> bytes:
    """A fresh encryption of `value`, with the proof that it is below 2^bits, good for one context."""
    if not 0 <= value < 1 << bits:
        raise CryptoError(f"{value} cannot be shown to be below 2^{bits}.")
    public = key.public_key
    n, square = public.n, public.n * public.n
    ciphertexts, announced, secret = [], [], []
    for place in range(bits):
        bit = value >> place & 1
        r, s, false_answer = (_unit(n) for _ in range(3))
        false_challenge = secrets.randbits(_CHALLENGE_BITS)
        r_n, s_n, z_n = (_nth_power(x, key) for x in (r, s, false_answer))
        c = int(gmpy2.powmod(public.g, bit, square) * r_n % square)
        # The statement that does not hold: u = c if the bit is 1, u = c/g if it is 0.
        false_u = c if bit else c * int(gmpy2.invert(public.g, square)) % square
        false_a = int(z_n * gmpy2.powmod(false_u, -false_challenge, square) % square)
        ciphertexts.append(c)
        announced.append((false_a, s_n) if bit else (s_n, false_a))
        secret.append((bit, r, s, false_challenge, false_answer))
    challenge = _challenge(ciphertexts, announced, public, context)
    proof = b""
    for c, a, (bit, r, s, false_challenge, false_answer) in zip(ciphertexts, announced, secret, strict=True):
        true_challenge = (challenge - false_challenge) % _CHALLENGES
        answer = int(s * gmpy2.powmod(r, true_challenge, n) % n)
        if bit:
            proof += _pack(_Bit(c, a, (false_answer, answer), false_challenge), public)
        else:
            proof += _pack(_Bit(c, a, (answer, false_answer), true_challenge), public)
    return proof


def verify(proof: bytes, bits: int, key: PublicKey, context: bytes) -> int:
    """The ciphertext of a number that is proved to be below 2^bits, or InvalidProof."""
    width = _bit_bytes(key)
    if len(proof) != bits * width:
        raise InvalidProof(f"A proof for {bits} bits has {bits * width} bytes, not {len(proof)}.")
    parts = [_unpack(proof[start : start + width], key) for start in range(0, len(proof), width)]
    ciphertexts = [part.ciphertext for part in parts]
    challenge = _challenge(ciphertexts, [part.announced for part in parts], key, context)
    if not _answered(parts, challenge, key):
        raise InvalidProof("The number is not shown to be as small as it must be.")
    total, square = 1, key.n * key.n
    for c in reversed(ciphertexts):
        total = total * total * c % square
    return total


def _answered(parts: Sequence[_Bit], challenge: int, key: PublicKey) -> bool:
    """Whether z^n = a·u^e for every statement: all at once, each to a random power.

    A wrong one escapes once in 2^64: modulo n-th powers, where alone it matters, the group has no
    small order. (What such a power cannot see, the sign of a number, is itself an n-th power.)
    """
    n, square = key.n, key.n * key.n
    z, rest, over_g = 1, 1, 0
    for part in parts:
        exponent = 0  # of c, which u_0 = c and u_1 = c/g share
        for statement, e in enumerate((part.challenge, (challenge - part.challenge) % _CHALLENGES)):
            weight = secrets.randbits(_WEIGHT_BITS)
            z = z * int(gmpy2.powmod(part.answers[statement], weight, n)) % n
            rest = rest * int(gmpy2.powmod(part.announced[statement], weight, square)) % square
            exponent += weight * e
            over_g += statement * weight * e
        rest = rest * int(gmpy2.powmod(part.ciphertext, exponent, square)) % square
    rest = rest * int(gmpy2.powmod(key.g, -over_g, square)) % square
    return bool(gmpy2.powmod(z, n, square) == rest)


def _challenge(
    ciphertexts: Sequence[int], announced: Sequence[tuple[int, int]], key: PublicKey, context: bytes
) -> int:
    """The challenge that fits these numbers, and that nobody could know before choosing them."""
    width = key.ciphertext_bytes
    state = hashlib.sha256(_LABEL + len(context).to_bytes(8, "big") + context)
    for number in (key.n, key.g, *ciphertexts, *(a for pair in announced for a in pair)):
        state.update(number.to_bytes(width, "big"))
    return int.from_bytes(state.digest(), "big") % _CHALLENGES


def _nth_power(x: int, key: PrivateKey) -> int:
    """x^n modulo n², by way of p² and q²."""
    p_square, q_square = key.p * key.p, key.q * key.q
    low, high = (int(gmpy2.powmod(x, key.public_key.n, square)) for square in (p_square, q_square))
    return low + p_square * ((high - low) * int(gmpy2.invert(p_square, q_square)) % q_square)


def _unit(n: int) -> int:
    while True:
        unit = secrets.randbelow(n)
        if gmpy2.gcd(unit, n) == 1:
            return unit


def _widths(key: PublicKey) -> list[int]:
    """Ciphertext, two announced numbers, two answers, one challenge."""
    return [*[key.ciphertext_bytes] * 3, *[key.modulus_bytes] * 2, _CHALLENGE_BITS // 8]


def _bit_bytes(key: PublicKey) -> int:
    return sum(_widths(key))


def _pack(bit: _Bit, key: PublicKey) -> bytes:
    numbers = (bit.ciphertext, *bit.announced, *bit.answers, bit.challenge)
    return b"".join(x.to_bytes(width, "little") for x, width in zip(numbers, _widths(key), strict=True))


def _unpack(data: bytes, key: PublicKey) -> _Bit:
    stream = BytesIO(data)
    c, a0, a1, z0, z1, e0 = (int.from_bytes(stream.read(width), "little") for width in _widths(key))
    below = max(c, a0, a1) < key.n * key.n and max(z0, z1) < key.n
    if not below or gmpy2.gcd(c * a0 * a1 * z0 * z1, key.n) != 1:
        raise InvalidProof("The proof holds a number that is no unit.")
    return _Bit(c, (a0, a1), (z0, z1), e0)
