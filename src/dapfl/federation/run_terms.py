"""What the participants of a run agree on before it begins: who has which samples, bounds, public parameters.

Each process works it out for itself from the configuration.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dapfl.config import PolicyConfig, RunConfig, ServerStepConfig
from dapfl.crypto.packing import Bounds, Segment, codec_named
from dapfl.errors import ConfigError
from dapfl.federation.global_model.derivation import ModelStore
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.global_model.server_step import server_step
from dapfl.federation.participants import (
    has_committee,
    smallest_cohort,
)
from dapfl.learning import device
from dapfl.learning.data import Dataset
from dapfl.learning.fairness import ClientTests
from dapfl.learning.partition import chosen_clients, partition
from dapfl.learning.runtime import TaskRuntime, task_runtime
from dapfl.learning.tasks import TASKS, get_task
from dapfl.randomness import stream
from dapfl.resources import REFERENCE_SAMPLES

_PAPER_MEAN, _PAPER_STD = 600.0, 200.0  # of |D_i|
_SIGMAS = 6  # no client of a normal distribution is larger than this many deviations above the mean


def check_numbers(config: RunConfig) -> None:
    """ConfigError if the numbers of clients do not go together; needs no data."""
    called = config.per_round or config.clients  # at most
    if called > config.clients:
        raise ConfigError(
            f"A round cannot call {called} clients: the federation has {config.clients}. "
            "Lower per_round, or add clients."
        )
    if config.min_cohort > called:
        raise ConfigError(
            f"A minimum cohort of {config.min_cohort} can never be reached by {called} clients: "
            "add clients, or lower --min-cohort (below 3, members can read each other's models, and "
            "--decryption must be shared)."
        )
    if config.room is not None and config.room < config.clients:
        raise ConfigError(
            f"There is no room for {config.clients} clients in a federation of {config.room}: raise room."
        )
    smallest_cohort(config)


@dataclass(frozen=True)
class Sizes:
    """How |D_i| is distributed: the paper's N(600, 200), or as the configuration says.

    The data of a user's own task are all shared out unless it says otherwise; the mean is None then.
    """

    mean: float | None
    std: float

    @classmethod
    def of(cls, config: RunConfig) -> "Sizes":
        """The sizes of a run's clients."""
        shared_out = config.mean_samples is None and config.task not in TASKS and config.partition != "own"
        mean = None if shared_out else config.mean_samples or _PAPER_MEAN
        std = config.std_samples
        return cls(mean, std if std is not None else 0.0 if shared_out else _PAPER_STD)

    def largest(self, samples: int, clients: int) -> int:
        """What no client of a set of so many samples exceeds."""
        mean = samples / clients if self.mean is None else self.mean
        return math.ceil(mean + _SIGMAS * self.std)


def bounds_of(config: RunConfig, data: Dataset | None = None) -> Bounds:
    """What every participant of a run declares never to exceed. Natural clients are as large as they are.

    >>> bounds_of(RunConfig())
    Bounds(max_samples=1800, max_clients=20)
    """
    if config.partition == "natural" and data is not None and data.natural is not None:
        largest = int(np.bincount(data.natural.train[data.natural.train >= 0]).max())
    else:
        largest = Sizes.of(config).largest(0 if data is None else len(data.train_labels), config.clients)
    return Bounds(
        max_samples=max(largest, config.batch_size),
        max_clients=config.per_round or max(config.clients, config.room or 0),
    )


def parameters_of(
    config: RunConfig,
    runtime: TaskRuntime,
    step: ServerStepConfig = ServerStepConfig(),  # noqa: B008 - frozen
) -> PublicParameters:
    """What the participants of a run all know: codec, tensors, minimum cohort, server step."""
    check_numbers(config)
    segments = tuple(
        Segment(
            tensor.name,
            tensor.start,
            tensor.stop,
            nonnegative=tensor.name.endswith("running_var"),
            wide=tensor.kind == "buffer",  # measured, not learned: of the size that the data have
        )
        for tensor in runtime.layout.tensors
    )
    bounds = bounds_of(config, runtime.data)
    codec = codec_named(config.crypto.codec, bounds, (config.crypto.key_bits - 1) // 8)
    learned = max(tensor.stop for tensor in runtime.layout.tensors if tensor.kind == "weight")
    return PublicParameters(
        codec,
        segments,
        smallest_cohort(config),
        step=server_step(step, learned),
        committee=has_committee(config.crypto),
    )


@dataclass
class Shared:
    """What the clients of one process have in common: the task, the data, the models they decoded.

    `primer` is `Federation.primer()` of a run that is being resumed.
    """

    config: RunConfig
    policy: PolicyConfig = PolicyConfig()  # noqa: RUF009 - frozen
    primer: bytes = b""
    store: ModelStore = field(default_factory=ModelStore)

    def __post_init__(self) -> None:
        device.use(self.config.device)

    @cached_property
    def partition(self) -> "list[NDArray[np.int32]]":
        """Every client's samples; each process derives the same from the seed."""
        config, sizes = self.config, Sizes.of(self.config)
        data = task_runtime(get_task(config.task)).data
        shares = partition(
            data.train_labels,
            config.clients,
            config.seed,
            config.partition,
            mean=sizes.mean,
            std=sizes.std,
            minimum=config.batch_size,
            natural=data.natural,
        )
        if config.partition == "own" and len(shares[0]) > (most := self.parameters.codec.bounds.max_samples):
            chosen = stream(config.seed, "partition", "own").choice(len(shares[0]), most, replace=False)
            return [np.sort(chosen).astype(np.int32)] * config.clients
        return shares

    @property
    def usual_samples(self) -> float:
        """How many samples an epoch has that costs one unit in a simulation.

        With large data of a user's own, weak clients could else afford no epoch at all.
        """
        if Sizes.of(self.config).mean is not None:
            return REFERENCE_SAMPLES
        return max(REFERENCE_SAMPLES, float(np.mean([len(share) for share in self.partition])))

    @cached_property
    def parameters(self) -> PublicParameters:
        """The public parameters of the run."""
        return parameters_of(self.config, task_runtime(get_task(self.config.task)), self.policy.server_step)


def client_tests(config: RunConfig) -> ClientTests | None:
    """The test samples of each client; None where only the devices know what their data are like."""
    if config.partition == "own":
        return None
    data = task_runtime(get_task(config.task)).data
    if config.partition == "natural" and data.natural is not None:
        natural = chosen_clients(data.natural, config.clients, config.seed)
        return ClientTests.natural(data, natural) if data.classes else None
    if not data.classes:
        return None  # what a model is worth to a client is told by an accuracy, and there is none
    return ClientTests.by_class(data, Shared(config).partition)


def samples_used(config: RunConfig) -> tuple[int, int]:
    """How many training samples the clients of a run have together, and how many there are."""
    shared = Shared(config)
    used = np.unique(np.concatenate(shared.partition)).size
    return int(used), len(task_runtime(get_task(config.task)).data.train_labels)


def client_names(config: RunConfig) -> tuple[str, ...]:
    """The names of the clients, in order, where the data have them."""
    natural = task_runtime(get_task(config.task)).data.natural if config.partition == "natural" else None
    if natural is None:
        return ()
    return tuple(natural.names[each] for each in chosen_clients(natural, config.clients, config.seed))
