"""The security seam: what a participant does with the keys it holds.

The protocol is written once, against these two interfaces. The Paillier suites do what the paper
does; the open suites carry the same integers in the same messages without keys, signatures or
envelopes (`--encryption none`). Both give the same global model, bit for bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dapfl.crypto.packing import VectorCodec
from dapfl.errors import EncodingError, ProtocolError

Rows = NDArray[np.uint8]


def rows_of(data: bytes, count: int, width: int) -> Rows:
    """Numbers as they travel, one after the other, as a matrix with one row a number."""
    if len(data) != count * width:
        raise ProtocolError("wrong-size", f"{len(data)} bytes where {count} numbers take {count * width}")
    return np.frombuffer(data, np.uint8).reshape(count, width)


def encoded_count(samples: int, codec: VectorCodec) -> Rows:
    """|D_i| as a plaintext; a client that holds more than it may says so itself."""
    try:
        return codec.encode_count(samples)
    except EncodingError as error:
        raise ProtocolError("absurd-size", str(error)) from None


class ClientSuite(ABC):
    """What client i can do."""

    row_bytes: int
    """How wide a number is that ε₁ gives."""

    @abstractmethod
    def encrypt(self, plaintexts: Rows) -> Rows:
        """ε₁ under PK_CS (Eq. 33)."""

    @abstractmethod
    def prove_count(self, samples: int) -> bytes:
        """ε₁(|D_i|) (Eq. 33), with what convinces CS that |D_i| lies within the declared bounds."""

    @abstractmethod
    def decrypt(self, ciphertexts: Rows) -> Rows:
        """The sums inside an aggregate, by SK_CS (Eqs 42, 43)."""

    @abstractmethod
    def sign(self, body: bytes) -> bytes:
        """By SK_i^Sign (Eq. 35)."""

    @abstractmethod
    def verify(self, body: bytes, signature: bytes) -> None:
        """That CS signed this (Eqs 31, 41); ProtocolError if not."""

    @abstractmethod
    def seal(self, data: bytes, context: bytes) -> bytes:
        """ε₂ under PK_i (Eq. 36)."""

    @abstractmethod
    def unseal(self, box: bytes, context: bytes) -> bytes:
        """What CS sealed for all clients."""


class ServerSuite(ABC):
    """What CS can do."""

    row_bytes: int
    """How wide a number is that ε₁ gives."""

    @abstractmethod
    def check(self, numbers: Rows) -> None:
        """That these can be what ε₁ gave; ProtocolError if not."""

    @abstractmethod
    def check_count(self, sender: int, proof: bytes) -> Rows:
        """ε₁(|D_i|) out of what `prove_count` gave; ProtocolError if |D_i| is beyond the bounds."""

    @abstractmethod
    def add_contributions(self, batches: Sequence[Rows]) -> Rows:
        """∏ ε₁(|D_i|·ŵ_i) (Eq. 39)."""

    @abstractmethod
    def add_counts(self, rows: Sequence[Rows]) -> Rows:
        """∏ ε₁(|D_i|) (Eq. 39)."""

    @abstractmethod
    def sign(self, body: bytes) -> bytes:
        """By SK_CS^Sign (Eqs 30, 40)."""

    @abstractmethod
    def verify(self, sender: int, body: bytes, signature: bytes) -> None:
        """That this client signed this (Eq. 38); ProtocolError if not."""

    @abstractmethod
    def open(self, sender: int, box: bytes, context: bytes) -> bytes:
        """What a client sealed, by SK_i (Eq. 37)."""

    @abstractmethod
    def seal(self, data: bytes, context: bytes) -> bytes:
        """Sealed for all clients, under PK_CS."""
