"""Recovery with a shared key, as in the paper: every client holds SK_CS and decrypts each aggregate.

CS cannot, so it asks one client for W(t+1) and all others of the cohort, the witnesses, for its hash. It
believes what more than half of them say, so a few liars decide nothing.
"""

from collections.abc import Sequence

import msgspec

from dapfl.errors import ProtocolError
from dapfl.federation.global_model.models import commitment_of
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.global_model.recovery import Address, Seal
from dapfl.federation.messages import Answer, Proposal, RecoveryAnswer, RecoveryOrder, Request, Signed
from dapfl.federation.records import Status
from dapfl.federation.server_state.memory import ServerMemory
from dapfl.federation.server_state.model_agreement import UNUSABLE, ModelAgreement
from dapfl.federation.transport import EVERYONE, ClientId


class SharedDecryption:
    """Every client decrypts; CS asks clients and compares their hashes."""

    deferrable = True  # clients derive the model from the aggregate, whether CS knows it or not
    needs_evidence = False

    def __init__(self, parameters: PublicParameters, memory: ServerMemory, members: int) -> None:
        self._parameters = parameters
        self._memory = memory
        self._quorum = min(2, members)
        self.begin()

    def begin(self) -> None:
        """Nobody has committed to the new model yet."""
        self.agreement = ModelAgreement(self._quorum)

    # What CS sends -----------------------------------------------------------------------------

    def parts_for(self, known: bytes | None, seal: Seal) -> list[Signed]:
        """The aggregate, and what it builds on if the client does not have that."""
        return self._memory.history.parts_for(known, seal)

    def requests(self, clients: Sequence[ClientId], address: Address) -> dict[ClientId, RecoveryOrder]:
        """Asks the next client in turn for the model, and all others that were not asked yet for its hash."""
        if self.settle() or self._agreement.unusable:
            return {}
        ledger, name = self._memory.ledger, self._memory.history.head.name
        likely = [c for c in clients if ledger.status.get(c) == Status.ACCEPTED] or list(clients)
        turn = ledger.round % len(likely)
        turns = likely[turn:] + likely[:turn]
        whole = [c for c in turns if c not in ledger.asked(name, "request")][:1]
        if not whole:
            return {}
        asked = ledger.asked(name, "request", "witness").union(whole)
        witnesses = [c for c in turns if c not in asked]
        # One request for all witnesses: the aggregate that comes with it is large, and packed once.
        requests: dict[ClientId, RecoveryOrder] = {c: Request(address(c), whole=True) for c in whole}
        requests.update(dict.fromkeys(witnesses, Request(address(EVERYONE), whole=False)))
        return requests

    # What CS receives --------------------------------------------------------------------------

    def hold(self, proposal: Proposal) -> None:
        """Nobody is sent a proposal."""

    def take_answer(self, sender: ClientId, answer: RecoveryAnswer) -> None:
        """The model, from the client that was asked for it; its hash alone, from a witness."""
        if not isinstance(answer, Answer):
            raise ProtocolError("not-asked", "a decryption share, where every client decrypts")
        order = self._memory.ledger.expect(sender, answer.answers, "request", "witness")
        contents = None
        if order.kind == "request":
            contents = self._parameters.read_contents(answer.weights)
            if commitment_of(*contents) != answer.commitment:
                raise ProtocolError("model-mismatch", "the weights do not have the hash that comes with them")
        elif answer.weights:
            raise ProtocolError("wrong-size", "weights from a client that was asked for their hash")
        self._memory.answer(sender, answer, order)
        self.take_commitment(sender, answer.commitment)
        if contents is not None:
            self.agreement.contents.setdefault(answer.commitment, contents)

    def take_commitment(self, sender: ClientId, commitment: bytes) -> None:
        """One more vote."""
        self.agreement.vote(sender, commitment)

    def take_refusal(self, sender: ClientId, reason: str) -> None:
        """Counts if the client says that the aggregate does not decode to a model."""
        if reason in UNUSABLE:
            self.agreement.refusals.add(sender)

    # What follows ------------------------------------------------------------------------------

    @property
    def _agreement(self) -> ModelAgreement:
        """What has been said; the voters are all that were asked and have not failed in this round."""
        ledger, name = self._memory.ledger, self._memory.history.head.name
        asked = ledger.asked(name, "call", "request", "witness")
        failed = {client for client, status in ledger.status.items() if status.kind is Status.FAILED}
        self.agreement.voters = asked - failed
        return self.agreement

    def settle(self) -> bool:
        """Believes the weights that enough clients agree on, and notes who disagrees."""
        history = self._memory.history
        if not history.is_known:
            contents = self._agreement.model
            if contents is None:
                return False
            for client in self._agreement.dissenters:
                self._memory.ledger.note_mismatch(client)
            history.learn(*contents)
        return True

    @property
    def commitment(self) -> bytes | None:
        """What CS knows itself; else what more than half of the clients say."""
        history = self._memory.history
        return history.latest.commitment if history.is_known else self._agreement.agreed

    @property
    def failure(self) -> str | None:
        """Clients have refused the aggregate."""
        return "aggregate-refused" if self._agreement.unusable else None

    @property
    def decrypted_by(self) -> tuple[ClientId, ...]:
        """Every client decrypts for itself."""
        return ()

    # What survives a crash ---------------------------------------------------------------------

    def saved_state(self) -> bytes:
        """The commitments."""
        return msgspec.msgpack.encode(self.agreement.commitments)

    def restore(self, state: bytes) -> None:
        """Takes up the commitments again."""
        self.begin()
        try:
            commitments = msgspec.msgpack.decode(state, type=dict[ClientId, bytes])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ProtocolError("bad-state", "the saved state of the server is damaged") from None
        self.agreement.commitments.update(commitments)
