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
from functools import cached_property
from typing import Protocol

import numpy as np

from dapfl.arrays import Vector
from dapfl.config import ServerStepConfig
from dapfl.federation.global_model.models import GlobalModel, no_memory

MOST_SCALING = 4.0  # of a client's change by normalised averaging, up or down
RATE_BITS = 40  # rates are averaged as log2(η) + 40, which is not negative for any rate that trains
LARGEST_RATE = 64.0  # of such a number: no client can move the mean far
MOST_RATE_CHANGE = 2.0  # of their mean, from one round to the next: a factor of four
SKETCH = 8192  # coordinates by which directions and lengths of changes are compared
MOST_EFFORT = 4.0  # times the epochs that agents choose
AGREEMENT = 0.15  # of clients' changes, at which the effort stays
MOST_EFFORT_CHANGE = 2.0  # from one round to the next
LENGTH_SCALE = 2.0**28  # of squared lengths as they are told, to steps of 2^-60
LONGEST = 2.0**63  # of them; weights that move farther cannot be sent


@dataclass(frozen=True)
class Signals:
    """What the server step tells every client about the round before; None where it is not known.

    `rate` is the unit of η that clients had: their geometric mean, weighted by |D_i|.
    `alignment` is the cosine between the last two changes of the global model. Near 1 the model goes on in
    the same direction, and larger steps would do; below 0 it turns back, and steps were too large.
    `effort` is how many times the epochs that agents choose are worth their while.
    """

    rate: float | None = None
    alignment: float | None = None
    effort: float = 1.0


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

    def contribution(self, current: GlobalModel, local: Vector, steps: int, rate: float) -> Vector:
        """What a client contributes that has trained W(t) to ŵ_i(t): weights, and then what is `measured`.

        That took so many `steps` of Eq. 2; `rate` is the unit of the client's η.
        """
        del current, steps, rate
        return local

    def signals(self, current: GlobalModel) -> Signals:
        """What clients may know of the round that W(t) came from."""
        del current
        return Signals()

    def apply(self, current: GlobalModel, average: Vector, contributors: int) -> tuple[Vector, Vector]:
        """W(t+1) and the memory that goes with it, from the average of so many contributions; must not change
        its arguments.

        The memory is kept, sent, hashed and saved together with the weights, so a step keeps nothing in
        itself.
        """


class TakeAverage(ServerStep):
    """W(t+1) is the average: federated averaging as in Eq. 44."""

    relative = False

    def initial_memory(self, size: int) -> Vector:
        """It remembers nothing."""
        return no_memory()

    def apply(self, current: GlobalModel, average: Vector, contributors: int) -> tuple[Vector, Vector]:
        """The average."""
        del contributors
        return average, current.memory


