"""A federation, round by round, as in Fig. 4.

    CentralServer  signs W(0) or Ω_CS(t-1)                      ── bytes ──▶ clients    Phases 0, 3
    Client         verify → decrypt → W(t) → s_i(t) → a_i(t)                            Phase 1
                   train → encrypt → sign → seal                ── bytes ──▶ server     Phase 2
    CentralServer  open → verify → C(t) → multiply → sign Ω_CS(t)                       Phase 3

CS cannot read Ω_CS(t), so it asks a client for W(t+1), and compares the hash with what other
clients say. Either at once (`carried=False`: a short exchange with three clients, and the record of
round t is complete when the round is), or along with the next round's call (`carried=True`: one
exchange a round, and the record of round t is complete after that of round t+1).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from dapfl.errors import ProtocolError
from dapfl.federation.ledger import Ledger, RoundLedger
from dapfl.federation.models import Vector
from dapfl.federation.records import ClientRecord, RoundRecord
from dapfl.federation.server import CentralServer
from dapfl.federation.training import Stopwatch
from dapfl.federation.transport import ClientId, Transport
from dapfl.learning.metrics import Metrics
from dapfl.tuning.selection import ClientSelector, EveryClient, SelectionReport

_WITNESSES = 2  # clients that are asked for the hash of a model, besides the one that sends it
_ATTEMPTS = 3  # exchanges in which a model is asked for before its round goes without a score


class _Saved(msgspec.Struct, frozen=True):
    """Where a federation goes on."""

    next_round: int
    server: bytes
    selector: bytes
    pending: RoundRecord | None


class Federation:
    """CS, a transport to its clients, and the loop of Fig. 4."""

    def __init__(
        self,
        server: CentralServer,
        transport: Transport,
        scorer: Callable[[Vector], Metrics],
        clients: Sequence[ClientId],
        *,
        selector: ClientSelector | None = None,
        timeout: float = 3600.0,
        carried: bool = False,
        ledger: Ledger | None = None,
        guests: Sequence[ClientId] = (),
        attacks: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """`guests` are members that are always called but never selected among: attackers with keys."""
        self.attacks = attacks  # what became of the run's live attackers, one line each
        self.next_round = 0
        self._server = server
        self._transport = transport
        self._scorer = scorer
        self._clients = tuple(clients)
        self._guests = tuple(guests)
        self._selector = selector or EveryClient()
        self._timeout = timeout
        self._carried = carried
        self._ledger = ledger
        self._pending: RoundRecord | None = None  # the round that is played but not yet scored

    @property
    def weights(self) -> Vector:
        """The last global model that CS has been given and that enough clients agree on."""
        return self._server.lineage.latest.weights

    def rounds(self, until: int) -> Iterator[RoundRecord]:
        """Plays the rounds up to `until`, and yields each one's record when it is complete.

        At each yield, `state` is what to go on from. After a crash a record may be yielded again.
        """
        while self._pending is not None or self.next_round < until:
            if self._pending is not None and (not self._carried or self.next_round >= until):
                record: RoundRecord | None = self._score_now(self._pending)
            else:
                record = self._play(self.next_round)
            self._keep()  # on the disk before anyone is sent what it holds
            if record is not None:
                yield record

    def run_round(self, t: int) -> RoundRecord:
        """Plays round t, which must be the next, and returns its record."""
        if t != self.next_round or self._carried:
            raise ValueError(f"round {self.next_round} is next, and its model must not be carried")
        return next(self.rounds(t + 1))

    # One round ---------------------------------------------------------------------------------

    def _play(self, t: int) -> RoundRecord | None:
        """Round t up to Ω_CS(t). Its record waits for the score of W(t+1); the record that waited for that
        of W(t), if there is one, is returned."""
        server, watch, began = self._server, Stopwatch(), time.perf_counter()
        server.watch = watch
        chosen = self._selector.select(t, self._clients)
        called = (*sorted(chosen), *self._guests)
        waiting = self._pending
        ask = sorted(chosen)[t % len(chosen)] if waiting is not None and chosen else None

        messages = server.open_round(t, called, ask=ask)  # W(0) or Ω_CS(t-1), signed ──▶ clients
        with watch.phase("exchange"):
            replies, failures = self._transport.exchange(messages, self._timeout)  # Phases 1 and 2
        traffic = _Traffic()
        traffic.count(messages, replies)
        for client in sorted(replies):
            server.receive(client, replies.pop(client))  # open, verify: C(t)  (Eqs 37, 38)
        for client, reason in failures.items():
            server.ledger.status.setdefault(client, f"failed:{reason}")
        if server.withdraw() and waiting is not None:
            waiting = _without_cohort(waiting)
        if waiting is not None:
            waiting = _scored(waiting, self._fetch_score(traffic))
        cohort = server.aggregate()  # multiply, sign: Ω_CS(t)  (Eqs 39, 40)

        server.ledger.close(set(called))
        seconds = watch.seconds | {"total": time.perf_counter() - began}
        record = _record(server.ledger, self._clients, self._guests, cohort, seconds, traffic)
        self._selector.observe(_selection_reports(record, chosen))
        self.next_round = t + 1
        self._pending = record
        return waiting

    def _score_now(self, record: RoundRecord) -> RoundRecord:
        """Asks for W(t+1) in an exchange of its own and completes the record of round t."""
        watch, began, traffic = Stopwatch(), time.perf_counter(), _Traffic()
        self._server.watch = watch
        before = len(self._server.ledger.rejections)
        score = self._fetch_score(traffic)
        if self._server.withdraw():
            record = _without_cohort(record)
            score = self._fetch_score(traffic)
        seconds = dict(record.seconds)
        for phase, spent in (watch.seconds | {"total": time.perf_counter() - began}).items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
        rejections = (*record.rejections, *self._server.ledger.rejections[before:])
        self._pending = None
        return _scored(
            msgspec.structs.replace(
                record,
                seconds=seconds,
                rejections=rejections,
                rejected=len(rejections),
                bytes_up=record.bytes_up + traffic.up,
                bytes_down=record.bytes_down + traffic.down,
            ),
            score,
        )

    def _fetch_score(self, traffic: "_Traffic") -> Metrics | None:
        """The score of the current model, asking clients for it until enough agree."""
        for _ in range(_ATTEMPTS):
            if self._server.settle_model() is not None or self._server.poll.unusable:
                break
            if not self._ask_for_model(traffic):
                break
        weights = self._server.settle_model()
        if weights is None:
            return None
        with self._server.watch.phase("score"):
            return self._scorer(weights)

    def _ask_for_model(self, traffic: "_Traffic") -> bool:
        """Asks the next client in turn for the model, and a few for its hash; False if all were asked."""
        server = self._server
        known = [c for c in self._clients if server.ledger.status.get(c) == "accepted"] or list(self._clients)
        turn = server.ledger.round % len(known)
        turns = known[turn:] + known[:turn]
        model = server.lineage.head.name
        sent = server.ledger.asked(model, "request")
        senders = [c for c in turns if c not in sent][:1]
        spoken = server.ledger.asked(model, "request", "witness").union(senders)
        if not senders:
            return False
        messages = server.request_model(senders, [c for c in turns if c not in spoken][:_WITNESSES])
        with server.watch.phase("exchange"):
            replies, _ = self._transport.exchange(messages, self._timeout)
        traffic.count(messages, replies)
        for client in sorted(replies):
            server.receive(client, replies[client])
        return True

    # Remembering -------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Everything CS needs to go on later exactly as now; valid between rounds."""
        return msgspec.msgpack.encode(
            _Saved(self.next_round, self._server.state(), self._selector.state(), self._pending)
        )

    def restore(self, state: bytes) -> None:
        """Goes on from what `state` gave."""
        try:
            old = msgspec.msgpack.decode(state, type=_Saved)
        except msgspec.MsgspecError:
            raise ProtocolError("bad-state", "the saved state of the federation is damaged") from None
        self.next_round = old.next_round
        self._server.restore(old.server)
        self._selector.restore(old.selector)
        self._pending = old.pending

    def primer(self) -> bytes:
        """What clients restored from their own states need to know the current model again."""
        return self._server.primer()

    def _keep(self) -> None:
        if self._ledger is not None:
            self._ledger.write(self.state())


