"""Recovery by a committee: members decrypt the sums of a proposal together, and CS combines their shares.

CS then knows W(t+1), and clients get it sealed under the group key. See `protection/committee.py` for what
a member checks before it serves a proposal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from dapfl.arrays import Rows
from dapfl.crypto import threshold
from dapfl.crypto.threshold import DecryptionShare
from dapfl.errors import CryptoError, InvalidShare, ProtocolError
from dapfl.federation.global_model.averaging import next_model
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.global_model.recovery import Address, Seal
from dapfl.federation.keys.bundles import CommitteeKeys
from dapfl.federation.messages import (
    NO_MODEL,
    Aggregate,
    Proposal,
    RecoveryAnswer,
    RecoveryOrder,
    Share,
    Signed,
    decode_server_body,
)
from dapfl.federation.protection.base import rows_of
from dapfl.federation.records import Status
from dapfl.federation.server_state.memory import ServerMemory
from dapfl.federation.transport import ClientId


class _Saved(msgspec.Struct, frozen=True):
    """The proposal of an aggregate that is not decrypted yet, and the cohort of the current model."""

    proposal: Proposal | None
    cohort: tuple[ClientId, ...]


@dataclass(frozen=True)
class _Answered:
    """A member's share, and the hash of the order that it answers, which its proof is bound to."""

    share: DecryptionShare
    order: bytes


