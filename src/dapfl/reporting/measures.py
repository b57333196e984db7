"""What a run achieved and what it cost, as numbers; settings compared over seeds.

Runs whose configurations differ in nothing but the seed are repetitions: they form one `Group`. A measure of
a group is its mean and spread over the seeds.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dapfl.federation.records import RoundRecord, Status
from dapfl.runs.results import Run
from dapfl.runs.settings import SETTINGS

# Values that change how a run is executed or logged, but not what it computes.
_IMMATERIAL = ("seed", "workers", "log", "round_timeout", "wait", "crypto.engine")
_ORACLE_GRID = 6  # this many `fixed` groups of one task are a search, not settings to compare
# The target accuracies of our tasks. Those of another task follow from the best accuracy seen.
_TARGETS = {
    "logistic-mnist": (0.80, 0.85, 0.90),
    "cnn-mnist": (0.90, 0.95, 0.97),
    "resnet18-mnist": (0.90, 0.95, 0.97),
    "cnn-fashion": (0.70, 0.80, 0.84),
}


@dataclass(frozen=True)
class Spread:
    """A measure over seeds: its mean and standard deviation, and for how many of the seeds it exists."""

    mean: float
    sd: float
    count: int
    of: int

    @classmethod
    def over(cls, values: Sequence[float | None]) -> "Spread | None":
        """The spread of the values that exist; None when there are none.

        >>> Spread.over([1.0, 3.0, None])
        Spread(mean=2.0, sd=1.4142135623730951, count=2, of=3)
        """
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            return None
        sd = statistics.stdev(known) if len(known) > 1 else 0.0
        return cls(statistics.fmean(known), sd, len(known), len(values))


@dataclass(frozen=True)
class Reached:
    """When a run first reached a target accuracy, and what it had spent by then."""

    rounds: int
    simulated_seconds: float | None
    bytes: int
    epochs: float


@dataclass(frozen=True)
class Group:
    """The runs of one setting that differ in nothing but their seed."""

    task: str
    setting: str
    label: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs, in order."""
        return tuple(run.manifest.seed for run in self.runs)

    @property
    def has_agents(self) -> bool:
        """Whether an agent chooses for some client of it, whether it learns meanwhile or not."""
        return any(client.q is not None for run in self.runs for client in run.rounds[-1].clients)

    @property
    def learns(self) -> bool:
        """Whether some client of it has an agent that learns during the run."""
        return any(client.critic_loss is not None for run in self.runs for client in run.rounds[-1].clients)

    def spread(self, measure: Callable[[Run], float | None]) -> Spread | None:
        """A measure's mean and spread over the seeds."""
        return Spread.over([measure(run) for run in self.runs])


def grouped(runs: Iterable[Run]) -> list[Group]:
    """Runs sorted into groups, Dap-FL first, each with a label that is unique within its task.

    Of two runs with the same configuration and seed only the later one counts: they are not two samples.
    """
    by_config: dict[tuple[tuple[str, str], ...], dict[int, Run]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: (run.manifest.created, run.path)):
        by_config[_material(run)][run.manifest.seed] = run
    groups = []
    for config, members in by_config.items():
        ordered = tuple(members[seed] for seed in sorted(members))
        manifest = ordered[0].manifest
        rivals = [
            other
            for other, runs_ in by_config.items()
            if next(iter(runs_.values())).manifest.setting == manifest.setting
            and next(iter(runs_.values())).manifest.task_name == manifest.task_name
        ]
        groups.append(
            Group(manifest.task_name, manifest.setting, _label(manifest.setting, config, rivals), ordered)
        )
    return sorted(_with_oracle(groups), key=lambda group: (group.task, order_of(group.setting), group.label))


