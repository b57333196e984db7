"""The seam of protection: what a participant does with the keys it holds.

The protocol is written once, against these interfaces. The Paillier suites do what the paper does. The
committee suites share the decryption key out among a few clients (`--decryption committee`). The open
suites carry the same integers in the same messages without keys, signatures or envelopes (`--encryption
none`). All give the same global model, bit for bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from dapfl.arrays import Rows
from dapfl.crypto.packing import VectorCodec
from dapfl.errors import EncodingError, ProtocolError


def rows_of(data: bytes, count: int, width: int) -> Rows:
    """Numbers as they travel, one after the other, as a matrix with one row for each."""
    if len(data) != count * width:
        raise ProtocolError("wrong-size", f"{len(data)} bytes where {count} numbers take {count * width}")
    return np.frombuffer(data, np.uint8).reshape(count, width)


def leading_rows(data: bytes, count: int, width: int) -> Rows:
    """The numbers at the beginning of a contribution; a proof may follow them."""
    return rows_of(data[: count * width], count, width)


def encoded_count(sample_count: int, codec: VectorCodec) -> Rows:
    """|D_i| as a plaintext; ProtocolError if a client holds more than the federation has declared."""
    try:
        return codec.encode_count(sample_count)
    except EncodingError as error:
        raise ProtocolError("absurd-size", str(error)) from None


Value = TypeVar("Value")


def _caught(work: Callable[[], Value]) -> tuple[Value | None, ProtocolError | None]:
    """What a call returns, or the ProtocolError that it raises."""
    try:
        return work(), None
    except ProtocolError as error:
        return None, error


class ClientSuite(ABC):
    """What client i can do."""

    row_bytes: int
    """The length of one ciphertext; of one plaintext where nothing is encrypted."""

    @abstractmethod
    def encrypt(self, plaintexts: Rows, binding: bytes) -> bytes:
        """ε₁ under PK_CS (Eq. 33), as it travels; a proof in it is good for this binding only."""

    def prepare(self, rows: int) -> bool:
        """Does a little of what the next contribution, of so many rows, will need; whether there was any.

        What is prepared is random and secret: it stays in memory, and each piece is used once.
        """
        return False

    @abstractmethod
    def prove_count(self, sample_count: int) -> bytes:
        """ε₁(|D_i|) (Eq. 33), with what convinces CS that |D_i| lies within the declared bounds."""

    @abstractmethod
    def decrypt(self, ciphertexts: Rows) -> Rows:
        """The sums inside an aggregate, by SK_CS (Eqs 42, 43)."""

    @abstractmethod
    def sign(self, body: bytes) -> bytes:
        """By SK_i^Sign (Eq. 35)."""

    def sign_each(self, bodies: Sequence[bytes]) -> list[bytes]:
        """What `sign` returns for each body."""
        return [self.sign(body) for body in bodies]

    @abstractmethod
    def verify(self, signed: Sequence[tuple[bytes, bytes]]) -> None:
        """ProtocolError unless CS has signed every body, given with its signature (Eqs 31, 41)."""

    @abstractmethod
    def seal(self, data: bytes, associated_data: bytes) -> bytes:
        """ε₂ under PK_i (Eq. 36)."""

    @abstractmethod
    def unseal(self, box: bytes, associated_data: bytes) -> bytes:
        """What CS sealed for all clients."""


class ContributionChecks(ABC):
    """What anyone can check about contributions, and do with them, without being able to read them."""

    row_bytes: int
    """The length of one ciphertext; of one plaintext where nothing is encrypted."""

    @abstractmethod
    def verify(self, sender: int, body: bytes, signature: bytes) -> None:
        """ProtocolError unless this client has signed this body (Eq. 38)."""

    def verify_each(self, signed: Sequence[tuple[int, bytes, bytes]]) -> list[ProtocolError | None]:
        """What `verify` raises for each (sender, body, signature), or None."""
        return [_caught(partial(self.verify, *each))[1] for each in signed]

    @abstractmethod
    def check_contribution(self, data: bytes, count: int, binding: bytes) -> Rows:
        """The `count` numbers out of what `ClientSuite.encrypt` gave; ProtocolError if it cannot have."""

    @abstractmethod
    def check_count(self, sender: int, proof: bytes) -> Rows:
        """ε₁(|D_i|) out of what `prove_count` gave; ProtocolError if |D_i| is beyond the bounds."""

    @abstractmethod
    def add_contributions(self, batches: Sequence[Rows]) -> Rows:
        """∏ ε₁(|D_i|·ŵ_i) (Eq. 39)."""

    @abstractmethod
    def add_counts(self, rows: Sequence[Rows]) -> Rows:
        """∏ ε₁(|D_i|) (Eq. 39)."""


class ServerSuite(ContributionChecks):
    """What CS can do."""

    batch: int = 1
    """How many messages CS opens and verifies in about the time of one."""

    @abstractmethod
    def sign(self, body: bytes) -> bytes:
        """By SK_CS^Sign (Eqs 30, 40)."""

    @abstractmethod
    def open(self, sender: int, box: bytes, associated_data: bytes) -> bytes:
        """What a client sealed, by SK_i (Eq. 37)."""

    def open_each(self, boxes: Sequence[tuple[int, bytes, bytes]]) -> list[bytes | ProtocolError]:
        """What `open` returns or raises for each (sender, box, associated data)."""
        results = (_caught(partial(self.open, *each)) for each in boxes)
        return [error or opened or b"" for opened, error in results]

    @abstractmethod
    def seal(self, data: bytes, associated_data: bytes) -> bytes:
        """Sealed for all clients."""
