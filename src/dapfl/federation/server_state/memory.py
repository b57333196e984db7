"""All that CS remembers between two messages, and the part of it that must survive a crash."""

from dataclasses import dataclass, field

import msgspec

from dapfl.errors import ProtocolError
from dapfl.federation.messages import Answer, Notice, Upload
from dapfl.federation.server_state.model_history import ModelHistory, SavedHistory
from dapfl.federation.server_state.partial_sum import Count
from dapfl.federation.server_state.round_ledger import RoundLedger, SentOrder
from dapfl.federation.transport import ClientId


@dataclass
class ServerMemory:
    """What the parts of CS share."""

    history: ModelHistory
    ledger: RoundLedger = field(default_factory=lambda: RoundLedger(-1))
    acknowledged: dict[ClientId, bytes] = field(default_factory=dict)  # the last model a client had, by name
    counts: dict[ClientId, Count] = field(default_factory=dict)
    roster: int = 0  # the serial of the roster under which the federation works now

    def renew(self, roster: int) -> None:
        """Under a new roster there are new keys: nothing encrypted under the old ones is of use any more."""
        self.roster = roster
        self.acknowledged, self.counts = {}, {}
        self.history.rebase()

    def answer(self, sender: ClientId, body: Upload | Notice | Answer, order: SentOrder) -> None:
        """Takes the answer to an order, unless it is about another model than the current one."""
        if body.context.model != order.model or body.context.model != self.history.head.name:
            raise ProtocolError("wrong-model", "about another model than the one it was asked about")
        self.ledger.answer(sender, body.answers)
        self.acknowledged[sender] = body.context.model

    def saved_state(self, federation: bytes, run: bytes, recovery: bytes) -> bytes:
        """What `restore` goes on from, after the round that is closed now."""
        return msgspec.msgpack.encode(
            _Saved(
                federation=federation,
                run=run,
                round=self.ledger.round,
                history=self.history.saved_state(),
                acknowledged=self.acknowledged,
                counts=self.counts,
                roster=self.roster,
                recovery=msgspec.Raw(recovery),
            )
        )

    def restore(self, state: bytes, federation: bytes, size: int) -> tuple[bytes, bytes]:
        """Goes on from a saved state; returns the run's id, and what belongs to the model recovery."""
        try:
            saved = msgspec.msgpack.decode(state, type=_Saved)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ProtocolError("bad-state", "the saved state of the server is damaged") from None
        if saved.federation != federation:
            raise ProtocolError("bad-state", "this is the state of another federation: its keys do not fit")
        self.ledger = RoundLedger(saved.round, closed=True)
        self.history.restore(saved.history, size)
        self.acknowledged, self.counts = saved.acknowledged, saved.counts
        self.roster = saved.roster
        return saved.run, bytes(saved.recovery)


class _Saved(msgspec.Struct, frozen=True):
    """What CS must not forget. Two names are those of version 0.1, so that its runs can still be resumed."""

    federation: bytes
    round: int
    acknowledged: dict[ClientId, bytes]
    counts: dict[ClientId, Count]
    history: SavedHistory = msgspec.field(name="lineage")
    recovery: msgspec.Raw = msgspec.field(name="commitments")
    run: bytes = b""
    roster: int = 0


def roster_in(state: bytes) -> int:
    """The serial of the roster in a saved state of CS."""
    return msgspec.msgpack.decode(state, type=_Saved).roster
