"""Decryption by a committee: no participant holds SK_CS.

The KDC shares SK_CS out among a few clients, the members, any t of whom decrypt together (see
`crypto/threshold.py`). They decrypt one thing only: the sums over the cohort of a proposal, after each
member has checked for itself that

* at least the minimum cohort of distinct enrolled clients has signed contributions for this round, all of
  which start from the same model;
* every contribution comes with a proof that its sender knows what is in it, bound to sender, round and
  model. Otherwise a client could send the inverse of what others sent, and leave one of them alone in the
  sum;
* this is the first proposal that it serves in this round. The sums over two cohorts could be subtracted.

CS combines the shares, so it knows W(t+1), and sends it to the clients under a group key that all of them
hold.
"""

import secrets
from collections.abc import Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dapfl.arrays import Rows
from dapfl.crypto import threshold
from dapfl.crypto.engines.teamwork import together
from dapfl.crypto.envelope import Envelope
from dapfl.crypto.packing import VectorCodec
from dapfl.crypto.paillier import PublicKey
from dapfl.crypto.proofs import plaintext_proof
from dapfl.errors import CryptoError, InvalidCiphertext, InvalidProof, KeyFileError, ProtocolError
from dapfl.federation.keys.bundles import ClientBundle, CommitteeKeys, ServerBundle
from dapfl.federation.messages import DIGEST_BYTES, Proposal, Upload, contribution_binding, digest
from dapfl.federation.messages import decode_client_body as decode
from dapfl.federation.protection.base import ContributionChecks, leading_rows
from dapfl.federation.protection.paillier import PaillierChecks, PaillierServerSuite, SigningClientSuite
from dapfl.federation.transport import SERVER

_NONCE_BYTES = 12


def _keys_of(bundle: ServerBundle | ClientBundle) -> CommitteeKeys:
    if bundle.committee is None:
        raise KeyFileError('These keys are for decryption by every client: set decryption = "shared".')
    return bundle.committee


class CommitteeChecks(PaillierChecks):
    """The checks of CS and of members: contributions carry a proof that their sender knows them."""

    def check_contribution(self, data: bytes, count: int, binding: bytes) -> Rows:
        """The ciphertexts, if the proof that follows them is good for this binding."""
        length = count * self.row_bytes
        expected = length + plaintext_proof.proof_bytes(self._pk_enc)
        if len(data) != expected:
            raise ProtocolError("wrong-size", f"{len(data)} bytes where a contribution has {expected}")
        numbers = leading_rows(data, count, self.row_bytes)
        try:
            plaintext_proof.verify(data[length:], numbers, self._pk_enc, binding)
        except InvalidCiphertext:
            raise ProtocolError("invalid-ciphertext") from None
        except InvalidProof:
            raise ProtocolError("unproved", "a contribution whose sender is not shown to know it") from None
        return numbers


class MemberChecks(CommitteeChecks):
    """The checks of a member. It verifies a proof of |D_i| once: a client shows the same one every round."""

    def __init__(self, bundle: ClientBundle, key: PublicKey, codec: VectorCodec) -> None:
        super().__init__(bundle, key, codec)
        self._counts: dict[int, tuple[bytes, Rows]] = {}  # ε₁(|D_i|) of every client, and the proof's hash

    def check_count(self, sender: int, proof: bytes) -> Rows:
        """ε₁(|D_i|), from the proof or from memory."""
        name = digest(proof)
        known = self._counts.get(sender)
        if known is None or known[0] != name:
            known = self._counts[sender] = name, super().check_count(sender, proof)
        return known[1]


class CommitteeServerSuite(CommitteeChecks, PaillierServerSuite):
    """CS with its bundle from the KDC."""

    def __init__(self, bundle: ServerBundle, envelope: Envelope, codec: VectorCodec) -> None:
        PaillierServerSuite.__init__(self, bundle, envelope, codec)
        self._group = _GroupKey(_keys_of(bundle).group_key)

    def seal(self, data: bytes, associated_data: bytes) -> bytes:
        """Under the group key."""
        return self._group.seal(data, associated_data)


