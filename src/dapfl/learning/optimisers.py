"""Local optimisers besides plain SGD: each finds its step sizes by itself, step by step.

Both take Eq. 2 with another η in every step, and start anew in every round, at W(t):

`DeltaSGD`  Kim et al., "Adaptive Federated Learning with Auto-Tuned Clients", ICLR 2024. η follows the
            curvature that the last step met. The round's η is its first step size η₀.
`DoG`       Ivgi et al., "DoG is SGD's Best Friend", ICML 2023: distance over gradients. The round's η is
            its factor c, which its authors leave at 1. From its second round on, a client starts with the
            step size that it ended with: DoG begins with tiny steps, and rounds are too short for that.

A task computes gradients for them by autograd. Models with an epoch of their own (`runtime.ClosedForm`)
use that for plain SGD alone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dapfl.config import OptimiserConfig
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.runtime import TaskRuntime

Gradient = tuple[Tensor, ...]
"""One tensor for each tensor of weights."""


def rule_of(
    optimiser: OptimiserConfig, runtime: TaskRuntime, last: float | None = None
) -> "AdaptiveSGD | None":
    """The rule of one round, given the last step size of the round before; None for plain SGD."""
    return None if optimiser.kind == "sgd" else KINDS[optimiser.kind](optimiser, runtime, last)


def gradients_per_step(optimiser: OptimiserConfig) -> int:
    """How many gradients a step takes: an epoch costs so many epochs of SGD."""
    return 1 if optimiser.kind == "sgd" else KINDS[optimiser.kind].gradients


class AdaptiveSGD(ABC):
    """SGD whose step size is computed anew for every batch, from one round's memory."""

    gradients = 1
    """How many gradients a step takes."""

    def __init__(self, config: OptimiserConfig, runtime: TaskRuntime, last: float | None = None) -> None:
        self._config = config
        self._runtime = runtime
        self._weights = runtime.trained
        self.last = last
        """The last step size, of this round or of the one before."""

    def epoch(
        self,
        inputs: Tensor,
        labels: Tensor,
        order: Tensor,
        lengths: list[int],
        hyperparameters: Hyperparameters,
    ) -> None:
        """Eq. 2 on each batch, at the step size that the rule finds."""
        for batch in torch.split(order, lengths):
            x, y = inputs[batch], labels[batch]
            eta, gradient = self._step(lambda: self._runtime.gradient(x, y), hyperparameters.eta)  # noqa: B023
            with torch.no_grad():
                torch._foreach_add_(self._weights, gradient, alpha=-eta)
            self.last = eta

    @abstractmethod
    def _step(self, gradient: Callable[[], Gradient], eta: float) -> tuple[float, Gradient]:
        """The step size, and the batch's gradient at the current weights; `eta` is the round's."""


class DeltaSGD(AdaptiveSGD):
    """η_k = min(γ‖x_k - x_{k-1}‖ / (2‖g_k - g_{k-1}‖), √(1 + δθ_{k-1})·η_{k-1}), θ_k = η_k/η_{k-1}, θ_0 = 1.

    Both gradients are of the same batch, as in the authors' code, so each step computes two.
    """

    gradients = 2

    def __init__(self, config: OptimiserConfig, runtime: TaskRuntime, last: float | None = None) -> None:
        super().__init__(config, runtime, last)
        self._previous: Gradient | None = None  # x_{k-1}
        self._eta, self._theta = math.nan, 1.0

    def _step(self, gradient: Callable[[], Gradient], eta: float) -> tuple[float, Gradient]:
        if self._previous is None:
            now, self._eta = gradient(), eta
        else:
            before = self._at(self._previous, gradient)
            now = gradient()
            growth = math.sqrt(1 + self._config.delta * self._theta) * self._eta
            moved, turned = _distance(self._weights, self._previous), _distance(now, before)
            # No difference says nothing of the curvature: η then grows as far as it may.
            curvature = self._config.gamma * moved / (2 * turned) if turned else math.inf
            new = growth if growth < curvature else curvature  # also where the weights are not numbers
            self._theta, self._eta = new / self._eta, new
        self._previous = _copy(self._weights)
        return self._eta, now

    def _at(self, weights: Gradient, gradient: Callable[[], Gradient]) -> Gradient:
        """The batch's gradient at other weights, which leaves no trace: neither in the running statistics
        nor in the random stream, so that dropout leaves out the same in both gradients."""
        current, buffers = _copy(self._weights), tuple(self._runtime.module.buffers())
        statistics, randomness = _copy(buffers), torch.default_generator.get_state()
        with torch.no_grad():
            torch._foreach_copy_(self._weights, weights)
        result = gradient()
        with torch.no_grad():
            torch._foreach_copy_(self._weights, current)
            for buffer, value in zip(buffers, statistics, strict=True):
                buffer.copy_(value)
        torch.default_generator.set_state(randomness)
        return result


class DoG(AdaptiveSGD):
    """η_k = c·max_{i≤k} ‖x_i - x_0‖ / √(Σ_{i≤k} ‖g_i‖² + ε).

    The first distance is r·(1 + ‖x_0‖), or, in later rounds, what makes the first step as long as the last.
    """

    EPSILON = 1e-8

    def __init__(self, config: OptimiserConfig, runtime: TaskRuntime, last: float | None = None) -> None:
        super().__init__(config, runtime, last)
        self._start: Gradient | None = None  # x_0
        self._farthest, self._squares = 0.0, self.EPSILON

    def _step(self, gradient: Callable[[], Gradient], eta: float) -> tuple[float, Gradient]:
        now = gradient()
        self._squares += _norm(now) ** 2
        if self._start is None:
            self._start = _copy(self._weights)
            self._farthest = self._config.first_distance * (1 + _norm(self._weights))
            if self.last is not None:
                self._farthest = max(self.last / eta * math.sqrt(self._squares), self._farthest)
        else:
            self._farthest = max(_distance(self._weights, self._start), self._farthest)
        return eta * self._farthest / math.sqrt(self._squares), now


KINDS: dict[str, type[AdaptiveSGD]] = {"delta-sgd": DeltaSGD, "dog": DoG}


def _copy(tensors: Sequence[Tensor]) -> Gradient:
    return tuple(tensor.detach().clone() for tensor in tensors)


def _norm(tensors: Sequence[Tensor]) -> float:
    """The Euclidean norm of all tensors as one vector."""
    with torch.no_grad():
        return float(torch.stack(torch._foreach_norm(tuple(tensors))).norm())


def _distance(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    with torch.no_grad():
        return _norm(torch._foreach_sub(tuple(left), tuple(right)))
