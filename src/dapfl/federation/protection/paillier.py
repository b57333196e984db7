"""The paper's cryptography: each participant with its bundle from the KDC."""

from collections.abc import Sequence

import numpy as np

from dapfl.arrays import Rows
from dapfl.crypto.engines.teamwork import together
from dapfl.crypto.envelope import Envelope
from dapfl.crypto.packing import VectorCodec
from dapfl.crypto.paillier import PublicKey
from dapfl.crypto.proofs.range_proof import prove
from dapfl.crypto.proofs.range_proof import verify as verify_proof
from dapfl.crypto.signature import sign, sign_each, verify_each
from dapfl.errors import (
    CryptoError,
    EnvelopeError,
    InvalidProof,
    KeyFileError,
    ProtocolError,
)
from dapfl.federation.keys.bundles import ClientBundle, ServerBundle
from dapfl.federation.messages import associated_data, digest
from dapfl.federation.protection.base import (
    ClientSuite,
    ContributionChecks,
    ServerSuite,
    encoded_count,
    rows_of,
)

_MASKS_AT_ONCE = 64  # some milliseconds of work
_MOST_MASKS = 2**14  # 8 MB with keys of 2048 bits


class SigningClientSuite(ClientSuite):
    """What every client does with its own keys, whoever decrypts the aggregate."""

    def __init__(self, bundle: ClientBundle, key: PublicKey, envelope: Envelope, codec: VectorCodec) -> None:
        self._keys = bundle
        self.pk_cs_enc = key
        self._envelope = envelope
        self._codec = codec
        self.row_bytes = key.ciphertext_bytes

    def prove_count(self, sample_count: int) -> bytes:
        """Encrypted bit by bit, with a proof that it is not above the declared bound."""
        encoded_count(sample_count, self._codec)
        context = associated_data(self._keys.federation, self._keys.client)
        return prove(sample_count, 1, self._codec.bounds.max_samples, self.pk_cs_enc, context)

    def sign(self, body: bytes) -> bytes:
        """(σ, σ̃) of the body."""
        return sign(body, self._keys.sk_i_sign)

    def sign_each(self, bodies: Sequence[bytes]) -> list[bytes]:
        """All bodies in one go."""
        return sign_each(bodies, self._keys.sk_i_sign)

    def verify(self, signed: Sequence[tuple[bytes, bytes]]) -> None:
        """Under PK_CS^Sign: as many in one go as share lanes, and no more once one is false."""
        key = self._keys.pk_cs_sign
        at_once = key.ring.lanes
        for start in range(0, len(signed), at_once):
            problems = verify_each([(*each, key) for each in signed[start : start + at_once]])
            if any(problem is not None for problem in problems):
                raise ProtocolError("bad-signature")

    def seal(self, data: bytes, associated_data: bytes) -> bytes:
        """With the envelope that the federation chose."""
        return self._envelope.seal(data, self._keys.pk_i_enc, associated_data)


class PaillierClientSuite(SigningClientSuite):
    """Client i with its bundle from the KDC, as in the paper: it holds SK_CS, like every other client."""

    def __init__(self, bundle: ClientBundle, envelope: Envelope, codec: VectorCodec) -> None:
        if bundle.sk_cs_enc is None:
            raise KeyFileError('These keys are for a committee: set decryption = "committee".')
        super().__init__(bundle, bundle.sk_cs_enc.public_key, envelope, codec)
        self._sk_cs_enc = bundle.sk_cs_enc
        self._masks: list[Rows] = []  # prepared, each for one use

    def encrypt(self, plaintexts: Rows, binding: bytes) -> bytes:
        """By the CRT, since a client holds SK_CS; with the masks that are prepared, as far as they go."""
        prepared, self._masks = self._masks, []
        if not prepared:
            return self._sk_cs_enc.encrypt(plaintexts).tobytes()
        masks = np.concatenate(prepared)[: len(plaintexts)]
        first, rest = plaintexts[: len(masks)], plaintexts[len(masks) :]
        ciphertexts = self.pk_cs_enc.masked(first, masks).tobytes()
        return ciphertexts + self._sk_cs_enc.encrypt(rest).tobytes() if len(rest) else ciphertexts

    def prepare(self, rows: int) -> bool:
        """A few masks, up to as many as a contribution takes."""
        key = self.pk_cs_enc
        missing = min(rows, _MOST_MASKS) - sum(map(len, self._masks))
        if missing <= 0 or key.g != key.n + 1:
            return False
        self._masks.append(self._sk_cs_enc.masks(min(missing, _MASKS_AT_ONCE)))
        return True

    def decrypt(self, ciphertexts: Rows) -> Rows:
        """By the workers of a machine together. What does not decrypt was not made by ε₁."""
        key = self._sk_cs_enc
        name = digest(ciphertexts.ravel().data)
        try:
            return together(
                name,
                len(ciphertexts),
                key.public_key.modulus_bytes,
                lambda part: key.decrypt(ciphertexts[part]),
            )
        except CryptoError:
            raise ProtocolError("invalid-ciphertext") from None

    def unseal(self, box: bytes, associated_data: bytes) -> bytes:
        """With SK_CS, which all clients hold."""
        try:
            return self._envelope.open(box, self._sk_cs_enc, associated_data)
        except EnvelopeError:
            raise ProtocolError("bad-envelope") from None