@dataclass(frozen=True)
class NormalisedAverage(ServerStep):
    """Normalised averaging (FedNova: Wang et al., NeurIPS 2020), and what clients tell each other by it.

    A client moves W(t) about as far as its number of steps τ_i goes, so the plain average follows those who
    take many. FedNova divides each change by τ_i, and multiplies the mean of that by τ̄, the mean of all τ_i.
    Nobody knows τ̄ before the round is over, so clients take τ̄', that of the round before, which is
    remembered: each contributes W(t) + (τ̄'/τ_i)·(ŵ_i(t) - W(t)), and τ_i as one more number, encrypted and
    averaged with the others. So nobody learns more than τ̄. The mean change is then multiplied by τ̄/τ̄': a
    round in which all train less moves the model less. The unit of a client's η is another such number, and
    the squared length of its change a third.

    The last one tells how far the changes agree (`agreement`). Where each client goes its own way, it learns
    what only its own samples say, and the few epochs that agents choose are best. Where the changes have a
    direction in common, more local epochs lead farther. So the effort, a factor of 1 to 4 on these epochs,
    grows with the root of the agreement and falls with it.

    The factors are bounded: little training is not extrapolated far, and a client that lies about its τ_i
    does no more than that to others. One that lies about its rate moves the mean by a factor of four a round
    at most; one that lies about its length can hold the effort at its least. What follows the first `learned`
    weights of a model are running statistics, which are averaged as they are.

    The memory is τ̄; the mean rate, as log2(η) + 40; the alignment, plus 2; the effort; and a sketch of the
    last change of the model, some of its coordinates. What is 0 is not known yet.
    """

    learned: int

    relative = True  # the change of W(t) is remembered
    measured = ("steps", "rate", "length")

    @cached_property
    def _sketched(self) -> slice:
        """The coordinates of a sketch: every so many-th, in step with no usual size of a tensor."""
        stride = -(-self.learned // SKETCH)
        while stride > 1 and math.gcd(stride, 2 * 3 * 5 * 7) > 1:
            stride += 1
        return slice(0, self.learned, stride)

    def initial_memory(self, size: int) -> Vector:
        """Nothing is known yet."""
        del size
        return np.zeros(4 + len(range(self.learned)[self._sketched]), np.float32)

    def contribution(self, current: GlobalModel, local: Vector, steps: int, rate: float) -> Vector:
        """The change of the learned weights times τ̄'/τ_i, within bounds; τ_i; the unit of η; and how long
        that change is."""
        told = min(max(math.log2(rate) + RATE_BITS, 0.0), LARGEST_RATE) if rate > 0 else 0.0
        numbers = np.append(local, np.array([steps, told, 0], np.float32))
        self._rescale(numbers, current, self.factor(float(current.memory[0]), steps))
        change = numbers[self._sketched] - current.weights[self._sketched]
        numbers[-1] = min(LENGTH_SCALE * squared_length(change), LONGEST)
        return numbers

    def _rescale(self, weights: Vector, current: GlobalModel, factor: float) -> None:
        """Multiplies the change of the learned weights, in place."""
        if factor != 1:
            start = current.weights[: self.learned]
            weights[: self.learned] = start + np.float32(factor) * (weights[: self.learned] - start)

    @staticmethod
    def factor(wanted: float, steps: float) -> float:
        """How much farther so many steps should have gone, within bounds; 1 where that is not known.

        >>> NormalisedAverage.factor(60.0, 40), NormalisedAverage.factor(1e30, 40)
        (1.5, 4.0)
        """
        known = 0 < wanted < math.inf and 0 < steps < math.inf
        return min(max(wanted / steps, 1 / MOST_SCALING), MOST_SCALING) if known else 1.0

    def signals(self, current: GlobalModel) -> Signals:
        """The rate of the round before, how the last two changes are aligned, and the effort."""
        rate, alignment, effort = (float(number) for number in current.memory[1:4])
        return Signals(
            2.0 ** (rate - RATE_BITS) if rate else None,
            alignment - 2.0 if alignment else None,
            effort or 1.0,
        )

    def apply(self, current: GlobalModel, average: Vector, contributors: int) -> tuple[Vector, Vector]:
        """The average, moved as far as this round's steps go; and what this round tells the next."""
        weights, (steps, rate, length) = average[:-3].copy(), average[-3:]
        change = weights[self._sketched] - current.weights[self._sketched]
        effort = next_effort(
            float(current.memory[3]) or 1.0,
            agreement(squared_length(change), float(length) / LENGTH_SCALE, contributors),
        )
        self._rescale(weights, current, self.factor(float(steps), float(current.memory[0])))
        change = weights[self._sketched] - current.weights[self._sketched]
        alignment = cosine(current.memory[4:], change)
        before = current.memory[1]
        if before:
            low, high = (np.float32(sign * MOST_RATE_CHANGE) for sign in (-1, 1))
            rate = min(max(rate, before + low), before + high)
        rate = min(max(rate, np.float32(0)), np.float32(LARGEST_RATE))
        told = np.array([steps, rate, 0.0 if alignment is None else alignment + 2.0, effort], np.float32)
        return weights, np.concatenate([told, change])


def agreement(of_mean: float, mean: float, contributors: int) -> float | None:
    """How far changes agree: 1 if all are the same, near 0 if they have no direction in common.

    `of_mean` is the squared length of their mean, `mean` the mean of their squared lengths. Without a common
    direction the first would be 1/contributors of the second, for clients with equally many samples; with
    unequal ones somewhat more. None if nothing moved, or nobody else is there.

    >>> agreement(4.0, 4.0, 20), agreement(0.2, 4.0, 20)
    (1.0, 0.0)
    """
    if contributors < 2 or not (0 < mean < math.inf and of_mean < math.inf):
        return None
    alone = 1 / contributors
    return (of_mean / mean - alone) / (1 - alone)


def next_effort(effort: float, agreed: float | None) -> float:
    """The effort of the next round.

    >>> next_effort(2.4, AGREEMENT), next_effort(2.4, 0.0), next_effort(1.2, 0.9)
    (2.4, 1.2, 2.4)
    """
    if agreed is None:
        return effort
    change = math.sqrt(max(agreed, 0.0) / AGREEMENT)
    change = min(max(change, 1 / MOST_EFFORT_CHANGE), MOST_EFFORT_CHANGE)
    return min(max(effort * change, 1.0), MOST_EFFORT)


def squared_length(a: Vector) -> float:
    """The squared length of a vector of float32, the same bits on any machine."""
    # The product of two float32 is exact in float64, and so is the sum of fsum before it is rounded.
    b = a.astype(np.float64)
    return math.fsum((b * b).tolist())


def cosine(a: Vector, b: Vector) -> float | None:
    """The cosine between two vectors of float32, the same bits on any machine; None if one has no length.

    >>> cosine(np.float32([3, 4]), np.float32([-6, -8]))
    -1.0
    """
    dot = math.fsum((a.astype(np.float64) * b.astype(np.float64)).tolist())
    aa, bb = squared_length(a), squared_length(b)
    if not (aa > 0 and bb > 0 and math.isfinite(aa) and math.isfinite(bb)):
        return None
    return min(max(dot / math.sqrt(aa) / math.sqrt(bb), -1.0), 1.0)


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

    def apply(self, current: GlobalModel, average: Vector, contributors: int) -> tuple[Vector, Vector]:
        """One step of Adam; each operation is on single numbers of float32, as is its rounding."""
        del contributors
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
