"""Decryption by t members of a committee, each with a proof that its share is right.

Every member turns every ciphertext of a batch into a share, and proves the whole batch by one short proof.
Whoever has the shares of t members combines them to the plaintexts; with fewer nobody learns anything.

>>> import numpy as np
>>> from dapfl.crypto.keys.threshold_keys import generate_committee
>>> members = generate_committee(512, members=5, threshold=3, allow_insecure_small_keys=True)
>>> committee = members[0].committee
>>> ciphertexts = committee.public_key.encrypt(np.array([[42], [7]], np.uint8))
>>> shares = [decryption_share(ciphertexts, member, b"round 3") for member in members[1:4]]
>>> for share in shares:
...     verify(share, ciphertexts, committee, b"round 3")
>>> combine(shares, ciphertexts, committee)[:, 0].tolist()
[42, 7]

Shares. c = (1+n)^m·ρ^n is ρ^n modulo n, and (1+n)^m is what is left of c when ρ^n is taken out. Modulo n,
member i computes c^(2Δ·s_i) with Δ = L!. With Lagrange's λ_i = Δ·∏ j/(j-i) over the other members j at
hand, Σ λ_i·s_i = Δ/n modulo p'q', the order of the squares. So w = ∏ share_i^(2λ_i) = ρ^(4Δ²) modulo n,
and c^(4Δ²)/w^n = (1+n)^(4Δ²·m) modulo n². This is Shoup's threshold RSA (Eurocrypt 2000) with the
exponent n. Powers modulo n² with exponents twice as long, as in Damgård and Jurik's threshold Paillier,
cost a member five times as much, and its share is twice as long.

Combining checks itself: n-th roots modulo n are unique, so if w^n = c^(4Δ²) modulo n, then w is right and
so is m, whoever made the shares. Only if not, proofs are needed, to say who is to blame.

What is revealed is m and ρ, the randomness of c. For a product of ciphertexts that is the product of
their randomness, of which two unknown factors hide each other as the two plaintexts in a sum do: given
c_1 of anything, c_2 = (1+n)^m·ρ^n/c_1 for random m and ρ is distributed as a second contribution is. So a
member must decrypt only what holds two contributions at least that the one who asks has not made.

Why a proved share is right. All that counts is the square of a share: combining takes no other power. So
let x_k = c_k^(4Δ) and y_k = share_k²; right means y_k = x_k^(s_i) for every k. x_k, y_k, v and v_i lie in
the group of squares modulo n, which is cyclic of order p'q' with no prime factor below 2^1000: the
elements of small order, -1 and what else is a root of 1, are gone with the squaring. The proof draws
weights of 128 bits from the hash of everything and shows that y, the product of the y_k to the power of
their weights, is x^a and v_i is v^a with one and the same a, where x is the same product of the x_k:

* If one y_k were wrong, then for P = p' or P = q' the logarithms of the y_j/x_j^(s_i) to a generator are
  not all 0 modulo P. A weighted sum of them is 0 modulo P for at most one in 2^128 of the choices of that
  one's weight.
* The rest is Chaum and Pedersen's proof: x^r and v^r are announced, e is the hash, z = r + e·s_i the
  answer. If y is not x^(s_i), one announcement has at most one e for which a z exists: answers to e and
  e' would give x^(z-z') = y^(e-e') and v^(z-z') = v_i^(e-e'), where e-e', below 2^128, has an inverse
  modulo the order, and v, a random square, generates the group (all but once in 2^1000).

The prover can try hashes until one fits, which succeeds once in 2^128. The proof reveals nothing about s_i:
r is longer than e·s_i by 128 bits, so z is within 2^-128 of a number that has nothing to do with it.

Time. s_i and r are exponents of `Ring.residue_powers` only, whose time depends on their length, not on
their bits.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import gmpy2
import numpy as np

from dapfl.arrays import Rows
from dapfl.crypto.engines.base import to_ints, to_rows
from dapfl.crypto.keys.threshold_keys import Committee, KeyShare
from dapfl.crypto.paillier import PublicKey
from dapfl.crypto.proofs.transcript import CHALLENGE_BITS, CHALLENGE_BYTES, Transcript, weights
from dapfl.errors import InvalidShare

_LABEL = b"dapfl decryption share 1"
_HIDING_BITS = 128


@dataclass(frozen=True, eq=False)
class DecryptionShare:
    """What one member makes of a batch of ciphertexts, one number below n in each row, and its proof."""

    member: int
    numbers: Rows
    proof: bytes


def decryption_share(ciphertexts: Rows, key: KeyShare, context: bytes) -> DecryptionShare:
    """c^(2Δ·s_i) modulo n for every ciphertext, with a proof that is good for one context.

    Raises InvalidCiphertext for anything that is not a unit modulo n². What the ciphertexts are, and whether
    they may be decrypted at all, is for the caller to check first.
    """
    committee = key.committee
    committee.public_key.validate(ciphertexts)
    numbers = committee.public_key.ring.residue_powers(ciphertexts, 2 * committee.delta * key.secret)
    return DecryptionShare(key.member, numbers, prove(numbers, ciphertexts, key, context))


def prove(numbers: Rows, ciphertexts: Rows, key: KeyShare, context: bytes) -> bytes:
    """The proof that a member's numbers are the ciphertexts to the power 2Δ·s_i, but for their signs."""
    committee = key.committee
    statement = _Statement.of(ciphertexts, numbers, committee, key.member, context)
    r = secrets.randbits(_nonce_bits(committee))
    challenge = statement.challenge(committee.public_key.ring.residue_powers(statement.bases, r))
    answer = r + challenge * key.secret
    width = _answer_bytes(committee)
    return challenge.to_bytes(CHALLENGE_BYTES, "little") + answer.to_bytes(width, "little")


