"""No protection: the same integers in the same messages, in the clear (`--encryption none`)."""

from collections.abc import Sequence

from dapfl.arrays import Rows
from dapfl.crypto.packing import VectorCodec
from dapfl.errors import EncodingError, ProtocolError
from dapfl.federation.protection.base import ClientSuite, ServerSuite, encoded_count, rows_of


class OpenClientSuite(ClientSuite):
    """No keys: plaintexts travel as they are, and nothing is proved."""

    def __init__(self, codec: VectorCodec) -> None:
        self._codec = codec
        self.row_bytes = codec.plaintext_bytes

    def encrypt(self, plaintexts: Rows, binding: bytes) -> bytes:
        """Nothing is hidden."""
        return plaintexts.tobytes()

    def prove_count(self, sample_count: int) -> bytes:
        """The number itself; anyone can see that it is within the bounds."""
        return encoded_count(sample_count, self._codec).tobytes()

    def decrypt(self, ciphertexts: Rows) -> Rows:
        """Nothing was hidden."""
        return ciphertexts

    def sign(self, body: bytes) -> bytes:
        """No signature."""
        return b""

    def verify(self, signed: Sequence[tuple[bytes, bytes]]) -> None:
        """There are no signatures to verify, so there may be none."""
        if any(signature for _, signature in signed):
            raise ProtocolError("bad-signature", "signed, in a federation without keys")

    def seal(self, data: bytes, associated_data: bytes) -> bytes:
        """No envelope."""
        return data

    def unseal(self, box: bytes, associated_data: bytes) -> bytes:
        """No envelope."""
        return box


class OpenServerSuite(ServerSuite):
    """No keys: the same integers are added in the clear."""

    def __init__(self, codec: VectorCodec) -> None:
        self._codec = codec
        self.row_bytes = codec.plaintext_bytes

    def check_contribution(self, data: bytes, count: int, binding: bytes) -> Rows:
        """That no stray bits would carry into the sum."""
        numbers = rows_of(data, count, self.row_bytes)
        try:
            self._codec.rows.unpack(numbers, len(numbers) * self._codec.rows.per_row)
        except EncodingError:
            raise ProtocolError("invalid-ciphertext") from None
        return numbers

    def check_count(self, sender: int, proof: bytes) -> Rows:
        """Reads the number and compares it with the bounds."""
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
        """There are no signatures to verify, so there may be none."""
        if signature:
            raise ProtocolError("bad-signature", "signed, in a federation without keys")

    def open(self, sender: int, box: bytes, associated_data: bytes) -> bytes:
        """No envelope."""
        return box

    def seal(self, data: bytes, associated_data: bytes) -> bytes:
        """No envelope."""
        return data
