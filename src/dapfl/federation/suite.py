"""The security seam: what a participant does with the keys it holds.

The protocol is written once, against these two interfaces. The Paillier suites do what the paper
does; the open suites carry the same integers in the same messages without keys, signatures or
envelopes (`--encryption none`). Both give the same global model, bit for bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dapfl.crypto.packing import VectorCodec
from dapfl.crypto.range_proof import prove
from dapfl.crypto.range_proof import verify as verify_proof
from dapfl.crypto.signature import sign, verify
from dapfl.errors import (
    CryptoError,
    EncodingError,
    EnvelopeError,
    InvalidProof,
    InvalidSignature,
    ProtocolError,
)
from dapfl.federation.messages import sealing_context

if TYPE_CHECKING:
    from dapfl.crypto.envelope import Envelope
    from dapfl.federation.kdc import ClientBundle, ServerBundle

Rows = NDArray[np.uint8]


def rows_of(data: bytes, count: int, width: int) -> Rows:
    """Numbers as they travel, one after the other, as a matrix with one row a number."""
    if len(data) != count * width:
        raise ProtocolError("wrong-size", f"{len(data)} bytes where {count} numbers take {count * width}")
    return np.frombuffer(data, np.uint8).reshape(count, width)


def _count_bits(codec: VectorCodec) -> int:
    """So many bits hold every |D_i| that the federation has declared."""
    return codec.bounds.max_samples.bit_length()


def _encoded_count(samples: int, codec: VectorCodec) -> Rows:
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


class PaillierClientSuite(ClientSuite):
    """Client i with its bundle from the KDC."""

    def __init__(self, bundle: "ClientBundle", envelope: "Envelope", codec: VectorCodec) -> None:
        self._keys = bundle
        self._envelope = envelope
        self._codec = codec
        self.row_bytes = bundle.sk_cs_enc.public_key.ciphertext_bytes

    def encrypt(self, plaintexts: Rows) -> Rows:
        """By the CRT, since a client holds SK_CS."""
        return self._keys.sk_cs_enc.encrypt(plaintexts)

    def prove_count(self, samples: int) -> bytes:
        """Encrypted bit by bit, with a proof that there are no more bits than there may be."""
        _encoded_count(samples, self._codec)
        context = sealing_context(self._keys.federation, self._keys.client)
        return prove(samples, _count_bits(self._codec), self._keys.sk_cs_enc, context)

    def decrypt(self, ciphertexts: Rows) -> Rows:
        """What does not decrypt was not made by ε₁."""
        try:
            return self._keys.sk_cs_enc.decrypt(ciphertexts)
        except CryptoError:
            raise ProtocolError("invalid-ciphertext") from None

    def sign(self, body: bytes) -> bytes:
        """(σ, σ̃) of the body."""
        return sign(body, self._keys.sk_i_sign)

    def verify(self, body: bytes, signature: bytes) -> None:
        """Under PK_CS^Sign."""
        try:
            verify(body, signature, self._keys.pk_cs_sign)
        except InvalidSignature:
            raise ProtocolError("bad-signature") from None

    def seal(self, data: bytes, context: bytes) -> bytes:
        """With the envelope that the federation chose."""
        return self._envelope.seal(data, self._keys.pk_i_enc, context)

    def unseal(self, box: bytes, context: bytes) -> bytes:
        """With SK_CS, which all clients hold."""
        try:
            return self._envelope.open(box, self._keys.sk_cs_enc, context)
        except EnvelopeError:
            raise ProtocolError("bad-envelope") from None


class PaillierServerSuite(ServerSuite):
    """CS with its bundle from the KDC."""

    def __init__(self, bundle: "ServerBundle", envelope: "Envelope", codec: VectorCodec) -> None:
        self._keys = bundle
        self._envelope = envelope
        self._codec = codec
        self.row_bytes = bundle.pk_cs_enc.ciphertext_bytes

    def check(self, numbers: Rows) -> None:
        """In range and coprime to n, as every ciphertext is."""
        try:
            self._keys.pk_cs_enc.validate(numbers)
        except CryptoError:
            raise ProtocolError("invalid-ciphertext") from None

    def check_count(self, sender: int, proof: bytes) -> Rows:
        """Without reading |D_i|: its encrypted bits are shown to be bits, and not too many."""
        key = self._keys.pk_cs_enc
        try:
            context = sealing_context(self._keys.federation, sender)
            ciphertext = verify_proof(proof, _count_bits(self._codec), key, context)
        except InvalidProof:
            raise ProtocolError("absurd-size", "|D_i| is not shown to be within the bounds") from None
        return np.frombuffer(ciphertext.to_bytes(self.row_bytes, "little"), np.uint8).reshape(1, -1)

    def add_contributions(self, batches: Sequence[Rows]) -> Rows:
        """Multiplied modulo n²."""
        return self._keys.pk_cs_enc.product(batches)

    def add_counts(self, rows: Sequence[Rows]) -> Rows:
        """Multiplied modulo n²."""
        return self._keys.pk_cs_enc.product(rows)

    def sign(self, body: bytes) -> bytes:
        """(ς, ς̃) of the body."""
        return sign(body, self._keys.sk_cs_sign)

    def verify(self, sender: int, body: bytes, signature: bytes) -> None:
        """Under PK_i^Sign."""
        try:
            verify(body, signature, self._keys.pk_sign[sender])
        except InvalidSignature:
            raise ProtocolError("bad-signature") from None

    def open(self, sender: int, box: bytes, context: bytes) -> bytes:
        """With SK_i, which only CS holds."""
        try:
            return self._envelope.open(box, self._keys.sk_enc[sender], context)
        except EnvelopeError:
            raise ProtocolError("bad-envelope") from None

    def seal(self, data: bytes, context: bytes) -> bytes:
        """With the envelope that the federation chose."""
        return self._envelope.seal(data, self._keys.pk_cs_enc, context)


class OpenClientSuite(ClientSuite):
    """No keys: plaintexts travel as they are, and nothing is proved."""

    def __init__(self, codec: VectorCodec) -> None:
        self._codec = codec
        self.row_bytes = codec.plaintext_bytes

    def encrypt(self, plaintexts: Rows) -> Rows:
        """Nothing is hidden."""
        return plaintexts

    def prove_count(self, samples: int) -> bytes:
        """The number itself proves where it lies."""
        return _encoded_count(samples, self._codec).tobytes()

    def decrypt(self, ciphertexts: Rows) -> Rows:
        """Nothing was hidden."""
        return ciphertexts

    def sign(self, body: bytes) -> bytes:
        """No signature."""
        return b""

    def verify(self, body: bytes, signature: bytes) -> None:
        """There is nothing to check, and there may be nothing that looks like it."""
        if signature:
            raise ProtocolError("bad-signature", "signed, in a federation without keys")

    def seal(self, data: bytes, context: bytes) -> bytes:
        """No envelope."""
        return data

    def unseal(self, box: bytes, context: bytes) -> bytes:
        """No envelope."""
        return box


class OpenServerSuite(ServerSuite):
    """No keys: the same integers are added in the clear."""

    def __init__(self, codec: VectorCodec) -> None:
        self._codec = codec
        self.row_bytes = codec.plaintext_bytes

    def check(self, numbers: Rows) -> None:
        """That no stray bits would carry into the sum."""
        try:
            self._codec.rows.unpack(numbers, len(numbers) * self._codec.rows.per_row)
        except EncodingError:
            raise ProtocolError("invalid-ciphertext") from None

    def check_count(self, sender: int, proof: bytes) -> Rows:
        """Looked at."""
        count = rows_of(proof, 1, self.row_bytes)
        try:
            self._codec.decode_count(count, contributors=1)
        except EncodingError:
            raise ProtocolError("absurd-size", "|D_i| is not within the bounds") from None
        return count

    def add_contributions(self, batches: Sequence[Rows]) -> Rows:
        """Added slot by slot."""
        return self._codec.add_plain(batches)

    def add_counts(self, rows: Sequence[Rows]) -> Rows:
        """Added."""
        return self._codec.add_counts(rows)

    def sign(self, body: bytes) -> bytes:
        """No signature."""
        return b""

    def verify(self, sender: int, body: bytes, signature: bytes) -> None:
        """There is nothing to check, and there may be nothing that looks like it."""
        if signature:
            raise ProtocolError("bad-signature", "signed, in a federation without keys")

    def open(self, sender: int, box: bytes, context: bytes) -> bytes:
        """No envelope."""
        return box

    def seal(self, data: bytes, context: bytes) -> bytes:
        """No envelope."""
        return data
