"""What figures and pages draw: curves over rounds and bars of groups, averaged over seeds and clients."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dapfl.federation.records import ClientRecord, RoundRecord, Status
from dapfl.reporting.measures import Group, capability_of

Series = npt.NDArray[np.float64]
_CLIENT = "client_"  # begins the names of the phases of clients


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
    """What had been spent by the end of each round, mean over seeds; not a number where nobody knows."""
    runs = [
        np.cumsum([quantity(row) or 0.0 for row in run.rounds]).tolist()
        if any(quantity(row) is not None for row in run.rounds)
        else [math.nan] * len(run.rounds)
        for run in group.runs
    ]
    return curve(runs).mean


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


def phases(groups: Sequence[Group]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The mean seconds per round that the server, and all clients together, spent in each phase.

    Each is a phase's name with a value for every group. The longest phases of the first group come first.
    """
    found = [_phases_of(group) for group in groups]
    names = dict.fromkeys(name for means in found for name in means if name != "total")
    values = {name: [means.get(name, 0.0) for means in found] for name in names}
    server = {name: each for name, each in values.items() if not name.startswith(_CLIENT)}
    clients = {name: each for name, each in values.items() if name.startswith(_CLIENT)}
    return _readable(server), _readable(clients)


def _phases_of(group: Group) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    rounds = [row for run in group.runs for row in run.rounds]
    for row in rounds:
        for phase, seconds in row.seconds.items():
            sums[phase] += seconds
    return {phase: sums[phase] / len(rounds) for phase in sorted(sums, key=lambda phase: -sums[phase])}


def _readable(series: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name.removeprefix(_CLIENT).replace("_", " "): values for name, values in series.items()}


def traffic(groups: Sequence[Group]) -> dict[str, list[float]]:
    """The mean megabytes per round, up and down, with a value for every group."""
    ways: dict[str, Callable[[RoundRecord], float]] = {
        "up": lambda row: row.bytes_up,
        "down": lambda row: row.bytes_down,
    }
    return {
        way: [float(np.nanmean(over_rounds(group, quantity).mean)) / 1e6 for group in groups]
        for way, quantity in ways.items()
    }


def status_counts(rounds: Sequence[RoundRecord]) -> dict[Status, list[int]]:
    """How many clients had each status in each round, in the order in which statuses are stacked."""
    counts = {status: [0] * len(rounds) for status in Status}
    for place, row in enumerate(rounds):
        for client in row.clients:
            counts[client.status.kind][place] += 1
    return counts


def statuses_by_round(group: Group) -> dict[str, Series]:
    """The mean number of clients with each status in each round; statuses that never occur are left out."""
    found = [status_counts(run.rounds) for run in group.runs]
    return {status.value: curve([counts[status] for counts in found]).mean for status in _met(found)}


def status_shares(groups: Sequence[Group]) -> dict[str, list[float]]:
    """The share of each status in per cent, with a value for every group."""
    found = [status_counts([row for run in group.runs for row in run.rounds]) for group in groups]
    totals = [max(sum(map(sum, counts.values())), 1) for counts in found]
    return {
        status.value: [100 * sum(counts[status]) / total for counts, total in zip(found, totals, strict=True)]
        for status in _met(found)
    }


def _met(found: Sequence[Mapping[Status, Sequence[int]]]) -> list[Status]:
    """The statuses that occurred; that contributions are accepted is worth showing even if none was."""
    return [s for s in Status if s is Status.ACCEPTED or any(any(counts[s]) for counts in found)]
