"""The paper's cryptography behind the seam: each participant with its bundle from the KDC."""

from collections.abc import Sequence

import numpy as np

from dapfl.crypto.envelope import Envelope
from dapfl.crypto.packing import VectorCodec
from dapfl.crypto.range_proof import prove
from dapfl.crypto.range_proof import verify as verify_proof
from dapfl.crypto.signature import sign, verify
from dapfl.errors import CryptoError, EnvelopeError, InvalidProof, InvalidSignature, ProtocolError
from dapfl.federation.kdc import ClientBundle, ServerBundle
from dapfl.federation.messages import sealing_context
from dapfl.federation.suite import ClientSuite, Rows, ServerSuite, encoded_count


def _count_bits(codec: VectorCodec) -> int:
    """So many bits hold every |D_i| that the federation has declared."""
    return codec.bounds.max_samples.bit_length()


class PaillierClientSuite(ClientSuite):
    """Client i with its bundle from the KDC."""

    def __init__(self, bundle: ClientBundle, envelope: Envelope, codec: VectorCodec) -> None:
        self._keys = bundle
        self._envelope = envelope
        self._codec = codec
        self.row_bytes = bundle.sk_cs_enc.public_key.ciphertext_bytes

    def encrypt(self, plaintexts: Rows) -> Rows:
        """By the CRT, since a client holds SK_CS."""
        return self._keys.sk_cs_enc.encrypt(plaintexts)

    def prove_count(self, samples: int) -> bytes:
        """Encrypted bit by bit, with a proof that there are no more bits than there may be."""
        encoded_count(samples, self._codec)
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

    def __init__(self, bundle: ServerBundle, envelope: Envelope, codec: VectorCodec) -> None:
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
