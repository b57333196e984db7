"""The server step: how W(t+1) follows from W(t) and the average of the clients' models.

The paper takes the average itself (`TakeAverage`); `FedAdam` looks at the change. FedAvgM, FedYogi and the
like would be other classes with the same methods; `server_step` chooses one.

Whoever recovers the average evaluates the step. With a shared key that is every client for itself, so a
step must be a deterministic function: all clients must get the same bits, on any machine. Additions,
products, quotients and square roots of single numbers are exact in this sense; NumPy's sums and dot
products are not, but `math.fsum` is. No step ever sees anything but averages, which all clients may read.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dapfl.arrays import Vector
from dapfl.config import ServerStepConfig
from dapfl.federation.global_model.models import GlobalModel, no_memory


class ServerStep(Protocol):
    """Makes the next model out of the current one and the average."""

    @property
    def relative(self) -> bool:
        """Whether the step looks at W(t) or at its memory. If so, a client that missed a round is sent a
        snapshot, since the aggregate alone no longer makes the model."""

    def initial_memory(self, size: int) -> Vector:
        """The memory that goes with W(0), a model of `size` weights; always of the same length."""

    def apply(self, current: GlobalModel, average: Vector) -> tuple[Vector, Vector]:
        """W(t+1) and the memory that goes with it; must not change its arguments.

        The memory is kept, sent, hashed and saved together with the weights, so a step keeps nothing in
        itself.
        """


class TakeAverage:
    """W(t+1) is the average: federated averaging as in Eq. 44."""

    relative = False

    def initial_memory(self, size: int) -> Vector:
        """It remembers nothing."""
        return no_memory()

    def apply(self, current: GlobalModel, average: Vector) -> tuple[Vector, Vector]:
        """The average."""
        return average, current.memory


@dataclass(frozen=True)
class FedAdam:
    """Adam over the rounds, on the change that averaging makes (Reddi et al., "Adaptive Federated
    Optimization", ICLR 2021, Algorithm 2).

    Δ = average - W(t); m = β₁m + (1-β₁)Δ; v = β₂v + (1-β₂)Δ²; W(t+1) = W(t) + rate·m/(√v + τ). At the start m
    is 0 and v is τ². The memory is m, then v. What follows the first `learned` weights of a model are running
    statistics, which are measured and not learned: they are averaged.
    """

    config: ServerStepConfig
    learned: int

    relative = True

    def initial_memory(self, size: int) -> Vector:
        """No momentum yet."""
        del size  # of a whole model
        tau = np.float32(self.config.tau)
        return np.concatenate([np.zeros(self.learned, np.float32), np.full(self.learned, tau * tau)])

    def apply(self, current: GlobalModel, average: Vector) -> tuple[Vector, Vector]:
        """One step of Adam; each operation is on single numbers of float32, as is its rounding."""
        rate, beta1, beta2, tau = (
            np.float32(value)
            for value in (self.config.rate, self.config.beta1, self.config.beta2, self.config.tau)
        )
        one, learned = np.float32(1), self.learned
        change = average[:learned] - current.weights[:learned]
        m = beta1 * current.memory[:learned] + (one - beta1) * change
        v = beta2 * current.memory[learned:] + (one - beta2) * (change * change)
        weights = average.copy()
        weights[:learned] = current.weights[:learned] + rate * m / (np.sqrt(v) + tau)
        return weights, np.concatenate([m, v])


def server_step(config: ServerStepConfig, learned: int) -> ServerStep:
    """The step that a configuration names, for a model whose first `learned` weights are learned."""
    match config.kind:
        case "average":
            return TakeAverage()
        case "fedadam":
            return FedAdam(config, learned)
