"""What a client has to spend in a round: E_i(t), E_i^cpt(t) and E_i^cmu(t) of Eq. 19.

Three sources, one interface (`ResourceProcess.at`): a simulated process, a CSV trace, or what a
real device measures about itself. In a simulation one unit is one epoch at full capability over 600
samples, or over what clients usually have, if a user's own data give them more; in a trace it is
whatever unit the trace uses, on a device it is a second. Only ratios matter to an agent.
"""

import csv
import functools
import json
import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import psutil

from dapfl.budget import affordable_epochs, round_cost
from dapfl.config import ResourceConfig
from dapfl.errors import ConfigError, TraceError
from dapfl.randomness import stream

REFERENCE_SAMPLES = 600
"""The size of the local data set whose epoch costs one unit at full capability."""

TRACE_COLUMNS = ("round", "client", "budget", "epoch_cost", "transfer_cost")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one client has in one round, and what work costs it.

    >>> now = Resources(budget=32.0, epoch_cost=5.0, transfer_cost=1.0)
    >>> now.affordable, now.cost(6)
    (6, 32.0)
    """

    budget: float
    """E_i(t)."""
    epoch_cost: float
    """E_i^cpt(t): one epoch of local training."""
    transfer_cost: float
    """E_i^cmu(t): one transfer of the model, down or up."""

    def cost(self, alpha: float) -> float:
        """The cost of a round with α epochs (Eq. 19)."""
        return round_cost(alpha, self.epoch_cost, self.transfer_cost)

    @property
    def affordable(self) -> int:
        """The most epochs that fit the budget; 0 if not even one does."""
        return affordable_epochs(self.budget, self.epoch_cost, self.transfer_cost)

    def with_gradients(self, per_step: int) -> "Resources":
        """The same for an optimiser that computes so many gradients in each step."""
        return replace(self, epoch_cost=per_step * self.epoch_cost)


class ResourceProcess(Protocol):
    """Resources that change from round to round."""

    def at(self, round: int) -> Resources:  # noqa: A002 - the word of the whole project
        """What the client has in this round."""
        ...


@dataclass(frozen=True, slots=True)
class _Walk:
    """A random walk around 1 that is drawn back to 1 and stays within bounds."""

    step: float
    low: float
    high: float

    def next(self, value: float, shock: float) -> float:
        moved = value + self.step * shock - 0.1 * (value - 1)
        return min(self.high, max(self.low, moved))


_BUDGET = _Walk(step=0.10, low=0.4, high=1.6)
_EPOCH = _Walk(step=0.05, low=0.7, high=1.3)
_TRANSFER = _Walk(step=0.15, low=0.3, high=2.5)


class SimulatedResources:
    """A bounded random walk with jumps, the same for the same seed.

    A client's walk is drawn from streams of its own, a block of rounds at a time, and kept. So `at` does
    not depend on what was asked before, and a client costs nothing until it is asked.
    """

    BLOCK = 16

    def __init__(
        self,
        config: ResourceConfig,
        capability: float,
        samples: int,
        seed: int,
        client: int,
        reference: float = REFERENCE_SAMPLES,
    ) -> None:
        self.capability = capability
        self._config = config
        self._samples = samples
        self._reference = reference
        self._seed = seed
        self._client = client
        self._factors: list[tuple[float, float, float]] = []

    def at(self, round: int) -> Resources:  # noqa: A002
        """What the client has in this round."""
        if round < 0:
            raise ValueError(f"rounds count from 0, not {round}")
        while round >= len(self._factors):
            self._extend()
        budget, epoch, transfer = self._factors[round]
        return Resources(
            budget=self._config.budget * budget,
            epoch_cost=epoch * self._samples / self._reference / self.capability,
            transfer_cost=self._config.transfer * transfer,
        )

    def _extend(self) -> None:
        """Draws the next block of rounds."""
        rng = stream(self._seed, "resources", self._client, len(self._factors) // self.BLOCK)
        shocks = rng.standard_normal((self.BLOCK, 3)).tolist()
        jumps = rng.random((self.BLOCK, 2)).tolist()
        if self._factors:
            budget, epoch, transfer = self._factors[-1]
        else:
            start = 1 + 0.2 * float(rng.standard_normal())
            budget, epoch, transfer = min(_BUDGET.high, max(_BUDGET.low, start)), 1.0, 1.0
        for (z1, z2, z3), (chance, place) in zip(shocks, jumps, strict=True):
            budget = _BUDGET.next(budget, z1)
            if chance < self._config.jump_probability:
                # A device is plugged in, or its owner starts to use it: E_i(t) follows no trend.
                budget = _BUDGET.low + (_BUDGET.high - _BUDGET.low) * place
            epoch = _EPOCH.next(epoch, z2)
            transfer = _TRANSFER.next(transfer, z3)
            self._factors.append((budget, epoch, transfer))


class TraceResources:
    """A client's rows of a CSV trace; after its last round the trace starts again.

    Columns: round, client, budget, epoch_cost, transfer_cost. Lines that start with # are comments.
    """

    def __init__(self, path: Path, client: int) -> None:
        path = Path(path)
        try:
            facts = path.stat()
        except OSError as error:
            raise TraceError(f"The resource trace {path} cannot be read: {error.strerror}.") from None
        traces = _read_trace(path, facts.st_mtime_ns, facts.st_size)
        if client not in traces:
            raise TraceError(
                f"The resource trace {path} has no rows for client {client}; it describes {len(traces)} "
                f"clients ({min(traces)} to {max(traces)}). Add rows for it, or run with fewer clients."
            )
        self._rows = traces[client]

    def at(self, round: int) -> Resources:  # noqa: A002
        """What the client has in this round."""
        return self._rows[round % len(self._rows)]


@functools.lru_cache(maxsize=4)
def _read_trace(path: Path, _modified: int, _size: int) -> dict[int, list[Resources]]:
    """Every client's rows in the order of rounds; read once for all clients of a process."""
    rows: dict[int, dict[int, Resources]] = {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"The resource trace {path} cannot be read as text: {error}.") from None
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    header = tuple(name.strip() for name in next(csv.reader([numbered[0][1]]))) if numbered else ()
    if header != TRACE_COLUMNS:
        raise TraceError(f"The resource trace {path} must start with the line {','.join(TRACE_COLUMNS)}.")
    for number, line in numbered[1:]:
        try:
            round_, client, resources = _parse_row(next(csv.reader([line])))
            if round_ in rows.setdefault(client, {}):
                raise ValueError(f"client {client} already has a row for round {round_}")
        except ValueError as error:
            raise TraceError(f"Line {number} of the resource trace {path} is wrong: {error}.") from None
        rows[client][round_] = resources
    if not rows:
        raise TraceError(f"The resource trace {path} has no rows: write one for each client and round.")
    for client, known in rows.items():
        missing = next((t for t in range(len(known)) if t not in known), None)
        if missing is not None:
            raise TraceError(f"The resource trace {path} lacks round {missing} of client {client}: add it.")
    return {client: [known[t] for t in range(len(known))] for client, known in rows.items()}


