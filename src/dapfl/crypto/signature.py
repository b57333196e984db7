"""The Paillier signature (Section III-B, Eqs. 11-13).

A signature is σ‖σ̃, each as wide as n, little-endian. H is SHAKE-256 into Z*_{n²}; it hashes a
fixed label and n with the message, so that a signature means nothing under another key or scheme.

>>> from dapfl.crypto.keys.key_generation import generate_keypair
>>> key = generate_keypair(256, allow_insecure_small_keys=True)
>>> verify(b"message", sign(b"message", key), key.public_key)
>>> verify(b"massage", sign(b"message", key), key.public_key)
Traceback (most recent call last):
dapfl.errors.InvalidSignature: The signature does not fit the message and the key.
"""

import hashlib
from collections.abc import Sequence

import gmpy2
import numpy as np

from dapfl.crypto.engines import lanes
from dapfl.crypto.engines.base import to_ints
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import InvalidSignature, SigningFault

_LABEL = b"dapfl signature 1"
_NO_FIT = "The signature does not fit the message and the key."


def signature_bytes(key: PublicKey) -> int:
    """The length of every signature under that key."""
    return 2 * key.modulus_bytes


def sign(message: bytes, key: PrivateKey) -> bytes:
    """Sign (Eq. 12): σ‖σ̃.

    The signature is verified before it is returned. A hardware fault in one of the halves modulo p or q
    gives a signature from which anyone could factor n, so such a signature raises SigningFault instead.
    """
    public = key.public_key
    h = hash_to_unit(message, public)
    sigma = key.decrypt_int(h)  # σ = L(h^ϱ)/L(g^ϱ) mod n is the decryption of h
    roots = []
    for prime in (key.p, key.q):
        exponent = gmpy2.invert(public.n, prime - 1)  # 1/n mod ϱ, one half for each prime
        rest = h * gmpy2.powmod(public.g, -sigma, prime) % prime
        roots.append(gmpy2.powmod_sec(rest, exponent, prime))
    tilde = int(roots[0] + key.p * ((roots[1] - roots[0]) * gmpy2.invert(key.p, key.q) % key.q))
    width = public.modulus_bytes
    signature = sigma.to_bytes(width, "little") + tilde.to_bytes(width, "little")
    if not _sound(sigma, tilde, h, key):
        raise SigningFault(
            "A signature came out wrong and was discarded. The computer made an arithmetic error: "
            "check its memory and its processor before using this key again."
        )
    return signature


def _sound(sigma: int, tilde: int, h: int, key: PrivateKey) -> bool:
    """The equation of Verify. Its owner checks it modulo p² and q²: less work, and as good if p·q = n."""
    public = key.public_key
    if public.g != public.n + 1:
        return 0 < tilde < public.n and public.encrypt_int(sigma, tilde) == h
    halves = key.powers_modulo_primes(tilde, public.n, sigma)
    in_range = sigma < public.n and 0 < tilde < public.n and key.p * key.q == public.n
    return in_range and halves == (h % (key.p * key.p), h % (key.q * key.q))


def verify(message: bytes, signature: bytes, key: PublicKey) -> None:
    """Verify (Eq. 13): return if h = g^σ·σ̃ⁿ mod n², raise InvalidSignature if not."""
    (problem,) = verify_each([(message, signature, key)])
    if problem is not None:
        raise problem


def verify_each(signed: Sequence[tuple[bytes, bytes, PublicKey]]) -> list[InvalidSignature | None]:
    """Verifies many (message, signature, key) in one go: for each, None or what `verify` would raise.

    Every equation is checked by itself. They only share the lanes of a native engine.
    """
    problems: list[InvalidSignature | None] = []
    together: list[int] = []
    for index, (message, signature, key) in enumerate(signed):
        problem = _out_of_range(signature, key)
        if problem is None and key.g == key.n + 1 and len(signed) > 1:
            together.append(index)
        elif problem is None and key.encrypt_int(*_parts(signature, key)) != hash_to_unit(message, key):
            problem = InvalidSignature(_NO_FIT)  # g^σ·σ̃ⁿ is what Enc makes of σ with the randomness σ̃
        problems.append(problem)
    for width in {signed[index][2].modulus_bytes for index in together}:
        chosen = [index for index in together if signed[index][2].modulus_bytes == width]
        keys = [signed[index][2] for index in chosen]
        parts = np.frombuffer(b"".join(signed[index][1] for index in chosen), np.uint8).reshape(-1, 2 * width)
        rings = [key.ring for key in keys]
        powers = lanes.powers(rings, parts[:, width:], [key.n for key in keys], parts[:, :width])
        for index, key, power in zip(chosen, keys, powers, strict=True):
            if to_ints(power)[0] != hash_to_unit(signed[index][0], key):
                problems[index] = InvalidSignature(_NO_FIT)
    return problems


def _parts(signature: bytes, key: PublicKey) -> tuple[int, int]:
    """σ and σ̃."""
    width = key.modulus_bytes
    return int.from_bytes(signature[:width], "little"), int.from_bytes(signature[width:], "little")


def _out_of_range(signature: bytes, key: PublicKey) -> InvalidSignature | None:
    width = key.modulus_bytes
    if len(signature) != 2 * width:
        return InvalidSignature(f"A signature under this key has {2 * width} bytes, not {len(signature)}.")
    sigma, tilde = _parts(signature, key)
    return None if sigma < key.n and 0 < tilde < key.n else InvalidSignature(_NO_FIT)


def hash_to_unit(message: bytes, key: PublicKey) -> int:
    """H: a unit modulo n² that depends on every bit of the message and of n."""
    width, counter = key.ciphertext_bytes, 0
    modulus = key.n * key.n
    while True:
        state = hashlib.shake_256(_LABEL + counter.to_bytes(4, "big") + key.n.to_bytes(width, "big"))
        state.update(message)
        h = int.from_bytes(state.digest(width + 16), "big") % modulus
        if gmpy2.gcd(h, key.n) == 1:
            return h
        counter += 1
