"""The second encryption ε₂ of a whole message (Eqs. 36-37): `paillier`, the paper's, and `hybrid`.

`seal` takes bytes of any length and a context that both sides know (in AEAD terms, the associated
data); `open` returns the bytes only to the owner of the key, only whole, and only under the same context.

>>> from dapfl.crypto.keys.key_generation import generate_keypair
>>> key = generate_keypair(512, allow_insecure_small_keys=True)
>>> for name in ("paillier", "hybrid"):
...     envelope = envelope_named(name)
...     envelope.open(envelope.seal(b"hello", key.public_key, b"round 3"), key, b"round 3")
b'hello'
b'hello'
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dapfl.arrays import Rows
from dapfl.crypto.paillier import PrivateKey, PublicKey, decrypt_each
from dapfl.errors import ConfigError, EnvelopeError, InvalidCiphertext

_DIGEST = 32
_LENGTH = 8
_TAG = 16
_NONCE = bytes(12)  # every message has an AES key of its own, so the nonce may be constant


class Envelope(Protocol):
    """ε₂."""

    name: str
    fills_lanes: bool
    """Whether one message gives a native engine enough to do, so that nothing is gained by opening many."""

    def seal(self, data: bytes, key: PublicKey, context: bytes) -> bytes:
        """The bytes, sealed so that only the owner of `key` can read them."""

    def open(self, sealed: bytes, key: PrivateKey, context: bytes) -> bytes:
        """The bytes that were sealed under the same context, or EnvelopeError."""

    def open_each(self, sealed: Sequence[tuple[bytes, PrivateKey, bytes]]) -> list[bytes | EnvelopeError]:
        """What `open` returns or raises for each (sealed, key, context)."""


class PaillierEnvelope:
    """The paper's double mask: the message cut into blocks, each a Paillier plaintext.

    Paillier ciphertexts can be altered without knowing what they hold, so the blocks begin with
    the length and a hash of context and message, which such an alteration cannot put right.
    """

    name = "paillier"
    fills_lanes = True

    def seal(self, data: bytes, key: PublicKey, context: bytes) -> bytes:
        """ε₂ of every block (Eq. 36)."""
        width = key.plaintext_bytes
        header = len(data).to_bytes(_LENGTH, "little") + _digest(data, context)
        blocks = bytearray(header + data)
        blocks += bytes(-len(blocks) % width)
        return key.encrypt(np.frombuffer(blocks, np.uint8).reshape(-1, width)).tobytes()

    def open(self, sealed: bytes, key: PrivateKey, context: bytes) -> bytes:
        """Dec of every block (Eq. 37), and the check of length and hash."""
        public = key.public_key
        if not sealed or len(sealed) % public.ciphertext_bytes:
            raise EnvelopeError(
                f"A sealed message is a whole number of {public.ciphertext_bytes}-byte ciphertexts; "
                f"this one has {len(sealed)} bytes."
            )
        rows = np.frombuffer(sealed, np.uint8).reshape(-1, public.ciphertext_bytes)
        try:
            blocks = key.decrypt(rows)
        except InvalidCiphertext as error:
            raise EnvelopeError(f"The envelope does not open: {error}") from None
        width = public.plaintext_bytes
        text = np.ascontiguousarray(blocks[:, :width]).tobytes()
        length = int.from_bytes(text[:_LENGTH], "little")
        start = _LENGTH + _DIGEST
        data = text[start : start + length]
        intact = (
            -(-(start + length) // width) == len(rows)
            and not blocks[:, width:].any()
            and not any(text[start + length :])
            and hmac.compare_digest(text[_LENGTH:start], _digest(data, context))
        )
        if not intact:
            raise EnvelopeError("The envelope does not open: it was altered, or sealed for another context.")
        return data

    def open_each(self, sealed: Sequence[tuple[bytes, PrivateKey, bytes]]) -> list[bytes | EnvelopeError]:
        """One after the other."""
        results: list[bytes | EnvelopeError] = []
        for each in sealed:
            try:
                results.append(self.open(*each))
            except EnvelopeError as error:
                results.append(error)
        return results


class HybridEnvelope:
    """A random Paillier plaintext under ε₂ gives an AES-256-GCM key, which seals the message.

    The context is authenticated with the message.
    """

    name = "hybrid"
    fills_lanes = False

    def seal(self, data: bytes, key: PublicKey, context: bytes) -> bytes:
        """The wrapped secret, then the message under AES-256-GCM."""
        secret = np.frombuffer(secrets.token_bytes(key.plaintext_bytes), np.uint8)
        wrapped = key.encrypt(secret.reshape(1, -1)).tobytes()
        return wrapped + _cipher(secret.tobytes(), wrapped).encrypt(_NONCE, data, context)

    def open(self, sealed: bytes, key: PrivateKey, context: bytes) -> bytes:
        """The message, if neither it nor the wrapped secret was altered."""
        (result,) = self.open_each([(sealed, key, context)])
        if isinstance(result, EnvelopeError):
            raise result
        return result

    def open_each(self, sealed: Sequence[tuple[bytes, PrivateKey, bytes]]) -> list[bytes | EnvelopeError]:
        """All secrets are unwrapped in one go."""
        results: list[bytes | EnvelopeError] = []
        wrapped: dict[int, Rows] = {}
        for index, (data, key, _) in enumerate(sealed):
            width = key.public_key.ciphertext_bytes
            least = width + _TAG
            results.append(EnvelopeError(f"A sealed message has at least {least} bytes, not {len(data)}."))
            if len(data) >= least:
                wrapped[index] = np.frombuffer(data[:width], np.uint8).reshape(1, -1)
        secret_rows = decrypt_each([sealed[index][1] for index in wrapped], list(wrapped.values()))
        for index, secret in zip(wrapped, secret_rows, strict=True):
            results[index] = _unlocked(secret, *sealed[index])
        return results


def _unlocked(secret: Rows | None, sealed: bytes, key: PrivateKey, context: bytes) -> bytes | EnvelopeError:
    """The message that was sealed with this secret."""
    if secret is None:
        return EnvelopeError("The envelope does not open: it holds no ciphertext of this key.")
    public = key.public_key
    width = public.ciphertext_bytes
    try:
        cipher = _cipher(secret[0, : public.plaintext_bytes].tobytes(), sealed[:width])
        return cipher.decrypt(_NONCE, memoryview(sealed)[width:], context)  # a slice would be a copy
    except InvalidTag:
        return EnvelopeError(
            "The envelope does not open: it was altered, or sealed for another key or context."
        )


_ENVELOPES: dict[str, type[Envelope]] = {
    "paillier": PaillierEnvelope,
    "hybrid": HybridEnvelope,
}


def envelope_named(name: str) -> Envelope:
    """The envelope of that name."""
    if name not in _ENVELOPES:
        raise ConfigError(f"There is no envelope '{name}'; choose {' or '.join(_ENVELOPES)}.")
    return _ENVELOPES[name]()


def _digest(data: bytes, context: bytes) -> bytes:
    state = hashlib.sha256(b"dapfl paillier envelope 1" + len(context).to_bytes(8, "big") + context)
    state.update(data)
    return state.digest()


def _cipher(secret: bytes, wrapped: bytes) -> AESGCM:
    return AESGCM(hashlib.sha256(b"dapfl hybrid envelope 1" + secret + wrapped).digest())
