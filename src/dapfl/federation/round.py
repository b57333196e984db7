"""A federation, round by round, as in Fig. 4.

    CentralServer  signs W(0) or Ω_CS(t-1)                      ── bytes ──▶ clients    Phases 0, 3
    Client         verify → decrypt → W(t) → s_i(t) → a_i(t)                            Phase 1
                   train → encrypt → sign → seal                ── bytes ──▶ server     Phase 2
    CentralServer  open → verify → C(t) → multiply → sign Ω_CS(t)                       Phase 3

CS cannot read Ω_CS(t) by itself, so W(t+1) has to be recovered before it can be scored: at once, in short
exchanges of its own, or along with the next round's call (`one_exchange_per_round`). In the latter case the
record of round t is complete only after the exchange of round t+1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from dapfl.arrays import Vector
from dapfl.errors import ProtocolError
from dapfl.federation.global_model.recovery import RecoveryBuilder
from dapfl.federation.protection.base import ServerSuite
from dapfl.federation.recording import (
    Meter,
    round_record,
    selection_reports,
    with_more,
    with_score,
    without_cohort,
)
from dapfl.federation.records import RoundRecord
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.server.outgoing import KnownRoster
from dapfl.federation.server.reception import Reception
from dapfl.federation.server_state.memory import roster_in as roster_in_memory
from dapfl.federation.server_state.state_file import StateFile
from dapfl.federation.transport import ClientId, Transport
from dapfl.learning.metrics import Score
from dapfl.tuning.selection import ClientSelector, EveryClient

_ATTEMPTS = 3  # exchanges in which a model is asked for before its round goes without a score


class _Saved(msgspec.Struct, frozen=True):
    """Where a federation goes on."""

    next_round: int
    server: bytes
    selector: bytes
    pending: RoundRecord | None


@dataclass(frozen=True)
class NewRoster:
    """A roster to go over to, with the keys of CS under it."""

    roster: KnownRoster
    suite: ServerSuite
    members: tuple[ClientId, ...]
    recovery: RecoveryBuilder
    unchanged: frozenset[ClientId]
    """The clients that keep the keys which they had before."""


class Federation:
    """CS, a transport to its clients, and the loop of Fig. 4."""

    def __init__(
        self,
        server: CentralServer,
        transport: Transport,
        scorer: Callable[[Vector], Score],
        clients: Sequence[ClientId],
        *,
        selector: ClientSelector | None = None,
        timeout: float = 3600.0,
        simulated: bool = True,
        before_round: Callable[[Sequence[ClientId], int], None] = lambda *_: None,
        one_exchange_per_round: bool = False,
        state_file: StateFile | None = None,
        insiders: Sequence[ClientId] = (),
        attacks: Callable[[], tuple[str, ...]] = tuple,
        newer_roster: "Callable[[int], NewRoster | None]" = lambda _: None,
    ) -> None:
        """`insiders` are attackers with the keys of a client: always called, never selected among.
        `simulated` says whether what clients spend is simulated, so that a round has simulated seconds.
        `before_round` is told the clients that a round calls, and how many contributions it needs.
        `newer_roster` gives the newest roster, if it is newer than the one with this serial.

        With a `state_file`, the state is on disk before any message that depends on it is sent.
        """
        self.attacks = attacks  # what became of the run's live attackers, one line each
        self.next_round = 0
        self._server = server
        self._transport = transport
        self._scorer = scorer
        self._clients = tuple(clients)
        self._insiders = tuple(insiders)
        self._selector = selector or EveryClient()
        self._timeout = timeout
        self._simulated = simulated
        self._before_round = before_round
        self._deferring = one_exchange_per_round and server.may_defer_recovery
        self._state_file = state_file
        self._newer_roster = newer_roster
        self._pending: RoundRecord | None = None  # the round that is played but not yet scored

    @property
    def weights(self) -> Vector:
        """The last global model that CS has come to know."""
        return self._server.weights

    def rounds(self, until: int) -> Iterator[RoundRecord]:
        """Plays the rounds up to `until`, and yields the record of each when it is complete.

        At each yield, `saved_state` is what to go on from. After a crash a record may be yielded again: the
        state file is not ahead of the records that were yielded, so that none is left out either.
        """
        while self._pending is not None or self.next_round < until:
            at_once = not self._deferring or self.next_round >= until or self._roster_changes()
            if self._pending is not None and at_once:
                record: RoundRecord | None = self._complete(self._pending)
            else:
                record = self._play(self.next_round)
            if record is not None:
                yield record
            self._save()  # before anyone is sent an aggregate that a crash could undo

    def run_round(self, t: int) -> RoundRecord:
        """Plays round t, which must be the next, and returns its record."""
        if t != self.next_round or self._deferring:
            raise ValueError(f"round {self.next_round} is next, and its model must be recovered at once")
        return next(self.rounds(t + 1))

    # One round ---------------------------------------------------------------------------------

    def _play(self, t: int) -> RoundRecord | None:
        """Round t up to Ω_CS(t). Its record then waits for the score of W(t+1); the record that has waited
        for the score of W(t), if there is one, is returned."""
        self._renew()
        newest = self._newest_roster()
        server, meter = self._server, self._new_meter()
        chosen = self._selector.select(t, self._clients)
        called = (*sorted(chosen), *self._insiders)
        self._before_round(called, server.min_cohort)  # may wait until enough of them are there
        if self._newest_roster() != newest:
            return None  # while it waited: begin again, with those who are clients now
        ask = called[t % len(chosen)] if self._pending is not None and chosen else None

        messages = server.open_round(t, called, ask=ask)  # W(0) or Ω_CS(t-1), signed ──▶ clients
        failures = self._exchange(messages, meter)  # Phases 1 and 2; open, verify: C(t)  (Eqs 37, 38)
        server.note_failures(failures)
        completed = self._scored_late(self._pending, meter)  # clients have just said what W(t) is
        server.aggregate()  # multiply, sign: Ω_CS(t)  (Eqs 39, 40)
        ledger = server.close_round()

        seconds = meter.seconds(server.lap())
        record = round_record(ledger, self._clients, self._insiders, meter, seconds, self._simulated)
        record = msgspec.structs.replace(record, roster=server.roster)
        self._selector.observe(selection_reports(record, chosen))
        self.next_round, self._pending = t + 1, record
        return completed

    def _scored_late(self, record: RoundRecord | None, meter: Meter) -> RoundRecord | None:
        """The record that has waited for W(t), with the score of it, if a record has waited."""
        reason = self._server.withdraw()  # if clients say that Ω_CS(t-1) makes no model
        if record is None:
            return None
        record = without_cohort(record, reason) if reason else record
        return with_score(record, self._score(meter))

    def _complete(self, record: RoundRecord) -> RoundRecord:
        """Recovers W(t+1) in exchanges of its own and completes the record of round t with its score."""
        server, meter = self._server, self._new_meter()
        before = len(server.rejections)
        score = self._score(meter)
        if reason := server.withdraw():
            record = without_cohort(record, reason)
            score = self._score(meter)
        self._pending = None
        record = with_more(record, server.rejections[before:], meter, meter.seconds(server.lap()))
        record = msgspec.structs.replace(record, decrypted_by=server.decrypted_by)
        return with_score(record, score)

    def _score(self, meter: Meter) -> Score | None:
        """The score of the current model, once CS has recovered it; None if that fails."""
        for _ in range(_ATTEMPTS):
            messages = self._server.request_model(self._clients)
            if not messages:
                break
            self._exchange(messages, meter)
        weights = self._server.recovered()
        if weights is None:
            return None
        with meter.watch.phase("score"):
            return self._scorer(weights)

    def _exchange(self, messages: Mapping[ClientId, bytes], meter: Meter) -> dict[ClientId, str]:
        """Carries messages to clients and their replies to CS, and returns the failures."""
        with meter.watch.phase("exchange"), Reception(self._server, messages) as reception:
            replies, failures = self._transport.exchange(messages, self._timeout, reception.arrived)
            reception.finish(replies)
        meter.count(messages, reception.received_bytes)
        return failures

    def _new_meter(self) -> Meter:
        self._server.lap()
        return Meter()

    # Clients that come and go ------------------------------------------------------------------

    def _newest_roster(self) -> int:
        """The serial of the newest roster, whether it is in force already or not."""
        newer = self._newer_roster(self._server.roster)
        return self._server.roster if newer is None else newer.roster.serial

    def _roster_changes(self) -> bool:
        """Whether there is a newer roster. Those whom it concerns are not called under the old one."""
        newer = self._newer_roster(self._server.roster)
        if newer is not None:
            self._clients = tuple(client for client in self._clients if client in newer.unchanged)
        return newer is not None

    def _renew(self) -> None:
        """Goes over to a newer roster, as soon as CS knows the model that its new keys are to protect."""
        newer = self._newer_roster(self._server.roster)
        if newer is not None and self._server.knows_model:
            self._server.renew(newer.roster, newer.suite, newer.members, newer.recovery)
            self._clients = newer.members
            self._save()

    # Saving ------------------------------------------------------------------------------------

    def saved_state(self) -> bytes:
        """Everything CS needs to go on later exactly as now; valid between rounds."""
        server, selector = self._server.saved_state(), self._selector.saved_state()
        return msgspec.msgpack.encode(_Saved(self.next_round, server, selector, self._pending))

    def restore(self, state: bytes) -> None:
        """Goes on from a saved state."""
        try:
            saved = msgspec.msgpack.decode(state, type=_Saved)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ProtocolError("bad-state", "the saved state of the federation is damaged") from None
        self.next_round = saved.next_round
        self._server.restore(saved.server)
        self._selector.restore(saved.selector)
        self._pending = saved.pending

    def primer(self) -> bytes:
        """What clients need, once restored from their own saved states, to have the current model again."""
        return self._server.primer()

    def _save(self) -> None:
        if self._state_file is not None:
            self._state_file.write(self.saved_state())


class Progress(NamedTuple):
    """How far a federation had come when its state was saved. Of two states, the later one is the larger."""

    next_round: int
    complete: bool  # whether all rounds before that have their records
    roster: int

    @property
    def records(self) -> int:
        """How many rounds have their records."""
        return self.next_round - (not self.complete)


def progress_in(state: bytes) -> Progress:
    """How far the federation had come that was saved as this; no way at all if it cannot be read."""
    try:
        saved = msgspec.msgpack.decode(state, type=_Saved)
        return Progress(saved.next_round, saved.pending is None, roster_in_memory(saved.server))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Progress(0, True, 0)  # `restore` says what is wrong with it
