"""The server step: what clients contribute, and how W(t+1) follows from W(t) and the average of that.

The paper takes the average of the clients' models (`TakeAverage`). `NormalisedAverage` averages changes that
count alike however many steps each client has taken; `FedAdam` looks at the change of the average. FedAvgM,
FedYogi and the like would be other classes with the same methods; `server_step` chooses one.

Whoever recovers the average evaluates the step. With a shared key that is every client for itself, so a
step must be a deterministic function: all clients must get the same bits, on any machine. Additions,
products, quotients and square roots of single numbers are exact in this sense; NumPy's sums and dot
products are not, but `math.fsum` is. No step ever sees anything but averages, which all clients may read.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dapfl.arrays import Vector
from dapfl.config import ServerStepConfig
from dapfl.federation.global_model.models import GlobalModel, no_memory

MOST_SCALING = 4.0  # of a client's change by normalised averaging, up or down


class ServerStep(Protocol):
    """Says what clients contribute, and makes the next model out of the current one and the average."""

    measured: tuple[str, ...] = ()
    """Names of the numbers, none of them negative, that each client contributes after its weights."""

    @property
    def relative(self) -> bool:
        """Whether the step looks at W(t) or at its memory. If so, a client that missed a round is sent a
        snapshot, since the aggregate alone no longer makes the model."""

    def initial_memory(self, size: int) -> Vector:
        """The memory that goes with W(0), a model of `size` weights; always of the same length."""

    def contribution(self, current: GlobalModel, local: Vector, steps: int) -> Vector:
        """What a client contributes that has trained W(t) to ŵ_i(t): weights, and then what is `measured`.

        `steps` is how many steps of Eq. 2 that took.
        """
        del current, steps
        return local

    def apply(self, current: GlobalModel, average: Vector) -> tuple[Vector, Vector]:
        """W(t+1) and the memory that goes with it; must not change its arguments.

        The memory is kept, sent, hashed and saved together with the weights, so a step keeps nothing in
        itself.
        """


class TakeAverage(ServerStep):
    """W(t+1) is the average: federated averaging as in Eq. 44."""

    relative = False

    def initial_memory(self, size: int) -> Vector:
        """It remembers nothing."""
        return no_memory()

    def apply(self, current: GlobalModel, average: Vector) -> tuple[Vector, Vector]:
        """The average."""
        return average, current.memory


@dataclass(frozen=True)
class NormalisedAverage(ServerStep):
    """Normalised averaging (FedNova: Wang et al., NeurIPS 2020): who takes more steps counts no more.

    A client moves W(t) about as far as its number of steps τ_i goes, so the plain average follows those who
    take many. FedNova divides each change by τ_i, and multiplies the mean of that by τ̄, the mean of all τ_i.
    Nobody knows τ̄ before the round is over, so clients take that of the round before, which is the memory:
    each contributes W(t) + (τ̄/τ_i)·(ŵ_i(t) - W(t)), and τ_i as one more number, encrypted and averaged with
    the others. So nobody learns more than τ̄.

    The factor is bounded: little training is not extrapolated far, and a client that lies about its τ_i does
    no more than that to others. What follows the first `learned` weights of a model are running statistics,
    which are averaged as they are.
    """

    learned: int

    relative = False  # the aggregate alone makes the weights and the memory
    measured = ("steps",)

    def initial_memory(self, size: int) -> Vector:
        """Zero: τ̄ is not known yet."""
        del size
        return np.zeros(1, np.float32)

    def contribution(self, current: GlobalModel, local: Vector, steps: int) -> Vector:
        """The change of the learned weights times τ̄/τ_i, within bounds; and τ_i."""
        numbers = np.append(local, np.float32(steps))
        factor = np.float32(self.factor(float(current.memory[0]), steps))
        if factor != 1:
            start = current.weights[: self.learned]
            numbers[: self.learned] = start + factor * (local[: self.learned] - start)
        return numbers

    @staticmethod
    def factor(mean: float, steps: int) -> float:
        """τ̄/τ_i within its bounds; 1 where τ̄ is not known.

        >>> NormalisedAverage.factor(60.0, 40), NormalisedAverage.factor(1e30, 40)
        (1.5, 4.0)
        """
        return min(max(mean / steps, 1 / MOST_SCALING), MOST_SCALING) if 0 < mean < math.inf else 1.0

    def apply(self, current: GlobalModel, average: Vector) -> tuple[Vector, Vector]:
        """The average, and τ̄ of this round for the next."""
        del current
        return average[:-1].copy(), average[-1:].copy()


@dataclass(frozen=True)
class FedAdam(ServerStep):
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
        case "normalised":
            return NormalisedAverage(learned)
        case "fedadam":
            return FedAdam(config, learned)