def _with_oracle(groups: Sequence[Group]) -> list[Group]:
    """A grid of `fixed` runs folded into the best of them: what an expert's search would have found."""
    kept = []
    for task in {group.task for group in groups}:
        grid = [group for group in groups if (group.task, group.setting) == (task, "fixed")]
        kept += [group for group in groups if group.task == task and group not in grid]
        if len(grid) < _ORACLE_GRID:
            kept += grid
            continue
        best = max(grid, key=lambda group: mean_accuracy(group) or 0.0)
        label = f"oracle: best of {len(grid)}{best.label.removeprefix('fixed')}"
        kept.append(replace(best, setting="oracle", label=label))
    return kept


def mean_accuracy(group: Group) -> float | None:
    """The final test accuracy of a group, mean over its seeds."""
    spread = group.spread(final_accuracy)
    return spread.mean if spread else None


def by_task(groups: Iterable[Group]) -> dict[str, list[Group]]:
    """The groups of each task."""
    found: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        found[group.task].append(group)
    return dict(found)


def order_of(setting: str) -> tuple[int, str]:
    """Where a setting stands in tables and legends: as the settings table has them, then the rest."""
    return (SETTING_ORDER.index(setting) if setting in SETTING_ORDER else len(SETTING_ORDER), setting)


SETTING_ORDER = (*SETTINGS, "oracle")


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _material(run: Run) -> tuple[tuple[str, str], ...]:
    # What is left to its default ("None") says nothing; runs made before there was such a choice lack it.
    return tuple(
        sorted(
            (name, value)
            for name, value in _flat(run.manifest.config)
            if name not in _IMMATERIAL and value != "None"
        )
    )


def _label(
    setting: str, config: tuple[tuple[str, str], ...], rivals: Sequence[tuple[tuple[str, str], ...]]
) -> str:
    """The setting's name, with what distinguishes it from other groups of the same setting and task."""
    common = set.intersection(*(set(rival) for rival in rivals))
    symbols = {
        "eta": "η",
        "alpha": "α",
        "price": "κ",
    }  # in the order in which they are named, before the rest
    # "None" leaves a value to the setting. That is the default and needs no mention.
    own = {
        key.rpartition(".")[2]: value
        for key, value in config
        if (key, value) not in common and value != "None"
    }
    names = sorted(own, key=lambda name: [*symbols, name].index(name))
    words = [f"{symbols.get(name, name)}={own[name]}" for name in names]
    return f"{setting} ({', '.join(words)})" if own else setting


def targets_of(groups: Sequence[Group]) -> tuple[float, ...]:
    """The target accuracies of one task's table."""
    known = _TARGETS.get(groups[0].task)
    if known:
        return known
    best = max(
        (accuracy for group in groups for run in group.runs if (accuracy := best_accuracy(run))), default=1.0
    )
    return tuple(sorted({round(best * share, 2) for share in (0.8, 0.9, 0.95)}))


def final_accuracy(run: Run) -> float | None:
    """Test accuracy of the last global model."""
    return run.rounds[-1].accuracy


def final_loss(run: Run) -> float | None:
    """Test loss of the last global model."""
    return run.rounds[-1].loss


def final_f1(run: Run) -> float | None:
    """Macro-F1 of the last global model."""
    return run.rounds[-1].f1


def final_metric(name: str, run: Run) -> float | None:
    """A measure of the task's own, of the last global model."""
    return run.rounds[-1].metrics.get(name)


def final_worst_accuracy(run: Run) -> float | None:
    """Accuracy of the last global model for the tenth of the clients that it serves worst."""
    return run.rounds[-1].worst_accuracy


def final_accuracy_spread(run: Run) -> float | None:
    """How far apart the clients are: standard deviation of the last global model's accuracy over them."""
    return run.rounds[-1].accuracy_spread


def best_accuracy(run: Run) -> float | None:
    """The highest test accuracy of any round."""
    return max((row.accuracy for row in run.rounds if row.accuracy is not None), default=None)


def lowest_loss(run: Run) -> float | None:
    """The lowest test loss of any round."""
    return min((row.loss for row in run.rounds if row.loss is not None), default=None)


