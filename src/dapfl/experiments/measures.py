"""What a run achieved and what it cost, as numbers; settings compared over seeds.

Runs are told apart by everything in their configuration but the seed: runs that differ in nothing else
are repetitions of one `Group`. A measure of a group is its mean and spread over those seeds.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dapfl.experiments.results import Run
from dapfl.federation.records import RoundRecord

# What does not change what a run computes, only how fast, where or how visibly.
_IMMATERIAL = ("seed", "workers", "log", "round_timeout", "crypto.engine")
_ORACLE_GRID = 6  # so many `fixed` groups of one task are a search, not settings to compare
# Accuracies worth waiting for, per task; another task's targets follow from the best accuracy seen.
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
    simulated_seconds: float
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
        """Whether some client of it has an agent that learns."""
        return any(client.critic_loss is not None for run in self.runs for client in run.rounds[-1].clients)

    def spread(self, measure: Callable[[Run], float | None]) -> Spread | None:
        """A measure's mean and spread over the seeds."""
        return Spread.over([measure(run) for run in self.runs])


def grouped(runs: Iterable[Run]) -> list[Group]:
    """Runs sorted into groups, Dap-FL first, each with a label that tells it from the others of its task.

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
    """Where a setting stands in tables and legends: Dap-FL, then the paper's order, then the rest."""
    return (SETTING_ORDER.index(setting) if setting in SETTING_ORDER else len(SETTING_ORDER), setting)


SETTING_ORDER = (
    "dap-fl",
    "dap-fl-paper",
    "large",
    "small",
    "ddpg-eta",
    "ddpg-alpha",
    "ddpg-client",
    "dqn-large",
    "dqn-small",
    "fixed",
    "fixed-capped",
    "cosine-capped",
    "oracle",
)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _material(run: Run) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(item for item in _flat(run.manifest.config) if item[0] not in _IMMATERIAL))


def _label(
    setting: str, config: tuple[tuple[str, str], ...], rivals: Sequence[tuple[tuple[str, str], ...]]
) -> str:
    """The setting's name, with whatever tells it from other groups of the same setting and task."""
    common = set.intersection(*(set(rival) for rival in rivals))
    symbols = {
        "eta": "η",
        "alpha": "α",
        "price": "κ",
    }  # in the order in which they are named, before the rest
    # What is left to the setting ("None") is its plain form, and goes without saying.
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


def best_accuracy(run: Run) -> float | None:
    """The highest test accuracy of any round."""
    return max((row.accuracy for row in run.rounds if row.accuracy is not None), default=None)


def lowest_loss(run: Run) -> float | None:
    """The lowest test loss of any round."""
    return min((row.loss for row in run.rounds if row.loss is not None), default=None)


def reached(run: Run, target: float) -> Reached | None:
    """When the run first had a global model of the target accuracy; None when it never did."""
    seconds, size, epochs = 0.0, 0, 0.0
    for count, row in enumerate(run.rounds, start=1):
        seconds += row.simulated_seconds or 0.0
        size += row.bytes_up + row.bytes_down
        epochs += row.epochs
        if row.accuracy is not None and row.accuracy >= target:
            return Reached(count, seconds, size, epochs)
    return None


def total(quantity: Callable[[RoundRecord], float | None]) -> Callable[[Run], float]:
    """A measure: the sum of a quantity over all rounds of a run."""
    return lambda run: sum(quantity(row) or 0 for row in run.rounds)


def capability_of(rounds: Iterable[RoundRecord]) -> dict[int, float]:
    """The capability of each client that ever reported it: a refused upload reports nothing."""
    return {
        client.id: client.capability
        for row in rounds
        for client in row.clients
        if client.capability is not None
    }


def participation(run: Run) -> dict[float, float]:
    """For each capability, the share of its clients' rounds that entered C(t), strongest first."""
    capabilities = capability_of(run.rounds)
    counts: dict[float, list[int]] = defaultdict(lambda: [0, 0])
    for row in run.rounds:
        for client in row.clients:
            if client.id in capabilities:
                count = counts[capabilities[client.id]]
                count[0] += client.status == "accepted"
                count[1] += 1
    return {capability: counts[capability][0] / counts[capability][1] for capability in sorted(counts)[::-1]}


def accepted_share(rounds: Sequence[RoundRecord]) -> float | None:
    """The share of all clients' rounds that entered C(t); None when no round names its clients."""
    fates = [client.status == "accepted" for row in rounds for client in row.clients]
    return sum(fates) / len(fates) if fates else None


@dataclass(frozen=True)
class Difference:
    """Dap-FL less another setting, paired by seed, with its 95 % confidence interval."""

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
    """The 97.5 % quantile of Student's t: a table where it bends, then Cornish-Fisher.

    >>> round(_student_975(2), 3), round(_student_975(40), 3)
    (4.303, 2.021)
    """
    table = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
    if degrees <= len(table):
        return table[degrees - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