class _Traffic:
    """Bytes that a round has carried."""

    def __init__(self) -> None:
        self.up = self.down = 0

    def count(self, messages: "dict[ClientId, bytes]", replies: "dict[ClientId, bytes]") -> None:
        """Adds an exchange."""
        self.down += sum(map(len, messages.values()))
        self.up += sum(map(len, replies.values()))


def _record(
    ledger: RoundLedger,
    clients: Sequence[ClientId],
    guests: Sequence[ClientId],
    cohort: tuple[ClientId, ...],
    seconds: dict[str, float],
    traffic: _Traffic,
) -> RoundRecord:
    """What round t was, but for the score of the model it made."""
    reports = ledger.reports
    for report in reports.values():
        for phase, spent in report.seconds.items():
            if spent is not None:
                seconds[f"client_{phase}"] = seconds.get(f"client_{phase}", 0.0) + spent
    clocks = [
        min(report.cost, report.budget)
        for report in reports.values()
        if report.cost is not None and report.budget is not None
    ]
    clocks = [clock for clock in clocks if math.isfinite(clock)]  # a client may say anything
    status = ledger.status
    return RoundRecord(
        round=ledger.round,
        participants=len(cohort),
        violations=sum(status.get(client) == "over-budget" for client in clients),
        rejected=len(ledger.rejections),
        rejections=tuple(ledger.rejections),
        bytes_up=traffic.up,
        bytes_down=traffic.down,
        simulated_seconds=max(clocks, default=None),
        wasted_epochs=sum(report.epochs for client, report in reports.items() if client not in cohort),
        epochs=sum(report.epochs for report in reports.values()),
        cohort=cohort,
        seconds=seconds,
        clients=tuple(
            ClientRecord.of(client, status.get(client, "unselected"), reports.get(client))
            for client in (*clients, *guests)
        ),
    )


def _scored(record: RoundRecord, score: Metrics | None) -> RoundRecord:
    if score is None:
        return record
    return msgspec.structs.replace(record, loss=score.loss, accuracy=score.accuracy, f1=score.f1)


def _without_cohort(record: RoundRecord) -> RoundRecord:
    """The record of a round whose aggregate the clients found to be no model."""
    lost = dict.fromkeys(record.cohort, "failed:aggregate-refused")
    clients = tuple(
        msgspec.structs.replace(client, status=lost.get(client.id, client.status))
        for client in record.clients
    )
    return msgspec.structs.replace(
        record, participants=0, cohort=(), wasted_epochs=record.epochs, clients=clients
    )


def _selection_reports(record: RoundRecord, chosen: frozenset[ClientId]) -> list[SelectionReport]:
    """What the selector learns of the clients that it chose."""
    return [
        SelectionReport(
            client.id,
            completed=client.status == "accepted",
            accuracy=None if client.state is None else client.state[1],
            cost=client.cost,
        )
        for client in record.clients
        if client.id in chosen
    ]