def _parse_row(cells: list[str]) -> tuple[int, int, Resources]:
    if len(cells) != len(TRACE_COLUMNS):
        raise ValueError(f"{len(cells)} values instead of {len(TRACE_COLUMNS)}")
    values: list[float] = []
    for name, cell in zip(TRACE_COLUMNS, cells, strict=True):
        whole = name in ("round", "client")
        try:
            value = int(cell) if whole else float(cell)
        except ValueError:
            raise ValueError(f"{name} is {cell.strip()!r}, not a {'whole ' if whole else ''}number") from None
        least = {"client": 1, "epoch_cost": math.ulp(0.0)}.get(name, 0)
        if not math.isfinite(value) or value < least:
            raise ValueError(f"{name} is {cell.strip()}, which is out of range")
        values.append(value)
    return int(values[0]), int(values[1]), Resources(*values[2:])


def battery_share() -> float | None:
    """How full the battery is, 0 to 1; None without a battery or while it is being charged."""
    sensors = getattr(psutil, "sensors_battery", None)  # absent on some platforms
    battery = sensors() if sensors is not None else None
    if battery is None or battery.power_plugged:
        return None
    return min(1.0, max(0.0, float(battery.percent) / 100))


class MeasuredResources:
    """What a real device knows about itself, in seconds.

    The budget is the round's deadline, reduced in proportion to an emptying battery; the costs are
    the mean of the last rounds. Until it has measured anything, a device assumes that it belongs
    to the weakest group: a plan too small costs a little time, one too large costs the contribution.
    """

    WINDOW = 5

    def __init__(self, config: ResourceConfig, battery: Callable[[], float | None] = battery_share) -> None:
        unit = config.deadline_seconds / config.budget
        self._deadline = config.deadline_seconds
        self._battery = battery
        self._first_epoch = unit / min(config.capabilities)
        self._first_transfer = unit * config.transfer
        self._epoch_seconds: deque[float] = deque(maxlen=self.WINDOW)
        self._transfer_seconds: deque[float] = deque(maxlen=self.WINDOW)

    def record_epochs(self, seconds: float, epochs: int) -> None:
        """Local training took this long."""
        if epochs > 0 and seconds >= 0:
            # A clock too coarse to see an epoch must not make epochs free.
            self._epoch_seconds.append(max(seconds / epochs, 1e-6))

    def record_transfer(self, seconds: float) -> None:
        """One transfer of the model took this long."""
        if seconds >= 0:
            self._transfer_seconds.append(seconds)

    @property
    def knows_epochs(self) -> bool:
        """Whether the cost of an epoch is measured, not assumed."""
        return bool(self._epoch_seconds)

    @property
    def knows_transfers(self) -> bool:
        """Whether the cost of a transfer is measured, not assumed."""
        return bool(self._transfer_seconds)

    def at(self, round: int) -> Resources:  # noqa: A002
        """What the device has now; the past and the future of a device cannot be measured."""
        share = self._battery()
        return Resources(
            budget=self._deadline * (1.0 if share is None else share),
            epoch_cost=statistics.fmean(self._epoch_seconds or (self._first_epoch,)),
            transfer_cost=statistics.fmean(self._transfer_seconds or (self._first_transfer,)),
        )

    def saved_state(self) -> bytes:
        """The measurements, as JSON."""
        kept = {"epoch_seconds": list(self._epoch_seconds), "transfer_seconds": list(self._transfer_seconds)}
        return json.dumps(kept).encode()

    def restore(self, state: bytes) -> None:
        """Continues with the measurements that `saved_state` returned."""
        try:
            kept = json.loads(state)
            epochs = [float(value) for value in kept["epoch_seconds"]]
            transfers = [float(value) for value in kept["transfer_seconds"]]
        except (ValueError, KeyError, TypeError):
            raise TraceError(
                "The saved resource measurements of this device cannot be read; "
                "delete them and it will measure again."
            ) from None
        self._epoch_seconds = deque(epochs, maxlen=self.WINDOW)
        self._transfer_seconds = deque(transfers, maxlen=self.WINDOW)


def capability_of(config: ResourceConfig, client: int, clients: int) -> float:
    """The share of full computing power that a client has: equal groups, in the order of ids.

    >>> [capability_of(ResourceConfig(), client, 20) for client in (1, 4, 5, 20)]
    [1.0, 1.0, 0.8, 0.2]
    """
    return config.capabilities[(client - 1) * len(config.capabilities) // clients]


def build_resources(
    config: ResourceConfig,
    client: int,
    clients: int,
    samples: int,
    seed: int,
    reference: float = REFERENCE_SAMPLES,
) -> ResourceProcess:
    """The resources of one client, from the source that the configuration names.

    In a simulation an epoch over `reference` samples costs one unit at full capability.
    """
    match config.source:
        case "walk":
            capability = capability_of(config, client, clients)
            return SimulatedResources(config, capability, samples, seed, client, reference)
        case "trace":
            if config.trace is None:
                raise ConfigError("resources.source is 'trace': name the CSV file in resources.trace.")
            return TraceResources(Path(config.trace), client)
        case "measured":
            return MeasuredResources(config)
