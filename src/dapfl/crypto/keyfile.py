"""Keys as text: versioned JSON, checked on the way in.

A public key is plain text. A private key is readable by its owner only (mode 0600) and, with a
passphrase, encrypted by AES-256-GCM under a key that scrypt makes from it. Both carry the
fingerprint of the public key, so a damaged or mixed-up file is noticed.
"""

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from dapfl.crypto.paillier import PrivateKey, PublicKey, Randomness, check_size, keypair_from_primes
from dapfl.errors import CryptoError, KeyFileError

_PUBLIC, _PRIVATE = "dapfl-public-key", "dapfl-private-key"
_VERSION = 1
_SCRYPT_COST = 2**15
_LARGEST_COST = 2**20  # 1 GB: a file may not ask for more work than this
_LARGEST_FILE = 2**20
_LARGEST_KEY = 8192  # bits: checking that a number is prime must not take for ever


def to_text(key: PublicKey | PrivateKey, passphrase: str | None = None) -> str:
    """A key as text; only a private key can be put under a passphrase."""
    if isinstance(key, PublicKey):
        if passphrase is not None:
            raise KeyFileError("A public key is not a secret: it takes no passphrase.")
        body = {"bits": key.bits, "n": f"{key.n:x}", **_common(key)}
        return _dump(_PUBLIC, key, body)
    body = {"p": f"{key.p:x}", "q": f"{key.q:x}", **_common(key.public_key)}
    if passphrase is None:
        return _dump(_PRIVATE, key.public_key, body)
    return _dump(_PRIVATE, key.public_key, _lock(body, passphrase, key.public_key.fingerprint))


def public_from_text(
    text: str, *, engine: str = "auto", allow_insecure_small_keys: bool = False
) -> PublicKey:
    """The public key in a text, or KeyFileError."""
    body = _parse(text, _PUBLIC)
    try:
        n, randomness = _number(body, "n", _LARGEST_KEY), _randomness(body)
        check_size(n.bit_length(), allow_insecure_small_keys)
        key = PublicKey(n, _generator(body, n), randomness, engine)
    except CryptoError as error:
        raise KeyFileError(f"This public key cannot be used: {error}") from None
    return _same(key, body)