class CommitteeDecryption:
    """Asks members for shares until t of them decrypt the sums.

    Shares that fit together need no proof: the result checks itself (`threshold.combine`). Only if they do
    not fit, the proofs are verified, and say whose share is false.
    """

    deferrable = False  # clients wait for the model, which CS has only after a committee has served it
    needs_evidence = True

    def __init__(
        self, parameters: PublicParameters, memory: ServerMemory, members: int, *, keys: CommitteeKeys
    ) -> None:
        self._parameters = parameters
        self._memory = memory
        self._keys = keys
        self._proposal: Proposal | None = None
        self._cohort: tuple[ClientId, ...] = ()
        self._sealed: tuple[bytes, Signed] | None = None
        self.begin()

    def begin(self) -> None:
        """A new aggregate is to be decrypted, or the model is one that CS knows."""
        self._shares: dict[ClientId, _Answered] = {}
        self._asked: set[ClientId] = set()
        self._failure: str | None = None
        self._decrypted_by: tuple[ClientId, ...] = ()
        self._proposal = None
        history, ledger = self._memory.history, self._memory.ledger
        if not history.is_known and ledger.evidence:
            uploads = tuple(ledger.evidence[client] for client in ledger.cohort)
            counts = tuple(self._memory.counts[client].proof for client in ledger.cohort)
            self._proposal = Proposal(self._aggregate.context, uploads, counts)

    @property
    def _aggregate(self) -> Aggregate:
        body = decode_server_body(self._memory.history.head.signed.body)
        assert isinstance(body, Aggregate), "only an aggregate makes a model that CS does not know"
        return body

    # What CS sends -----------------------------------------------------------------------------

    def parts_for(self, known: bytes | None, seal: Seal) -> list[Signed]:
        """The model itself, sealed for clients; nothing for a client that has it."""
        history = self._memory.history
        if known == history.head.name:
            return []
        if history.head.parent == NO_MODEL:
            return [history.head.signed]  # W(0), which is no secret
        if self._sealed is None or self._sealed[0] != history.latest.name:
            self._sealed = history.latest.name, seal(history.latest, self._cohort)
        return [self._sealed[1]]

    def requests(self, clients: Sequence[ClientId], address: Address) -> dict[ClientId, RecoveryOrder]:
        """Asks as many members as needed, those first that answered in this round; then all the others."""
        if self.settle() or self._failure or self._proposal is None:
            return {}
        missing = self._keys.committee.threshold - len(self._shares)
        left = [member for member in self._keys.members if member not in self._asked]
        if len(left) < missing:
            self._failure = "no-quorum"
            return {}
        if not self._asked:
            left = sorted(left, key=self._doubt)[:missing]
        self._asked.update(left)
        return dict.fromkeys(left, self._proposal)

    def hold(self, proposal: Proposal) -> None:
        """From now on the uploads are those inside the message to the members, and are not held twice."""
        self._proposal = proposal

    def _doubt(self, member: ClientId) -> int:
        """How doubtful it is that a member can be reached now."""
        status = self._memory.ledger.status.get(member, Status.UNSELECTED)
        return {Status.UNSELECTED: 1, Status.FAILED: 2}.get(status.kind, 0)

    # What CS receives --------------------------------------------------------------------------

    def take_answer(self, sender: ClientId, answer: RecoveryAnswer) -> None:
        """A member's share, of the right size; whether it is right turns out when shares are combined."""
        if not isinstance(answer, Share):
            raise ProtocolError("not-asked", "a model, where a committee decrypts")
        ledger = self._memory.ledger
        ledger.expect(sender, answer.answers, "decrypt")
        if self._proposal is None or answer.context.model != self._proposal.context.model:
            raise ProtocolError("wrong-model", "a share of another proposal")
        ledger.answer(sender, answer.answers)
        rows = self._parameters.contribution_rows + 1
        numbers = rows_of(answer.numbers, rows, self._keys.committee.public_key.modulus_bytes)
        share = DecryptionShare(self._keys.members.index(sender) + 1, numbers, answer.proof)
        self._shares[sender] = _Answered(share, answer.answers)

    def take_commitment(self, sender: ClientId, commitment: bytes) -> None:
        """CS knows the model itself: what clients say about it is compared when they are added up."""

    def take_refusal(self, sender: ClientId, reason: str) -> None:
        """A member that does not serve the proposal is not asked again."""

    # What follows ------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Combines the shares, once there are enough."""
        history = self._memory.history
        if history.is_known:
            return True
        if self._failure or len(self._shares) < self._keys.committee.threshold:
            return False
        aggregate, sums = self._aggregate, self._sums()
        current = history.latest if history.latest.name == history.head.parent else None
        shares = [answered.share for answered in self._shares.values()]
        try:
            plain = threshold.combine(shares, sums, self._keys.committee)
            cohort = len(aggregate.cohort)
            model = next_model(history.head.name, cohort, plain[:-1], plain[-1:], current, self._parameters)
        except InvalidShare:
            self._drop_false_shares(sums)
            return self.settle()  # there may be enough without them
        except (ProtocolError, CryptoError):
            self._failure = "bad-aggregate"
            return False
        history.learn(model.weights, model.memory)
        self._decrypted_by = tuple(self._shares)[: self._keys.committee.threshold]
        self._proposal, self._cohort = None, aggregate.cohort
        return True

    def _drop_false_shares(self, sums: Rows) -> None:
        """Names the members whose shares are not proved, and goes on without these shares."""
        for member, answered in list(self._shares.items()):
            try:
                threshold.verify(answered.share, sums, self._keys.committee, answered.order)
            except InvalidShare:
                self._memory.ledger.reject(member, "false-share")
                del self._shares[member]
        if len(self._shares) >= self._keys.committee.threshold:
            # Proved shares of a ciphertext always fit. So one of the sums is not what members can decrypt.
            self._failure = "bad-aggregate"

    def _sums(self) -> Rows:
        """What is decrypted: the rows of the aggregate, and the count as the last one."""
        aggregate, parameters = self._aggregate, self._parameters
        width, rows = self._keys.committee.public_key.ciphertext_bytes, parameters.contribution_rows
        return np.concatenate(
            [rows_of(aggregate.contributions, rows, width), rows_of(aggregate.sample_count, 1, width)]
        )

    @property
    def commitment(self) -> bytes | None:
        """Of the model that CS has sent out."""
        history = self._memory.history
        return history.latest.commitment if history.is_known else None

    @property
    def failure(self) -> str | None:
        """Too few members have served the proposal, or the sums make no model."""
        return self._failure

    @property
    def decrypted_by(self) -> tuple[ClientId, ...]:
        """The members whose shares made the current model."""
        return tuple(sorted(self._decrypted_by))

    # What survives a crash ---------------------------------------------------------------------

    def saved_state(self) -> bytes:
        """The proposal that members are to serve: after a crash they must be sent the same one again."""
        return msgspec.msgpack.encode(_Saved(self._proposal, self._cohort))

    def restore(self, state: bytes) -> None:
        """Proposes the same again."""
        self.begin()
        try:
            saved = msgspec.msgpack.decode(state, type=_Saved)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ProtocolError("bad-state", "the saved state of the server is damaged") from None
        self._proposal, self._cohort = saved.proposal, saved.cohort
