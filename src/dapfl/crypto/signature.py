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
    (signature,) = sign_each([message], key)
    return signature


def sign_each(messages: Sequence[bytes], key: PrivateKey) -> list[bytes]:
    """What `sign` returns for each message; all of them share the lanes of a native engine."""
    public = key.public_key
    hashes = [hash_to_unit(message, public) for message in messages]
    rests = hashes  # h/g^σ modulo n: 1 + n is 1 there
    if public.g != public.n + 1:
        over_g = (gmpy2.powmod(public.g, -key.decrypt_int(h), public.n) for h in hashes)
        rests = [int(h * power % public.n) for h, power in zip(hashes, over_g, strict=True)]
    # σ = L(h^ϱ)/L(g^ϱ) mod n is the decryption of h; σ̃ is an n-th root, one half for each prime.
    inverses = int(gmpy2.invert(public.n, key.p - 1)), int(gmpy2.invert(public.n, key.q - 1))  # 1/n mod ϱ
    p_inverse = gmpy2.invert(key.p, key.q)
    pairs = [
        (sigma, int(roots[0] + key.p * ((roots[1] - roots[0]) * p_inverse % key.q)))
        for sigma, roots in key.decrypt_beside(hashes, rests, inverses)
    ]
    if not _sound(pairs, hashes, key):
        raise SigningFault(
            "A signature came out wrong and was discarded. The computer made an arithmetic error: "
            "check its memory and its processor before using this key again."
        )
    width = public.modulus_bytes
    return [
        sigma.to_bytes(width, "little") + tilde.to_bytes(width, "little")
        for sigma, tilde in pairs
        if sigma is not None  # none is: they are sound
    ]


def _sound(pairs: Sequence[tuple[int | None, int]], hashes: Sequence[int], key: PrivateKey) -> bool:
    """The equation of Verify, h = g^σ·σ̃ⁿ modulo n², for each (σ, σ̃), as the owner of the key checks it with
    less work.

    h/g^σ must be an n-th power modulo n², which is what decrypts to 0, and σ̃ its root modulo n. That is the
    same: x^n modulo n² depends on x modulo n only, and n-th roots modulo n are unique, so an n-th power
    modulo n² is known by its remainder modulo n. None of the powers is one that `sign_each` has computed.
    """
    public = key.public_key
    square = public.n * public.n
    plain = public.g == public.n + 1
    rests = []
    for (sigma, tilde), h in zip(pairs, hashes, strict=True):
        if sigma is None or not (sigma < public.n and 0 < tilde < public.n and key.p * key.q == public.n):
            return False
        over_g = 1 - sigma * public.n if plain else gmpy2.powmod(public.g, -sigma, square)  # 1/g^σ
        rests.append(int(h * over_g % square))
    exponents = public.n % (key.p - 1), public.n % (key.q - 1)
    found = key.decrypt_beside(rests, [tilde for _, tilde in pairs], exponents)
    return found == [(0, (rest % key.p, rest % key.q)) for rest in rests]


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
