"""How the record of a round is made: from the ledger of CS, and later from the score of the model."""

import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence

import msgspec

from dapfl.federation.records import ClientPhase, ClientRecord, Rejection, RoundRecord, Status
from dapfl.federation.server_state.round_ledger import RoundLedger
from dapfl.federation.transport import ClientId
from dapfl.learning.fairness import worst_tenth
from dapfl.learning.metrics import Score
from dapfl.system.stopwatch import Stopwatch
from dapfl.tuning.selection import SelectionReport


class Meter:
    """The seconds and bytes that a part of the run takes."""

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self.bytes_up = self.bytes_down = 0
        self._began = time.perf_counter()

    def count(self, messages: Mapping[ClientId, bytes], received_bytes: int) -> None:
        """Adds the bytes of an exchange."""
        self.bytes_down += sum(map(len, messages.values()))
        self.bytes_up += received_bytes

    def seconds(self, server: Mapping[str, float]) -> dict[str, float]:
        """The seconds of every phase, those of CS among them, and in total."""
        return {**self.watch.seconds, **server, "total": time.perf_counter() - self._began}


def round_record(
    ledger: RoundLedger,
    clients: Sequence[ClientId],
    insiders: Sequence[ClientId],
    meter: Meter,
    seconds: Mapping[str, float],
    simulated_clients: bool = True,
) -> RoundRecord:
    """The record of a round that is closed, but for the score of the model that it made."""
    reports, status, cohort = ledger.reports, ledger.status, ledger.cohort
    simulated = [
        min(report.cost, report.budget)
        for report in reports.values()
        if simulated_clients and report.cost is not None and report.budget is not None
    ]
    return RoundRecord(
        round=ledger.round,
        participants=len(cohort),
        violations=sum(status.get(client) == Status.OVER_BUDGET for client in clients),
        rejected=len(ledger.rejections),
        rejections=tuple(ledger.rejections),
        bytes_up=meter.bytes_up,
        bytes_down=meter.bytes_down,
        simulated_seconds=max(simulated, default=None),
        wasted_epochs=sum(report.epochs for client, report in reports.items() if client not in cohort),
        epochs=sum(report.epochs for report in reports.values()),
        cohort=cohort,
        seconds=_added(seconds, *(_client_seconds(report.seconds) for report in reports.values())),
        clients=tuple(
            ClientRecord.of(client, status.get(client, Status.UNSELECTED), reports.get(client))
            for client in (*clients, *insiders)
        ),
    )


def _client_seconds(seconds: Mapping[ClientPhase, float]) -> dict[str, float]:
    return {f"client_{phase}": spent for phase, spent in seconds.items()}


def _added(*parts: Mapping[str, float]) -> dict[str, float]:
    """The sum of seconds, phase by phase."""
    total: dict[str, float] = {}
    for part in parts:
        for phase, spent in part.items():
            total[phase] = total.get(phase, 0.0) + spent
    return total


def with_more(
    record: RoundRecord, rejections: Sequence[Rejection], meter: Meter, seconds: Mapping[str, float]
) -> RoundRecord:
    """The record together with what came of its round after it was closed."""
    every = (*record.rejections, *rejections)
    return msgspec.structs.replace(
        record,
        seconds=_added(record.seconds, seconds),
        rejections=every,
        rejected=len(every),
        bytes_up=record.bytes_up + meter.bytes_up,
        bytes_down=record.bytes_down + meter.bytes_down,
    )


def with_score(record: RoundRecord, score: Score | None) -> RoundRecord:
    """The record with the score of the model that its round made, if that has become known."""
    if score is None:
        return record
    record = msgspec.structs.replace(
        record,
        loss=score.loss,
        accuracy=None if math.isnan(score.accuracy) else score.accuracy,
        f1=None if math.isnan(score.f1) else score.f1,
        metrics=dict(score.more),
    )
    known = [accuracy for accuracy in score.client_accuracy if accuracy is not None]
    if not known:
        return record
    accuracies = dict(enumerate(score.client_accuracy, start=1))
    return msgspec.structs.replace(
        record,
        worst_accuracy=worst_tenth(known),
        accuracy_spread=statistics.pstdev(known),
        clients=tuple(
            msgspec.structs.replace(client, accuracy=accuracies.get(client.id)) for client in record.clients
        ),
    )


def without_cohort(record: RoundRecord, reason: str) -> RoundRecord:
    """The record of a round whose aggregate has turned out, for this reason, to make no model."""
    lost = dict.fromkeys(record.cohort, Status.FAILED.because(reason))
    clients = tuple(
        msgspec.structs.replace(client, status=lost.get(client.id, client.status))
        for client in record.clients
    )
    return msgspec.structs.replace(
        record, participants=0, cohort=(), wasted_epochs=record.epochs, clients=clients
    )


def selection_reports(record: RoundRecord, chosen: Collection[ClientId]) -> list[SelectionReport]:
    """What the selector learns about the clients that it chose."""
    return [
        SelectionReport(
            client.id,
            completed=client.status == Status.ACCEPTED,
            accuracy=None if client.state is None else client.state[1],
            cost=client.cost,
        )
        for client in record.clients
        if client.id in chosen
    ]
