"""Work that did not reach the global model: whose, how often, why, and what to do about it.

The closing table, `dapfl status`, the report and the live page all count here, so that they agree.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dapfl.federation.records import RoundRecord, Status
from dapfl.runs.manifest import Manifest
from dapfl.runs.monitoring.reasons import explain

_NOT_LOST = (Status.ACCEPTED, Status.UNSELECTED)


@dataclass(frozen=True)
class LostWork:
    """How often a client's work was lost, by reason."""

    client: int
    called: int
    reasons: Counter[str]

    @property
    def times(self) -> int:
        """In how many rounds."""
        return self.reasons.total()

    @property
    def why(self) -> str:
        """The reasons, the most frequent first, as in ``late 7, offline 2``."""
        return listed(self.reasons)

    @property
    def remedy(self) -> str:
        """What to do about the most frequent reason."""
        return explain(self.reasons.most_common(1)[0][0]).remedy


def reason_of(status: Status) -> str:
    """Why work with this status was lost, in one word."""
    return status.reason or status.kind.value


def called_in(record: RoundRecord, last: int | None = None) -> list[int]:
    """The clients that a round called. Attackers are not clients: with `last`, those beyond are left out."""
    return [
        client.id
        for client in record.clients
        if client.status != Status.UNSELECTED and (last is None or client.id <= last)
    ]


def lost_work(rounds: Iterable[RoundRecord], last: int | None = None) -> list[LostWork]:
    """Every client, up to number `last`, that was lost in any round, the most often lost first."""
    reasons: dict[int, Counter[str]] = defaultdict(Counter)
    called: Counter[int] = Counter()
    for record in rounds:
        called.update(called_in(record, last))
        for client in record.clients:
            if client.status not in _NOT_LOST and (last is None or client.id <= last):
                reasons[client.id][reason_of(client.status)] += 1
    found = [LostWork(client, called[client], counts) for client, counts in reasons.items()]
    return sorted(found, key=lambda lost: (-lost.times, lost.client))


def by_reason(rounds: Iterable[RoundRecord], last: int | None = None) -> Counter[str]:
    """How many contributions were lost for each reason."""
    total: Counter[str] = Counter()
    for lost in lost_work(rounds, last):
        total.update(lost.reasons)
    return total


def listed(reasons: Counter[str]) -> str:
    """Reasons in the order of their frequency.

    >>> listed(Counter({"late": 2, "offline": 7}))
    'offline 7, late 2'
    """
    return ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())


def rounds_without_model(rounds: Sequence[RoundRecord]) -> list[int]:
    """The rounds in which nothing was aggregated."""
    return [record.round for record in rounds if not record.participants]


def why_nothing(manifest: Manifest, rounds: Sequence[RoundRecord]) -> str:
    """Why no round of a run was aggregated, and what to do: a sentence or two."""
    reasons = by_reason(rounds, manifest.last_client)
    causes = (
        Counter({reason: count for reason, count in reasons.items() if reason != "min-cohort"}) or reasons
    )
    if not causes:
        return "No client was called."
    first = explain(causes.most_common(1)[0][0])
    return f"Lost contributions: {listed(causes)}. The first means that {first.meaning}: {first.remedy}."
