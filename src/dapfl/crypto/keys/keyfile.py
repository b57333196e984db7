"""Keys as text: versioned JSON, checked on the way in.

A public key, and what everyone knows of a committee, is plain text. A private key, or a member's share of
one, is readable by its owner only (mode 0600) and, with a passphrase, encrypted by AES-256-GCM under a
key that scrypt makes from it. All carry the fingerprint of the public key, so a damaged or mixed-up file
is noticed.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dapfl.config import Randomness
from dapfl.crypto.keys.key_generation import check_size, keypair_from_primes
from dapfl.crypto.keys.passphrase import lock, unlock
from dapfl.crypto.keys.threshold_keys import Committee, KeyShare
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import CryptoError, KeyFileError

_PUBLIC, _PRIVATE = "dapfl-public-key", "dapfl-private-key"
_COMMITTEE, _SHARE = "dapfl-committee", "dapfl-key-share"
_VERSION = 1
_LARGEST_FILE = 2**20
_LARGEST_KEY = 8192  # bits: checking that a number is prime must not take forever


Key = PublicKey | PrivateKey | Committee | KeyShare


def to_text(key: Key, passphrase: str | None = None) -> str:
    """A key as text; only what is secret can be put under a passphrase."""
    if passphrase is not None and not _is_secret(key):
        raise KeyFileError("What everyone may know is not a secret: it takes no passphrase.")
    match key:
        case PublicKey():
            kind, public, body = _PUBLIC, key, _public_body(key)
        case PrivateKey():
            kind, public = _PRIVATE, key.public_key
            body = {"p": f"{key.p:x}", "q": f"{key.q:x}", **_common(public)}
        case Committee():
            kind, public, body = _COMMITTEE, key.public_key, _committee_body(key)
        case KeyShare():
            kind, public = _SHARE, key.committee.public_key
            body = {"member": key.member, "secret": f"{key.secret:x}", **_committee_body(key.committee)}
    if passphrase is not None:
        body = lock(json.dumps(body).encode(), passphrase, public.fingerprint)
    head = {"format": kind, "version": _VERSION, "fingerprint": public.fingerprint}
    return json.dumps(head | body, indent=1) + "\n"


def public_from_text(
    text: str, *, engine: str = "auto", allow_insecure_small_keys: bool = False
) -> PublicKey:
    """The public key in a text, or KeyFileError."""
    return _public(_parse(text, _PUBLIC), engine, allow_insecure_small_keys)


def private_from_text(
    text: str,
    passphrase: str | None = None,
    *,
    engine: str = "auto",
    allow_insecure_small_keys: bool = False,
) -> PrivateKey:
    """The private key in a text, or KeyFileError."""
    body = _open(_parse(text, _PRIVATE), passphrase)
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


def committee_from_text(
    text: str, *, engine: str = "auto", allow_insecure_small_keys: bool = False
) -> Committee:
    """The committee in a text, or KeyFileError."""
    return _committee(_parse(text, _COMMITTEE), engine, allow_insecure_small_keys)


def share_from_text(
    text: str,
    passphrase: str | None = None,
    *,
    engine: str = "auto",
    allow_insecure_small_keys: bool = False,
) -> KeyShare:
    """The member's share in a text, or KeyFileError."""
    body = _open(_parse(text, _SHARE), passphrase)
    committee = _committee(body, engine, allow_insecure_small_keys)
    try:
        share = KeyShare(committee, _count(body, "member"), _number(body, "secret", _LARGEST_KEY))
    except CryptoError as error:
        raise KeyFileError(f"This share cannot be used: {error}") from None
    if not share.fits():
        raise KeyFileError("The key is damaged: the share does not fit the committee's verification key.")
    return share


def to_bytes(key: Key, passphrase: str | None = None) -> bytes:
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


def save(path: Path, key: Key, passphrase: str | None = None) -> None:
    """Write a key file, whole or not at all; only the owner of a secret one can read it (0600)."""
    text = to_text(key, passphrase)
    mode = 0o600 if _is_secret(key) else 0o644
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


def load_committee(path: Path, *, engine: str = "auto", allow_insecure_small_keys: bool = False) -> Committee:
    """The committee in a file."""
    with _naming(path):
        return committee_from_text(
            _decode(_read(path)), engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
        )