def private_from_text(
    text: str,
    passphrase: str | None = None,
    *,
    engine: str = "auto",
    allow_insecure_small_keys: bool = False,
) -> PrivateKey:
    """The private key in a text, or KeyFileError."""
    body = _parse(text, _PRIVATE)
    if "locked" in body:
        body = _unlock(body, passphrase)
    elif passphrase is not None:
        raise KeyFileError("This private key is not under a passphrase; leave the passphrase out.")
    try:
        p, q = (_number(body, name, _LARGEST_KEY // 2) for name in "pq")
        randomness = _randomness(body)
        check_size((p * q).bit_length(), allow_insecure_small_keys)
        key = keypair_from_primes(
            p,
            q,
            generator=_generator(body, p * q),
            randomness=randomness,
            engine=engine,
            allow_insecure_small_keys=allow_insecure_small_keys,
        )
    except CryptoError as error:
        raise KeyFileError(f"This private key cannot be used: {error}") from None
    _same(key.public_key, body)
    return key


def to_bytes(key: PublicKey | PrivateKey, passphrase: str | None = None) -> bytes:
    """A key as bytes: its text in UTF-8."""
    return to_text(key, passphrase).encode()


def public_from_bytes(
    data: bytes, *, engine: str = "auto", allow_insecure_small_keys: bool = False
) -> PublicKey:
    """The public key in bytes, or KeyFileError."""
    return public_from_text(_decode(data), engine=engine, allow_insecure_small_keys=allow_insecure_small_keys)


def private_from_bytes(
    data: bytes,
    passphrase: str | None = None,
    *,
    engine: str = "auto",
    allow_insecure_small_keys: bool = False,
) -> PrivateKey:
    """The private key in bytes, or KeyFileError."""
    return private_from_text(
        _decode(data), passphrase, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
    )


def save(path: Path, key: PublicKey | PrivateKey, passphrase: str | None = None) -> None:
    """Write a key file, whole or not at all; a private one is for its owner's eyes only (0600)."""
    text = to_text(key, passphrase)
    mode = 0o600 if isinstance(key, PrivateKey) else 0o644
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise KeyFileError(f"The key file {path} cannot be written: {error.strerror}.") from None


def load_public(path: Path, *, engine: str = "auto", allow_insecure_small_keys: bool = False) -> PublicKey:
    """The public key in a file."""
    with _naming(path):
        return public_from_bytes(
            _read(path), engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
        )


def load_private(
    path: Path,
    passphrase: str | None = None,
    *,
    engine: str = "auto",
    allow_insecure_small_keys: bool = False,
) -> PrivateKey:
    """The private key in a file."""
    with _naming(path):
        return private_from_bytes(
            _read(path), passphrase, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
        )


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say which file it was."""
    try:
        yield
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise KeyFileError("The file is too large to be a key.")
        return path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"The key file cannot be read: {error.strerror}.") from None


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise KeyFileError("This is not a key: it is not text.") from None


def _dump(kind: str, key: PublicKey, body: dict[str, Any]) -> str:
    head = {"format": kind, "version": _VERSION, "fingerprint": key.fingerprint}
    return json.dumps(head | body, indent=1) + "\n"


def _common(key: PublicKey) -> dict[str, Any]:
    return {"g": "n+1" if key.g == key.n + 1 else f"{key.g:x}", "randomness": key.randomness}


def _parse(text: str, kind: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise KeyFileError("This is not a key: it is no whole JSON text (truncated or damaged?).") from None
    if not isinstance(body, dict) or body.get("format") not in (_PUBLIC, _PRIVATE):
        raise KeyFileError("This is not a key of Dap-FL.")
    if body["format"] != kind:
        raise KeyFileError(f"This is a {body['format']}; a {kind} is needed.")
    if body.get("version") != _VERSION:
        raise KeyFileError(f"This key has version {body.get('version')!r}; this Dap-FL reads {_VERSION}.")
    return body


def _number(body: dict[str, Any], name: str, bits: int) -> int:
    text = body.get(name)
    digits = set("0123456789abcdef")
    if not isinstance(text, str) or not 1 <= len(text) <= bits // 4 or set(text) - digits:
        raise KeyFileError(f"The key is damaged: '{name}' is no hexadecimal number of a key's size.")
    return int(text, 16)


def _generator(body: dict[str, Any], n: int) -> int:
    return n + 1 if body.get("g") == "n+1" else _number(body, "g", 2 * _LARGEST_KEY)


def _randomness(body: dict[str, Any]) -> Randomness:
    match body.get("randomness"):
        case "djn":
            return "djn"
        case "full":
            return "full"
    raise KeyFileError("The key is damaged: 'randomness' is neither djn nor full.")


def _same(key: PublicKey, body: dict[str, Any]) -> PublicKey:
    if body.get("fingerprint") != key.fingerprint:
        raise KeyFileError("The key is damaged or put together from two keys: its fingerprint does not fit.")
    return key


def _lock(body: dict[str, Any], passphrase: str, fingerprint: str) -> dict[str, Any]:
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    cipher = _passphrase_cipher(passphrase, salt, _SCRYPT_COST)
    locked = cipher.encrypt(nonce, json.dumps(body).encode(), fingerprint.encode())
    return {"scrypt": _SCRYPT_COST, "salt": salt.hex(), "nonce": nonce.hex(), "locked": locked.hex()}


def _unlock(body: dict[str, Any], passphrase: str | None) -> dict[str, Any]:
    if passphrase is None:
        raise KeyFileError("This private key is under a passphrase; give it.")
    cost, fingerprint = body.get("scrypt"), body.get("fingerprint")
    try:
        salt, nonce, locked = (bytes.fromhex(body[name]) for name in ("salt", "nonce", "locked"))
    except (KeyError, TypeError, ValueError):
        raise KeyFileError("The key is damaged: its encryption cannot be read.") from None
    known = isinstance(cost, int) and 2 <= cost <= _LARGEST_COST and cost & (cost - 1) == 0
    if not known or len(nonce) != 12 or len(salt) != 16 or not isinstance(fingerprint, str):
        raise KeyFileError("The key is damaged: its encryption cannot be read.")
    try:
        text = _passphrase_cipher(passphrase, salt, int(cost or 0)).decrypt(
            nonce, locked, fingerprint.encode()
        )
    except InvalidTag:
        raise KeyFileError("The passphrase is wrong, or the key was tampered with.") from None
    return {**json.loads(text), "fingerprint": fingerprint}


def _passphrase_cipher(passphrase: str, salt: bytes, cost: int) -> AESGCM:
    return AESGCM(Scrypt(salt=salt, length=32, n=cost, r=8, p=1).derive(passphrase.encode()))
