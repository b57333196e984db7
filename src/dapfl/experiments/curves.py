"""Curves over rounds, averaged over seeds and clients: what figures and pages draw."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dapfl.experiments.measures import Group, capability_of
from dapfl.federation.records import ClientRecord, RoundRecord

Series = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A quantity per round: mean and standard deviation, NaN where it is not known."""

    mean: Series
    sd: Series

    @property
    def known(self) -> bool:
        """Whether any point of it is known."""
        return bool(np.isfinite(self.mean).any())


def curve(rows: Sequence[Sequence[float | None]]) -> Curve:
    """The mean and spread of several series, point by point, over those that have the point.

    >>> curve([[1.0, 2.0], [3.0, None]]).mean.tolist()
    [2.0, 2.0]
    """
    length = max((len(row) for row in rows), default=0)
    table = np.full((len(rows), length), np.nan)
    for place, row in zip(table, rows, strict=True):
        place[: len(row)] = [np.nan if value is None else value for value in row]
    there = np.isfinite(table)
    count = there.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(there, table, 0.0).sum(axis=0) / count
        squares = (np.where(there, table - mean, 0.0) ** 2).sum(axis=0)
        sd = np.sqrt(squares / np.maximum(count - 1, 1))
    return Curve(mean, np.where(count > 0, sd, np.nan))


def over_rounds(group: Group, quantity: Callable[[RoundRecord], float | None]) -> Curve:
    """A quantity of the rounds of a group's runs."""
    return curve([[quantity(row) for row in run.rounds] for run in group.runs])


def spent(group: Group, quantity: Callable[[RoundRecord], float | None]) -> Series:
    """What had been spent by the end of each round, mean over seeds."""
    runs = [np.cumsum([quantity(row) or 0.0 for row in run.rounds]).tolist() for run in group.runs]
    return curve(runs).mean


def capabilities(group: Group) -> list[float]:
    """The capabilities of a group's clients, strongest first."""
    return sorted({each for run in group.runs for each in capability_of(run.rounds).values()}, reverse=True)


def by_capability(group: Group, quantity: Callable[[ClientRecord], float | None]) -> dict[float, Curve]:
    """A quantity of the clients of each capability, over rounds: mean over those clients and all seeds."""
    found: dict[float, list[list[float | None]]] = defaultdict(list)
    for run in group.runs:
        known = capability_of(run.rounds)
        series: dict[int, list[float | None]] = {client: [] for client in known}
        for row in run.rounds:
            now = {client.id: quantity(client) for client in row.clients}
            for client_id, values in series.items():
                values.append(now.get(client_id))
        for client_id, capability in known.items():
            found[capability].append(series[client_id])
    return {capability: curve(found[capability]) for capability in sorted(found, reverse=True)}


def phases(rounds: Iterable[RoundRecord]) -> dict[str, float]:
    """Mean seconds a round of each phase that was timed, longest first; the round's own total is `total`."""
    sums: dict[str, float] = defaultdict(float)
    count = 0
    for row in rounds:
        count += 1
        for phase, seconds in row.seconds.items():
            sums[phase] += seconds
    return {phase: sums[phase] / count for phase in sorted(sums, key=lambda phase: -sums[phase])}


def phase_name(phase: str) -> str:
    """A phase's name without its side: `client_train` is `train`."""
    return phase.removeprefix("client_").replace("_", " ")


# Why a client's contribution is not in C(t), in the order in which the reasons are stacked.
FATES = ("accepted", "over-budget", "diverged", "rejected", "failed", "unselected")


def fates(rounds: Sequence[RoundRecord]) -> dict[str, list[int]]:
    """How many clients met each fate in each round; fates that nobody met are left out."""
    counts = {fate: [0] * len(rounds) for fate in FATES}
    for place, row in enumerate(rounds):
        for client in row.clients:
            counts[client.status.partition(":")[0]][place] += 1
    return {fate: series for fate, series in counts.items() if any(series) or fate == "accepted"}
