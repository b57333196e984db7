"""The Paillier libraries that a Python user could pick instead, behind one small interface.

Each is used through its own fastest batch interface, with one small integer per ciphertext. None of
them is a dependency: a peer that is not installed is reported as absent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class PaillierPeer(Protocol):
    """A key pair of another library. Batches are whatever that library works on."""

    def encrypt(self, values: list[int]) -> Any:
        """Encrypts integers, with fresh randomness each."""

    def add(self, a: Any, b: Any) -> Any:
        """Adds two encrypted batches."""

    def decrypt(self, batch: Any) -> list[int]:
        """Decrypts to integers."""


class Phe:
    """python-paillier: one object per number, plain ζⁿ, CRT decryption (GMP if gmpy2 is installed)."""

    def __init__(self, bits: int) -> None:
        from phe import paillier

        self._public, self._private = paillier.generate_paillier_keypair(n_length=bits)

    def encrypt(self, values: list[int]) -> Any:
        """Encrypts integers one by one."""
        return [self._public.encrypt(value) for value in values]

    def add(self, a: Any, b: Any) -> Any:
        """Adds number by number."""
        return [x + y for x, y in zip(a, b, strict=True)]

    def decrypt(self, batch: Any) -> list[int]:
        """Decrypts number by number."""
        return [self._private.decrypt(number) for number in batch]


class Heu:
    """SecretFlow's sf-heu through its numpy interface: ZPaillier (DJN with a table) or IPCL."""

    def __init__(self, schema: str, bits: int) -> None:
        from heu import numpy as heu_numpy
        from heu import phe as heu_phe

        self._kit = heu_numpy.setup(getattr(heu_phe.SchemaType, schema), bits)
        self._encoder = self._kit.bigint_encoder()

    def encrypt(self, values: list[int]) -> Any:
        """Encodes and encrypts an array."""
        plain = self._kit.array(np.array(values, dtype=np.int64), self._encoder)
        return self._kit.encryptor().encrypt(plain)

    def add(self, a: Any, b: Any) -> Any:
        """Adds two encrypted arrays."""
        return self._kit.evaluator().add(a, b)

    def decrypt(self, batch: Any) -> list[int]:
        """Decrypts and decodes an array."""
        return [int(value) for value in self._kit.decryptor().decrypt(batch).to_numpy(self._encoder)]


class Fate:
    """FATE's Rust library fate_utils: vectors over GMP, plain ζⁿ, CRT decryption."""

    def __init__(self, bits: int) -> None:
        from fate_utils import paillier

        self._private, self._public, self._coder = paillier.keygen(bits)

    def encrypt(self, values: list[int]) -> Any:
        """Encodes and encrypts a vector, obfuscated."""
        return self._public.encrypt_encoded(
            self._coder.encode_i64_vec(np.array(values, dtype=np.int64)), True
        )

    def add(self, a: Any, b: Any) -> Any:
        """Adds two encrypted vectors."""
        return a.add(self._public, b)

    def decrypt(self, batch: Any) -> list[int]:
        """Decrypts and decodes a vector."""
        return [int(value) for value in self._coder.decode_i64_vec(self._private.decrypt_to_encoded(batch))]


@dataclass(frozen=True)
class Candidate:
    """A peer that may be installed: how to make its keys and how to get it."""

    name: str
    module: str
    install: str
    make: Callable[[int], PaillierPeer]


PAILLIER_PEERS = (
    Candidate("phe", "phe", "pip install phe", Phe),
    Candidate("sf-heu ZPaillier", "heu", "pip install sf-heu==0.5.2b0", lambda bits: Heu("ZPaillier", bits)),
    Candidate("sf-heu IPCL", "heu", "pip install sf-heu==0.5.2b0", lambda bits: Heu("IPCL", bits)),
    Candidate("fate_utils", "fate_utils", "pip install fate_utils", Fate),
)