class CommitteeClientSuite(SigningClientSuite):
    """Client i with its bundle from the KDC; a member's bundle has a share of SK_CS."""

    def __init__(self, bundle: ClientBundle, envelope: Envelope, codec: VectorCodec) -> None:
        keys = _keys_of(bundle)
        super().__init__(bundle, keys.committee.public_key, envelope, codec)
        self._group = _GroupKey(keys.group_key)
        self._share = bundle.share
        self.checks: ContributionChecks = MemberChecks(bundle, keys.committee.public_key, codec)

    def encrypt(self, plaintexts: Rows, binding: bytes) -> bytes:
        """With the proof that this client knows the plaintexts."""
        ciphertexts, proof = plaintext_proof.encrypt(plaintexts, self.pk_cs_enc, binding)
        return ciphertexts.tobytes() + proof

    def decrypt(self, ciphertexts: Rows) -> Rows:
        """Nobody decrypts alone."""
        raise ProtocolError("not-alone", "an aggregate, in a federation whose committee decrypts")

    def decryption_share(self, sums: Rows, context: bytes) -> tuple[bytes, bytes]:
        """This member's share of the decryption, with its proof; the caller has checked what the sums are."""
        if self._share is None:
            raise ProtocolError("not-a-member", "this client has no share of the decryption key")
        try:
            share = threshold.decryption_share(sums, self._share, context)
        except CryptoError:
            raise ProtocolError("invalid-ciphertext") from None
        return share.numbers.tobytes(), share.proof

    def unseal(self, box: bytes, associated_data: bytes) -> bytes:
        """With the group key."""
        return self._group.open(box, associated_data)


class _GroupKey:
    """AES-256-GCM under the key that CS and all clients hold."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, data: bytes, context: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, context)

    def open(self, box: bytes, context: bytes) -> bytes:
        try:
            return self._cipher.decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], context)
        except (InvalidTag, ValueError):
            raise ProtocolError("bad-envelope") from None


def _uploads(proposal: Proposal) -> list[Upload]:
    """The uploads of a proposal, all of its own federation, run, roster, round and model."""
    context, uploads = proposal.context, []
    for signed in proposal.uploads:
        upload = decode(signed.body)
        if not isinstance(upload, Upload):
            raise ProtocolError("bad-proposal", "something else than an upload")
        theirs = upload.context
        if (theirs.scope, theirs.round, theirs.recipient, theirs.model) != (
            context.scope,
            context.round,
            SERVER,
            context.model,
        ):
            raise ProtocolError(
                "bad-proposal", "an upload of another federation, run, roster, round or model"
            )
        uploads.append(upload)
    return uploads


def _check_uploads(
    proposal: Proposal, name: bytes, uploads: Sequence[Upload], checks: ContributionChecks, rows: int
) -> None:
    """That clients have signed their uploads, and know what is in them. Members in several processes of one
    machine share the work, as they do with what they decrypt."""

    def check(part: slice) -> Rows:
        signatures = [
            (upload.context.sender, signed.body, signed.signature)
            for upload, signed in zip(uploads[part], proposal.uploads[part], strict=True)
        ]
        for problem in checks.verify_each(signatures):
            if problem is not None:
                raise problem
        for upload in uploads[part]:
            checks.check_contribution(upload.contribution, rows, contribution_binding(upload.context))
        return np.ones((len(signatures), 1), np.uint8)

    try:
        together(name, len(uploads), 1, check)
    except ProtocolError:
        check(slice(0, len(uploads)))  # so that every process names the same fault
        raise


def proposed_sums(
    proposal: Proposal, name: bytes, checks: ContributionChecks, rows: int, min_cohort: int
) -> Rows:
    """∏ ε₁(|D_i|·ŵ_i), and ∏ ε₁(|D_i|) as the last row, if a member may decrypt them.

    `name` is the hash of the proposal as CS has signed it, and `rows` the number of ciphertexts of a
    contribution. ProtocolError says why a member may not.
    """
    if len(proposal.uploads) != len(proposal.counts):
        raise ProtocolError("bad-proposal", "a count is missing or left over")
    contributions: list[Rows] = []
    counts: list[Rows] = []
    commitments: set[bytes] = set()
    senders: list[int] = []
    uploads = _uploads(proposal)
    _check_uploads(proposal, name, uploads, checks, rows)
    for upload, proof in zip(uploads, proposal.counts, strict=True):
        senders.append(upload.context.sender)
        commitments.add(upload.commitment)
        contributions.append(leading_rows(upload.contribution, rows, checks.row_bytes))
        count = (
            upload.sample_count if len(upload.sample_count) == DIGEST_BYTES else digest(upload.sample_count)
        )
        if digest(proof) != count:
            raise ProtocolError("bad-proposal", "another count than the one that the client has signed")
        counts.append(checks.check_count(upload.context.sender, proof))
    if senders != sorted(set(senders)):
        raise ProtocolError("bad-proposal", "the cohort counts a client twice or is not sorted")
    if len(senders) < min_cohort:
        raise ProtocolError("below-min-cohort", f"a proposal of {len(senders)}")
    if len(commitments) > 1:
        raise ProtocolError("bad-proposal", "contributions that start from different models")
    return np.concatenate([checks.add_contributions(contributions), checks.add_counts(counts)])