class PaillierChecks(ContributionChecks):
    """What the public keys of a federation are good for."""

    def __init__(self, keys: "ServerBundle | ClientBundle", key: PublicKey, codec: VectorCodec) -> None:
        self._federation = keys.federation
        self._pk_sign = keys.pk_sign
        self._pk_enc = key
        self._codec = codec
        self.row_bytes = key.ciphertext_bytes

    def verify(self, sender: int, body: bytes, signature: bytes) -> None:
        """Under PK_i^Sign."""
        (problem,) = self.verify_each([(sender, body, signature)])
        if problem is not None:
            raise problem

    def verify_each(self, signed: Sequence[tuple[int, bytes, bytes]]) -> list[ProtocolError | None]:
        """All members' signatures in one go."""
        problems: list[ProtocolError | None] = []
        known: list[tuple[int, tuple[bytes, bytes, PublicKey]]] = []
        for index, (sender, body, signature) in enumerate(signed):
            if sender in self._pk_sign:
                known.append((index, (body, signature, self._pk_sign[sender])))
                problems.append(None)
            else:
                problems.append(
                    ProtocolError("unknown-sender", f"{sender} is not a member of this federation")
                )
        for (index, _), problem in zip(known, verify_each([each for _, each in known]), strict=True):
            if problem is not None:
                problems[index] = ProtocolError("bad-signature")
        return problems

    def check_contribution(self, data: bytes, count: int, binding: bytes) -> Rows:
        """In range and coprime to n, as every ciphertext is."""
        numbers = rows_of(data, count, self.row_bytes)
        try:
            self._pk_enc.validate(numbers)
        except CryptoError:
            raise ProtocolError("invalid-ciphertext") from None
        return numbers

    def check_count(self, sender: int, proof: bytes) -> Rows:
        """Without reading |D_i|: its encrypted bits are bits, and cannot add up to more than the bound."""
        try:
            context = associated_data(self._federation, sender)
            ciphertext = verify_proof(proof, 1, self._codec.bounds.max_samples, self._pk_enc, context)
        except InvalidProof:
            raise ProtocolError("absurd-size", "|D_i| is not shown to be within the bounds") from None
        return np.frombuffer(ciphertext.to_bytes(self.row_bytes, "little"), np.uint8).reshape(1, -1)

    def add_contributions(self, batches: Sequence[Rows]) -> Rows:
        """Multiplied modulo n²."""
        return self._pk_enc.product(batches)

    def add_counts(self, rows: Sequence[Rows]) -> Rows:
        """Multiplied modulo n²."""
        return self._pk_enc.product(rows)


class PaillierServerSuite(PaillierChecks, ServerSuite):
    """CS with its bundle from the KDC."""

    def __init__(self, bundle: ServerBundle, envelope: Envelope, codec: VectorCodec) -> None:
        super().__init__(bundle, bundle.pk_cs_enc, codec)
        self._keys = bundle
        self._envelope = envelope
        # A message that fills the lanes by itself is opened as soon as it is there.
        self.batch = 1 if envelope.fills_lanes else self._pk_enc.ring.lanes

    def sign(self, body: bytes) -> bytes:
        """(ς, ς̃) of the body."""
        return sign(body, self._keys.sk_cs_sign)

    def open(self, sender: int, box: bytes, associated_data: bytes) -> bytes:
        """With SK_i, which only CS holds."""
        (result,) = self.open_each([(sender, box, associated_data)])
        if isinstance(result, ProtocolError):
            raise result
        return result

    def open_each(self, boxes: Sequence[tuple[int, bytes, bytes]]) -> list[bytes | ProtocolError]:
        """All envelopes in one go."""
        sealed = [(box, self._keys.sk_enc[sender], context) for sender, box, context in boxes]
        opened = self._envelope.open_each(sealed)
        return [ProtocolError("bad-envelope") if isinstance(each, EnvelopeError) else each for each in opened]

    def seal(self, data: bytes, associated_data: bytes) -> bytes:
        """With the envelope that the federation chose, under PK_CS."""
        return self._envelope.seal(data, self._keys.pk_cs_enc, associated_data)
