"""One aggregation that a committee decrypts, timed step by step: part of `dapfl bench aggregation`.

All proofs are made and checked, but for the proof of |D_i|, which a client sends once. Each of the t members
that decrypt checks everything for itself, as on a device of its own.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dapfl.arrays import Rows, Vector
from dapfl.benchmarks.timing import clock
from dapfl.crypto import threshold
from dapfl.crypto.envelope import Envelope
from dapfl.crypto.keys.threshold_keys import KeyShare
from dapfl.crypto.packing import ReferenceModels, VectorCodec
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.crypto.proofs import plaintext_proof
from dapfl.crypto.signature import sign, signature_bytes, verify_each
from dapfl.crypto.threshold import DecryptionShare

_CONTEXT = b"bench"


@dataclass(frozen=True)
class CommitteeJob:
    """What is aggregated, and by whose keys."""

    shares: Sequence[KeyShare]
    cs_sign: PrivateKey
    clients: Sequence[PrivateKey]
    clients_sign: Sequence[PrivateKey]
    references: ReferenceModels
    locals: Sequence[Vector]
    samples: Sequence[int]
    codec: VectorCodec
    envelope: Envelope


class CommitteeAggregation:
    """From trained models to the next global model, by a committee."""

    def __init__(self, job: CommitteeJob) -> None:
        self.job = job
        self.committee = job.shares[0].committee
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes_up = self.member_bytes_up = 0
        self.result: Vector | None = None

    def __call__(self) -> None:
        """Runs it; `seconds`, the bytes that a client and a member send, and `result` are of the last run."""
        self.seconds.clear()
        uploads = [self._client(i) for i in range(len(self.job.locals))]
        signed, sums = self._server(uploads)
        answers = [self._member(k, signed) for k in range(self.committee.threshold)]
        self.bytes_up = max(map(len, uploads))
        self.member_bytes_up = self.bytes_up + max(map(len, answers))
        self.result = self._combine(answers, sums)

    def _client(self, i: int) -> bytes:
        job = self.job
        start = clock()
        rows = job.codec.encode(job.locals[i], job.samples[i], job.references).plaintexts
        rows = np.concatenate([rows, job.codec.encode_count(job.samples[i])])
        start = self._spent("pack", start)
        ciphertexts, proof = plaintext_proof.encrypt(rows, self.committee.public_key, _binding(i))
        omega = ciphertexts.tobytes() + proof
        start = self._spent("encrypt and prove", start)
        omega += sign(omega, job.clients_sign[i])
        start = self._spent("sign", start)
        sealed = job.envelope.seal(omega, job.clients[i].public_key, _CONTEXT)
        self._spent("seal", start)
        return sealed

    def _server(self, uploads: Sequence[bytes]) -> tuple[list[bytes], Rows]:
        """CS opens and checks uploads, multiplies them, and signs the proposal."""
        opened = []
        for i, upload in enumerate(uploads):
            start = clock()
            opened.append(self.job.envelope.open(upload, self.job.clients[i], _CONTEXT))
            self._spent("open", start)
        sums = self._checked(opened, "server: ")
        start = clock()
        sign(b"".join(opened), self.job.cs_sign)
        self._spent("sign proposal", start)
        return opened, sums

    def _member(self, k: int, signed: Sequence[bytes]) -> bytes:
        """A member checks the proposal, and makes its share."""
        sums = self._checked(signed, "members: ")
        start = clock()
        share = threshold.decryption_share(sums, self.job.shares[k], _CONTEXT)
        start = self._spent("members: share and proof", start)
        body = share.numbers.tobytes() + share.proof
        body += sign(body, self.job.clients_sign[k])
        answer = self.job.envelope.seal(body, self.job.clients[k].public_key, _CONTEXT)
        self._spent("members: sign and seal", start)
        return answer

    def _checked(self, signed: Sequence[bytes], who: str) -> Rows:
        """The sums over contributions whose signatures and proofs are good."""
        key, batches = self.committee.public_key, []
        length = plaintext_proof.proof_bytes(key)
        start = clock()
        check_signatures(signed, [each.public_key for each in self.job.clients_sign])
        self._spent(f"{who}verify signatures", start)
        for i, omega in enumerate(signed):
            width = signature_bytes(self.job.clients_sign[i].public_key)
            start = clock()
            data = omega[: -width - length]
            rows = np.frombuffer(data, np.uint8).reshape(-1, key.ciphertext_bytes)
            plaintext_proof.verify(omega[-width - length : -width], rows, key, _binding(i))
            self._spent(f"{who}verify proofs", start)
            batches.append(rows)
        start = clock()
        product = key.product(batches)
        self._spent(f"{who}multiply", start)
        return product

    def _combine(self, answers: Sequence[bytes], sums: Rows) -> Vector:
        job, width = self.job, self.committee.public_key.modulus_bytes
        shares, bodies = [], []
        for k, answer in enumerate(answers):
            start = clock()
            body = job.envelope.open(answer, job.clients[k], _CONTEXT)
            start = self._spent("open", start)
            end = len(body) - signature_bytes(job.clients_sign[k].public_key)
            numbers = np.frombuffer(body[: len(sums) * width], np.uint8).reshape(-1, width)
            shares.append(DecryptionShare(k + 1, numbers, body[len(sums) * width : end]))
            bodies.append(body)
        start = clock()
        check_signatures(bodies, [each.public_key for each in job.clients_sign])
        start = self._spent("server: verify signatures", start)
        plain = threshold.combine(shares, sums, self.committee)
        start = self._spent("combine", start)
        samples = job.codec.decode_count(plain[-1:], len(job.locals))
        model = job.codec.decode(plain[:-1], len(job.locals), samples, job.references)
        self._spent("decode", start)
        return model

    def _spent(self, name: str, start: float) -> float:
        """Adds the time since `start` to a step, and returns the time now."""
        now = clock()
        self.seconds[name] += now - start
        return now


def check_signatures(signed: Sequence[bytes], keys: Sequence[PublicKey]) -> None:
    """Verifies messages that end in the signatures of different clients, in one go, as CS and members do."""
    widths = [signature_bytes(key) for key in keys[: len(signed)]]
    parts = [
        (each[:-width], each[-width:], key) for each, width, key in zip(signed, widths, keys, strict=False)
    ]
    for problem in verify_each(parts):
        if problem is not None:
            raise problem


def _binding(i: int) -> bytes:
    return b"client %d" % i