def reached(run: Run, target: float) -> Reached | None:
    """When the run first had a global model of the target accuracy; None when it never did."""
    seconds, size, epochs = None, 0, 0.0
    for count, row in enumerate(run.rounds, start=1):
        if row.simulated_seconds is not None:
            seconds = (seconds or 0.0) + row.simulated_seconds
        size += row.bytes_up + row.bytes_down
        epochs += row.epochs
        if row.accuracy is not None and row.accuracy >= target:
            return Reached(count, seconds, size, epochs)
    return None


def total(quantity: Callable[[RoundRecord], float | None]) -> Callable[[Run], float | None]:
    """A measure: the sum of a quantity over all rounds of a run; None if no round knows it."""

    def summed(run: Run) -> float | None:
        known = [value for row in run.rounds if (value := quantity(row)) is not None]
        return sum(known) if known else None

    return summed


def trial_epochs(row: RoundRecord) -> float | None:
    """The epochs of a round that clients spent on trials of learning rates; None if no client told."""
    known = [client.trial_epochs for client in row.clients if client.trial_epochs is not None]
    return sum(known) if known else None


def capability_of(rounds: Iterable[RoundRecord]) -> dict[int, float]:
    """The capability of each client that ever reported it: a refused upload reports nothing."""
    return {
        client.id: client.capability
        for row in rounds
        for client in row.clients
        if client.capability is not None
    }


def capabilities(groups: Iterable[Group]) -> list[float]:
    """The capabilities of the clients of these groups, the strongest first."""
    found = {each for group in groups for run in group.runs for each in capability_of(run.rounds).values()}
    return sorted(found, reverse=True)


def participation(run: Run) -> dict[float, float]:
    """For each capability, the share of its clients' rounds that entered C(t), strongest first."""
    known = capability_of(run.rounds)
    counts: dict[float, list[int]] = defaultdict(lambda: [0, 0])
    for row in run.rounds:
        for client in row.clients:
            if client.id in known:
                count = counts[known[client.id]]
                count[0] += client.status == Status.ACCEPTED
                count[1] += 1
    return {capability: counts[capability][0] / counts[capability][1] for capability in sorted(counts)[::-1]}


def accepted_share(rounds: Sequence[RoundRecord]) -> float | None:
    """The share of all clients' rounds that entered C(t); None when no round names its clients."""
    accepted = [client.status == Status.ACCEPTED for row in rounds for client in row.clients]
    return sum(accepted) / len(accepted) if accepted else None


@dataclass(frozen=True)
class Difference:
    """Dap-FL minus another setting, paired by seed, with its 95 % confidence interval."""

    reference: str
    rival: str
    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def verdict(self) -> str:
        """What may be claimed from these seeds."""
        if self.low is None or self.high is None:
            return "one seed: no claim"
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "no difference shown"


def difference(reference: Group, rival: Group, measure: Callable[[Run], float | None]) -> Difference | None:
    """The paired difference of a measure over the seeds that both groups have; None without any.

    Both ran under the same clients, data and budgets for the same seed, so the pairs cancel what the
    seeds have in common: the interval is Student's t of the differences.
    """
    ours = {run.manifest.seed: measure(run) for run in reference.runs}
    theirs = {run.manifest.seed: measure(run) for run in rival.runs}
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    gaps = [a - b for a, b in pairs if a is not None and b is not None]
    if not gaps:
        return None
    mean = statistics.fmean(gaps)
    if len(gaps) == 1:
        return Difference(reference.label, rival.label, mean, None, None, 1)
    half = _student_975(len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return Difference(reference.label, rival.label, mean, mean - half, mean + half, len(gaps))


def _student_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: a table for few degrees of freedom, then Cornish-Fisher.

    >>> round(_student_975(2), 3), round(_student_975(40), 3)
    (4.303, 2.021)
    """
    table = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
    if degrees <= len(table):
        return table[degrees - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
