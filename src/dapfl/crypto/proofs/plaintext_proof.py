"""Ciphertexts with a proof that their sender knows what they hold: one short proof for a whole vector.

Anyone can compute with Paillier ciphertexts. Whoever may add ∏ c_h⁻¹ of the others' contributions to a
sum takes them out of it again and leaves a single one. This proof stops that: a sender cannot prove a
vector that it has computed from ciphertexts of others, nor use a proof of others for itself, since every
proof is bound to a context, which names the sender, the round and the model.

>>> import numpy as np
>>> from dapfl.crypto.keys.key_generation import generate_keypair
>>> key = generate_keypair(512, allow_insecure_small_keys=True)
>>> ciphertexts, proof = encrypt(np.array([[42], [7]], np.uint8), key.public_key, b"client 7, round 3")
>>> verify(proof, ciphertexts, key.public_key, b"client 7, round 3")
>>> key.decrypt(ciphertexts)[:, 0].tolist()
[42, 7]

The proof. c_k = (1+n)^(m_k)·h_n^(r_k), as encryption with djn randomness makes it. The prover announces a
= (1+n)^α·h_n^β. The hash of everything, a included, gives a challenge e_k of 128 bits for every
ciphertext. The answers are μ = α + Σ e_k·m_k modulo n and σ = β + Σ e_k·r_k. Everyone checks
(1+n)^μ·h_n^σ = a·∏ c_k^(e_k).

What it proves: that the prover knows every single m_k modulo n. Rewind a prover that succeeds, and let
the hash give other challenges for the same a. Each pair of accepted answers, with δ_k the differences of
the challenges, gives ∏ c_k^(δ_k) = (1+n)^(μ-μ')·h_n^(σ-σ'). h_n is an n-th power, and decryption is a
homomorphism, so that Σ δ_k·m_k = μ - μ' modulo n: a linear equation with random coefficients. As many of
them as there are ciphertexts have one solution unless their determinant is 0 modulo p or q, which happens
less than once in 2^100. So all the m_k can be computed from the prover: it knows them. Nothing is assumed
here about the order of anything, and roots of 1 in a ciphertext do no harm: only its plaintext is proved,
not that its randomness is a power of h_n. A prover that knows all but one plaintext (or all but one sum
of them) must guess the challenge of that one: once in 2^128.

It reveals nothing: μ is uniform, since α is, and σ is within 2^-127 of what it would be without the r_k,
since β is longer by that.
"""

import secrets

import gmpy2
import numpy as np

from dapfl.arrays import Rows
from dapfl.crypto.engines.base import check_rows, to_ints, to_rows
from dapfl.crypto.paillier import PublicKey
from dapfl.crypto.proofs.transcript import CHALLENGE_BYTES, SEED_BYTES, Transcript, weights
from dapfl.errors import CryptoError, InvalidProof

_LABEL = b"dapfl plaintext proof 1"
_HIDING_BYTES = 16
_COUNT_BYTES = 4  # a vector has less than 2^32 ciphertexts


def encrypt(plaintexts: Rows, key: PublicKey, context: bytes) -> tuple[Rows, bytes]:
    """Fresh ciphertexts of the plaintexts, and the proof that whoever made them knows the plaintexts."""
    _check_key(key)
    plaintexts = check_rows(plaintexts, key.plaintext_bytes, "Plaintexts")
    exponents = key.draw_exponents(len(plaintexts))
    ciphertexts = key.encrypt_with(plaintexts, exponents)
    return ciphertexts, prove(ciphertexts, plaintexts, exponents, key, context)


def prove(ciphertexts: Rows, plaintexts: Rows, exponents: Rows, key: PublicKey, context: bytes) -> bytes:
    """The proof for ciphertexts that were made from these plaintexts and these exponents r_k."""
    alpha = secrets.randbelow(key.n)
    beta = secrets.randbits(8 * _sigma_bytes(key) - 1)
    seed = _seed(ciphertexts, _power(alpha, beta, key), key, context)
    mu, sigma = alpha, beta
    challenges = to_ints(weights(seed, len(plaintexts)))
    for e, m, r in zip(challenges, to_ints(plaintexts), to_ints(exponents), strict=True):
        mu += e * m
        sigma += e * r
    mu_bytes = (mu % key.n).to_bytes(key.modulus_bytes, "little")
    return seed + mu_bytes + sigma.to_bytes(_sigma_bytes(key), "little")


def verify(proof: bytes, ciphertexts: Rows, key: PublicKey, context: bytes) -> None:
    """Return if whoever made the proof knows all the plaintexts, raise InvalidProof if not.

    Raises InvalidCiphertext for anything that is not a unit modulo n².
    """
    _check_key(key)
    key.validate(ciphertexts)
    if len(proof) != proof_bytes(key):
        raise InvalidProof(f"A proof under this key has {proof_bytes(key)} bytes, not {len(proof)}.")
    seed, rest = proof[:SEED_BYTES], proof[SEED_BYTES:]
    mu, sigma = (
        int.from_bytes(part, "little") for part in (rest[: key.modulus_bytes], rest[key.modulus_bytes :])
    )
    if mu < key.n:
        # The one announcement that the answers fit.
        square = key.n * key.n
        combined = to_ints(key.ring.power_product(ciphertexts, weights(seed, len(ciphertexts))))[0]
        announced = _power(mu, sigma, key) * int(gmpy2.invert(combined, square)) % square
        if _seed(ciphertexts, announced, key, context) == seed:
            return
    raise InvalidProof("The sender is not shown to know what the ciphertexts hold.")


def proof_bytes(key: PublicKey) -> int:
    """The length of a proof, for any number of ciphertexts."""
    return SEED_BYTES + key.modulus_bytes + _sigma_bytes(key)


def _check_key(key: PublicKey) -> None:
    if key.g != key.n + 1 or key.randomness != "djn":
        raise CryptoError("Plaintexts are proved under keys with g = 1 + n and djn randomness only.")


def _sigma_bytes(key: PublicKey) -> int:
    """The length of β, and of Σ e_k·r_k with what hides it."""
    return key.mask_bytes + CHALLENGE_BYTES + _COUNT_BYTES + _HIDING_BYTES


def _power(mu: int, sigma: int, key: PublicKey) -> int:
    """(1+n)^μ·h_n^σ."""
    base = key.ring.fixed_base(key.h_n, _sigma_bytes(key))
    return to_ints(base.powers(to_rows([sigma], _sigma_bytes(key)), to_rows([mu], key.modulus_bytes)))[0]


def _seed(ciphertexts: Rows, announced: int, key: PublicKey, context: bytes) -> bytes:
    numbers = to_rows([key.n, announced], key.ciphertext_bytes)
    return Transcript(_LABEL, context, numbers, np.ascontiguousarray(ciphertexts)).seed()
