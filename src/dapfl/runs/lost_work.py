"""Work that did not reach the global model: whose, how often, why, and what to do about it.

The closing table, `dapfl status`, the report and the live page all count here, so that they agree.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dapfl.federation.records import RoundRecord, Status
from dapfl.runs.manifest import Manifest

_NOT_LOST = (Status.ACCEPTED, Status.UNSELECTED)


@dataclass(frozen=True)
class Explanation:
    """What a reason means, and what to do about it."""

    meaning: str
    remedy: str


_OTHER_PARTY = Explanation("its messages and ours do not fit together", "check for an attack, or broken keys")
_KEYS = Explanation("its keys are not those of this federation", "give it the folder that was made for it")
_DEVICE_LOG = "read the log of the device"

_EXPLANATIONS = {
    "over-budget": Explanation(
        "the plan cost more than the budget", "take a setting that caps epochs, or raise resources.budget"
    ),
    "diverged": Explanation(
        "training gave no finite model", "scale the inputs, or lower the learning rate (--eta)"
    ),
    "bad-data": Explanation("its data hold NaN or infinity", "clean them; the device's log names a row"),
    "no-data": Explanation("it does not find its data", "put them where the task looks for them"),
    "no-task": Explanation("its task does not load", _DEVICE_LOG),
    "no-usable-keys": Explanation("it has no usable keys", "put its own key bundle into its folder"),
    "bad-configuration": Explanation("its client.toml cannot be used", _DEVICE_LOG),
    "bad-state": Explanation("its saved state cannot be used", _DEVICE_LOG),
    "out-of-memory": Explanation("it ran out of memory", "free memory, or take a smaller model"),
    "disk-full": Explanation("it could not save its state", "free space on the device"),
    "absurd-size": Explanation(
        "it has more samples than were declared", "raise mean_samples (deploy init: --own-data MAX)"
    ),
    "late": Explanation("it did not answer in time", "raise round_timeout, or find out what slows it down"),
    "offline": Explanation("its node was not connected", "start its SuperNode"),
    "node-lost": Explanation("its node disappeared during the round", "see that its SuperNode keeps running"),
    "no-reply": Explanation("nothing came back", _DEVICE_LOG),
    "worker-died": Explanation("its process died", "look for a crash or a lack of memory"),
    "client-error": Explanation("it failed", _DEVICE_LOG),
    "internal-error": Explanation("it failed", _DEVICE_LOG),
    "min-cohort": Explanation(
        "too few others took part", "bring back the clients that were lost, or lower --min-cohort"
    ),
    "no-quorum": Explanation(
        "too few members of the committee answered", "bring back those that are off (docs/threshold.md)"
    ),
    "no-agreement": Explanation("clients disagree about the model", "look for one that lies or lags"),
    "aggregate-refused": Explanation("clients refused the aggregate", "look for a client that lies"),
    "replayed": Explanation(
        "it has seen messages of this round before", "do not use one state folder for two runs"
    ),
    "unknown-roster": Explanation(
        "it has lost the roster, with its state", "nothing: it gets the roster again with its next call"
    ),
    "bad-roster": Explanation(
        "it cannot use the roster", "see that it has the folder that was made for it last"
    ),
    "old-roster": Explanation(
        "it works under another roster", "apply every server.update, in their order"
    ),
    "removed": Explanation("it was removed from the federation", "dapfl deploy add makes it a new folder"),
    "wrong-federation": _KEYS,
    "bad-signature": _KEYS,
    "bad-envelope": _KEYS,
    "unknown-sender": _KEYS,
    "wrong-version": Explanation("it runs another version of Dap-FL", "install the same version everywhere"),
}  # fmt: skip


def explain(reason: str) -> Explanation:
    """What a reason of rounds.jsonl means; some sentence for every reason.

    >>> explain("late").meaning
    'it did not answer in time'
    """
    return _EXPLANATIONS.get(reason, _OTHER_PARTY)


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


def lost_work(rounds: Iterable[RoundRecord], clients: int | None = None) -> list[LostWork]:
    """Every client that was lost in any round, the most often lost first. Attackers are not clients: with
    `clients`, those beyond that number are left out."""
    reasons: dict[int, Counter[str]] = defaultdict(Counter)
    called: Counter[int] = Counter()
    for record in rounds:
        for client in record.clients:
            if client.status == Status.UNSELECTED or (clients is not None and client.id > clients):
                continue
            called[client.id] += 1
            if client.status not in _NOT_LOST:
                reasons[client.id][reason_of(client.status)] += 1
    found = [LostWork(client, called[client], counts) for client, counts in reasons.items()]
    return sorted(found, key=lambda lost: (-lost.times, lost.client))


def by_reason(rounds: Iterable[RoundRecord], clients: int | None = None) -> Counter[str]:
    """How many contributions were lost for each reason."""
    total: Counter[str] = Counter()
    for lost in lost_work(rounds, clients):
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
    clients = manifest.config.get("clients")
    reasons = by_reason(rounds, clients if isinstance(clients, int) else None)
    causes = (
        Counter({reason: count for reason, count in reasons.items() if reason != "min-cohort"}) or reasons
    )
    if not causes:
        return "No client was called."
    first = explain(causes.most_common(1)[0][0])
    return f"Lost contributions: {listed(causes)}. The first means that {first.meaning}: {first.remedy}."
