"""Secrets under a passphrase: AES-256-GCM, with a key that scrypt makes from the passphrase."""

import os
import secrets
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from dapfl.errors import KeyFileError

VARIABLE = "DAPFL_PASSPHRASE_FILE"
"""The environment variable that names the file with the passphrase of this participant."""

_SCRYPT_COST = 2**15
_LARGEST_COST = 2**20  # 1 GB: a file may not ask for more work than this
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that are mistaken for another
_LARGEST_FILE = 2**12


def lock(content: bytes, passphrase: str, context: str) -> dict[str, Any]:
    """Content that opens with this passphrase and in this context only, as fields of a JSON object."""
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    locked = _cipher(passphrase, salt, _SCRYPT_COST).encrypt(nonce, content, context.encode())
    return {"scrypt": _SCRYPT_COST, "salt": salt.hex(), "nonce": nonce.hex(), "locked": locked.hex()}


def unlock(fields: dict[str, Any], passphrase: str, context: str) -> bytes:
    """What `lock` was given; KeyFileError if the passphrase is another, or anything was changed."""
    cost = fields.get("scrypt")
    try:
        salt, nonce, locked = (bytes.fromhex(fields[name]) for name in ("salt", "nonce", "locked"))
    except (KeyError, TypeError, ValueError):
        raise KeyFileError("The key is damaged: its encryption cannot be read.") from None
    if not isinstance(cost, int) or not 2 <= cost <= _LARGEST_COST or cost & (cost - 1) != 0:
        raise KeyFileError("The key is damaged: its encryption cannot be read.")
    if len(nonce) != 12 or len(salt) != 16:
        raise KeyFileError("The key is damaged: its encryption cannot be read.")
    try:
        return _cipher(passphrase, salt, cost).decrypt(nonce, locked, context.encode())
    except InvalidTag:
        raise KeyFileError("The passphrase is wrong, or the key was tampered with.") from None


def generate() -> str:
    """A passphrase that nobody guesses: about 119 bits.

    >>> len(generate())
    29
    """
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(6))


def given() -> str | None:
    """The passphrase of this participant, if it has named a file that holds it."""
    if not (name := os.environ.get(VARIABLE)):
        return None
    try:
        with Path(name).open("rb") as file:
            text = file.read(_LARGEST_FILE).decode().strip()
    except OSError as error:
        raise KeyFileError(f"The passphrase in {name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise KeyFileError(f"{name} holds no passphrase: it is not text.") from None
    if not text:
        raise KeyFileError(f"{name} holds no passphrase: it is empty.")
    return text


def _cipher(passphrase: str, salt: bytes, cost: int) -> AESGCM:
    return AESGCM(Scrypt(salt=salt, length=32, n=cost, r=8, p=1).derive(passphrase.encode()))
