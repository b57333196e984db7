"""The Paillier signature (Section III-B, Eqs. 11-13).

A signature is σ‖σ̃, each as wide as n, little-endian. H is SHAKE-256 into Z*_{n²}; it hashes a
fixed label and n with the message, so that a signature means nothing under another key or scheme.

>>> from dapfl.crypto.paillier import generate_keypair
>>> key = generate_keypair(256, allow_insecure_small_keys=True)
>>> verify(b"message", sign(b"message", key), key.public_key)
>>> verify(b"massage", sign(b"message", key), key.public_key)
Traceback (most recent call last):
dapfl.errors.InvalidSignature: The signature does not fit the message and the key.
"""

import hashlib

import gmpy2

from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import InvalidSignature

_LABEL = b"dapfl signature 1"


def signature_bytes(key: PublicKey) -> int:
    """The length of every signature under that key."""
    return 2 * key.modulus_bytes


def sign(message: bytes, key: PrivateKey) -> bytes:
    """Sign (Eq. 12): σ‖σ̃."""
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
    return sigma.to_bytes(width, "little") + tilde.to_bytes(width, "little")


def verify(message: bytes, signature: bytes, key: PublicKey) -> None:
    """Verify (Eq. 13): return if h = g^σ·σ̃ⁿ mod n², raise InvalidSignature if not."""
    width = key.modulus_bytes
    if len(signature) != 2 * width:
        raise InvalidSignature(f"A signature under this key has {2 * width} bytes, not {len(signature)}.")
    sigma = int.from_bytes(signature[:width], "little")
    tilde = int.from_bytes(signature[width:], "little")
    # g^σ·σ̃ⁿ is what Enc makes of σ with the randomness σ̃.
    if sigma < key.n and 0 < tilde < key.n and key.encrypt_int(sigma, tilde) == hash_to_unit(message, key):
        return
    raise InvalidSignature("The signature does not fit the message and the key.")


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