def verify(share: DecryptionShare, ciphertexts: Rows, committee: Committee, context: bytes) -> None:
    """Return if a member's share of these ciphertexts is right, raise InvalidShare if not."""
    member, key = share.member, committee.public_key
    if not 1 <= member <= committee.members:
        raise InvalidShare(f"There is no member {member} in this committee.")
    if len(share.proof) != proof_bytes(committee):
        raise InvalidShare(f"The proof of member {member} has {len(share.proof)} bytes.")
    key.validate(ciphertexts)
    _check_numbers(share, len(ciphertexts), committee)
    challenge = int.from_bytes(share.proof[:CHALLENGE_BYTES], "little")
    answer = int.from_bytes(share.proof[CHALLENGE_BYTES:], "little")
    statement = _Statement.of(ciphertexts, share.numbers, committee, member, context)
    if answer and statement.challenge(statement.announcement(challenge, answer, key)) == challenge:
        return
    raise InvalidShare(f"The share of member {member} is not proved: it is of another batch, or false.")


def combine(shares: Sequence[DecryptionShare], ciphertexts: Rows, committee: Committee) -> Rows:
    """The plaintexts, as rows of `modulus_bytes`, from the shares of t members or more.

    The result is right, whether or not the shares were verified; shares that do not fit raise InvalidShare,
    and `verify` says whose they are.
    """
    key, needed = committee.public_key, committee.threshold
    chosen = list({share.member: share for share in shares}.values())[:needed]
    if len(chosen) < needed:
        raise InvalidShare(f"{needed} members must decrypt together; these are {len(chosen)}.")
    key.validate(ciphertexts)
    n, scale = gmpy2.mpz(key.n), 4 * committee.delta**2
    roots = _interpolate(chosen, len(ciphertexts), committee)  # w = ρ^(4Δ²)
    above = to_ints(key.ring.public_powers(ciphertexts, scale))
    below = to_ints(key.ring.public_powers(to_rows(roots, key.modulus_bytes), key.n))
    # above/below = (1+n)^M: for a = a_0 + a_1·n and b = b_0 + b_1·n, a_0 = b_0 and a_1 = b_1 + M·b_0.
    plaintexts = []
    for a, b in zip(above, below, strict=True):
        (a_1, a_0), (b_1, b_0) = gmpy2.f_divmod(a, n), gmpy2.f_divmod(b, n)
        if a_0 != b_0:
            raise InvalidShare("The shares do not decrypt these ciphertexts: at least one of them is false.")
        plaintexts.append((a_1 - b_1) * gmpy2.invert(scale * b_0, n) % n)
    return to_rows(plaintexts, key.modulus_bytes)