def load_share(
    path: Path,
    passphrase: str | None = None,
    *,
    engine: str = "auto",
    allow_insecure_small_keys: bool = False,
) -> KeyShare:
    """The member's share in a file."""
    with _naming(path):
        return share_from_text(
            _decode(_read(path)),
            passphrase,
            engine=engine,
            allow_insecure_small_keys=allow_insecure_small_keys,
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


def _is_secret(key: Key) -> bool:
    return isinstance(key, PrivateKey | KeyShare)


def _public_body(key: PublicKey) -> dict[str, Any]:
    return {"bits": key.bits, "n": f"{key.n:x}", **_common(key)}


def _committee_body(committee: Committee) -> dict[str, Any]:
    return {
        "threshold": committee.threshold,
        "v": f"{committee.v:x}",
        "verification_keys": [f"{number:x}" for number in committee.verification_keys],
        **_public_body(committee.public_key),
    }


def _public(body: dict[str, Any], engine: str, allow_insecure_small_keys: bool) -> PublicKey:
    try:
        n, randomness = _number(body, "n", _LARGEST_KEY), _randomness(body)
        check_size(n.bit_length(), allow_insecure_small_keys)
        key = PublicKey(n, _generator(body, n), randomness, engine)
    except CryptoError as error:
        raise KeyFileError(f"This public key cannot be used: {error}") from None
    return _same(key, body)


def _committee(body: dict[str, Any], engine: str, allow_insecure_small_keys: bool) -> Committee:
    key = _public(body, engine, allow_insecure_small_keys)
    texts = body.get("verification_keys")
    if not isinstance(texts, list):
        raise KeyFileError("The key is damaged: it has no list of verification keys.")
    numbers = [_number({"verification_keys": text}, "verification_keys", _LARGEST_KEY) for text in texts]
    try:
        return Committee(key, _count(body, "threshold"), _number(body, "v", _LARGEST_KEY), tuple(numbers))
    except CryptoError as error:
        raise KeyFileError(f"This committee cannot be used: {error}") from None


def _common(key: PublicKey) -> dict[str, Any]:
    return {"g": "n+1" if key.g == key.n + 1 else f"{key.g:x}", "randomness": key.randomness}


def _parse(text: str, kind: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise KeyFileError("This is not a key: it is not complete JSON (truncated or damaged?).") from None
    if not isinstance(body, dict) or body.get("format") not in (_PUBLIC, _PRIVATE, _COMMITTEE, _SHARE):
        raise KeyFileError("This is not a key of Dap-FL.")
    if body["format"] != kind:
        raise KeyFileError(f"This is a {body['format']}; a {kind} is needed.")
    if body.get("version") != _VERSION:
        raise KeyFileError(f"This key has version {body.get('version')!r:.40}; this Dap-FL reads {_VERSION}.")
    return body


def _number(body: dict[str, Any], name: str, bits: int) -> int:
    text = body.get(name)
    digits = set("0123456789abcdef")
    if not isinstance(text, str) or not 1 <= len(text) <= bits // 4 or set(text) - digits:
        raise KeyFileError(f"The key is damaged: '{name}' is not a hexadecimal number of a key's size.")
    return int(text, 16)


def _count(body: dict[str, Any], name: str) -> int:
    number = body.get(name)
    if not isinstance(number, int) or isinstance(number, bool):
        raise KeyFileError(f"The key is damaged: '{name}' is not a whole number.")
    return number


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
        raise KeyFileError(
            "The key is damaged or put together from two keys: its fingerprint does not match."
        )
    return key


def _open(body: dict[str, Any], passphrase: str | None) -> dict[str, Any]:
    """The body of a secret key, which may be locked."""
    if "locked" in body:
        return _unlock(body, passphrase)
    if passphrase is not None:
        raise KeyFileError("This private key is not under a passphrase; leave the passphrase out.")
    return body


def _unlock(body: dict[str, Any], passphrase: str | None) -> dict[str, Any]:
    if passphrase is None:
        raise KeyFileError("This private key is under a passphrase; give it.")
    fingerprint = body.get("fingerprint")
    if not isinstance(fingerprint, str):
        raise KeyFileError("The key is damaged: its encryption cannot be read.")
    return {**json.loads(unlock(body, passphrase, fingerprint)), "fingerprint": fingerprint}