def proof_bytes(committee: Committee) -> int:
    """The length of every member's proof."""
    return CHALLENGE_BYTES + _answer_bytes(committee)


@dataclass(frozen=True)
class _Statement:
    """That y has the logarithm to x that v_i has to v; and the hash of what was said before that."""

    x: int
    y: int
    v: int
    v_i: int
    n: int
    seed: bytes

    @classmethod
    def of(
        cls, ciphertexts: Rows, numbers: Rows, committee: Committee, member: int, context: bytes
    ) -> "_Statement":
        """The batch as one statement, by weights that depend on all of it."""
        key, v, v_i = committee.public_key, committee.v, committee.verification_keys[member - 1]
        places = to_rows([member, committee.members, committee.threshold], 4)
        keys = to_rows([key.n, v, v_i], key.modulus_bytes)
        seed = Transcript(_LABEL, context, places, keys, ciphertexts, numbers).seed()
        batch = weights(seed, len(ciphertexts))
        x, y = (to_ints(key.ring.residue_power_product(rows, batch))[0] for rows in (ciphertexts, numbers))
        return cls(pow(x, 4 * committee.delta, key.n), pow(y, 2, key.n), v, v_i, key.n, seed)

    @property
    def bases(self) -> Rows:
        """x and v."""
        return to_rows([self.x, self.v], (self.n.bit_length() + 7) // 8)

    def challenge(self, announced: Rows) -> int:
        """What answers an announcement."""
        return Transcript(_LABEL, self.seed, announced).challenge()

    def announcement(self, challenge: int, answer: int, key: PublicKey) -> Rows:
        """The one announcement that a challenge and an answer fit: x^z/y^e and v^z/v_i^e."""
        powers = to_ints(key.ring.residue_powers(self.bases, answer))
        rest = (gmpy2.powmod(number, -challenge, key.n) for number in (self.y, self.v_i))
        return to_rows([a * b % key.n for a, b in zip(powers, rest, strict=True)], key.modulus_bytes)


def _interpolate(shares: Sequence[DecryptionShare], count: int, committee: Committee) -> list[int]:
    """∏ share_i^(2λ_i) modulo n, for every ciphertext."""
    n, ring = committee.public_key.n, committee.public_key.ring
    members = [share.member for share in shares]
    products = [gmpy2.mpz(1)] * count
    for share in shares:
        _check_numbers(share, count, committee)
        coefficient = _lagrange(share.member, members, committee.delta)
        powers = to_ints(ring.residue_powers(share.numbers, 2 * abs(coefficient)))
        if coefficient < 0:
            powers = [gmpy2.invert(power, n) for power in powers]
        products = [a * b % n for a, b in zip(products, powers, strict=True)]
    return products


def _check_numbers(share: DecryptionShare, count: int, committee: Committee) -> None:
    """That a share is a matrix of units modulo n, one for every ciphertext."""
    n, width = committee.public_key.n, committee.public_key.modulus_bytes
    numbers = share.numbers
    if not isinstance(numbers, np.ndarray) or numbers.dtype != np.uint8 or numbers.shape != (count, width):
        raise InvalidShare(f"Member {share.member} has not answered for every ciphertext.")
    product = gmpy2.mpz(1)
    for number in to_ints(numbers):
        product = product * number % n if number < n else gmpy2.mpz(0)
    if gmpy2.gcd(product, n) != 1:
        raise InvalidShare(f"The share of member {share.member} holds a number that is not a unit modulo n.")


def _lagrange(member: int, members: Sequence[int], delta: int) -> int:
    """Δ·∏ j/(j-i) over the other members j."""
    above, below = delta, 1
    for other in members:
        if other != member:
            above *= other
            below *= other - member
    return above // below


def _nonce_bits(committee: Committee) -> int:
    """The length of r: longer than e·s_i by enough to hide it."""
    return committee.public_key.bits + CHALLENGE_BITS + _HIDING_BITS


def _answer_bytes(committee: Committee) -> int:
    return _nonce_bits(committee) // 8 + 1
