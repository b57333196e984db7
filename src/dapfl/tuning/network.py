"""Small fully connected networks in plain numpy, with their gradients written out.

An agent's networks have a few thousand weights and see a few dozen rows: an automatic-differentiation
framework would spend most of its time on bookkeeping (this is about three times faster than torch, and
the tests hold the gradients against it). A network here is only a shape. Its weights θ are one flat
float32 vector that the caller owns, so MainNet and TargetNet are two vectors, Eq. 28 is one line, and
saving is a copy.
"""

from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from dapfl.arrays import Floats
from dapfl.errors import PolicyError

# Fan-in limits for hidden layers, a narrow last layer: first actions near 0 and first values near 0.
LAST_LAYER_LIMIT = 3e-3


class Network:
    """A multi-layer perceptron: hidden layers with one activation, a linear last layer."""

    def __init__(self, sizes: tuple[int, ...], activation: Literal["relu", "tanh"]) -> None:
        self.sizes = sizes
        self.activation = activation
        self.shapes = list(pairwise(sizes))
        self.size = sum((fan_in + 1) * fan_out for fan_in, fan_out in self.shapes)

    def initial(self, rng: np.random.Generator) -> Floats:
        """Fresh weights θ."""
        parts = []
        for number, (fan_in, fan_out) in enumerate(self.shapes):
            limit = LAST_LAYER_LIMIT if number == len(self.shapes) - 1 else fan_in**-0.5
            parts.append(rng.uniform(-limit, limit, (fan_in + 1) * fan_out))
        return np.concatenate(parts).astype(np.float32)

    def layers(self, theta: Floats) -> list[tuple[Floats, Floats]]:
        """θ seen as (matrix, bias) of each layer, without copying."""
        views, start = [], 0
        for fan_in, fan_out in self.shapes:
            middle = start + fan_in * fan_out
            views.append((theta[start:middle].reshape(fan_in, fan_out), theta[middle : middle + fan_out]))
            start = middle + fan_out
        return views

    def __call__(self, theta: Floats, x: Floats) -> Floats:
        """The outputs for a batch of rows."""
        return self.forward(theta, x)[0]

    def forward(self, theta: Floats, x: Floats) -> tuple[Floats, list[Floats]]:
        """The outputs, and the input of every layer, which `backward` needs."""
        inputs = []
        last = len(self.shapes) - 1
        for number, (matrix, bias) in enumerate(self.layers(theta)):
            inputs.append(x)
            x = x @ matrix
            x += bias
            if number < last:
                x = np.maximum(x, 0.0, out=x) if self.activation == "relu" else np.tanh(x, out=x)
        return x, inputs

    def backward(
        self, theta: Floats, inputs: list[Floats], gradient: Floats, weights: bool = True
    ) -> tuple[Floats, Floats]:
        """From the gradient at the outputs to those at θ (left empty if not `weights`) and at the inputs."""
        theta_gradient = np.empty(self.size if weights else 0, np.float32)
        places = self.layers(theta_gradient) if weights else []
        for number, (matrix, _) in reversed(list(enumerate(self.layers(theta)))):
            x = inputs[number]
            if weights:
                np.matmul(x.T, gradient, out=places[number][0])
                gradient.sum(axis=0, out=places[number][1])
            gradient = gradient @ matrix.T
            if number > 0:  # x is the activation of the layer below
                gradient *= (x > 0) if self.activation == "relu" else 1.0 - x * x
        return theta_gradient, gradient


class SavedPair(msgspec.Struct, frozen=True, array_like=True):
    """A `NetworkPair` that has learned, between two rounds."""

    main: bytes
    target: bytes
    mean: bytes
    square: bytes
    count: int


class NetworkPair:
    """One network of MainNet (θ, trained by Adam) and its copy in TargetNet (θ').

    Until the first step θ and θ' are one array, which may be shared between agents and read-only:
    thousands of agents that start from the same weights and never learn then cost nothing each.
    """

    DECAY1, DECAY2, EPSILON = 0.9, 0.999, 1e-8  # Adam's usual constants

    def __init__(self, network: Network, rate: float, theta: Floats) -> None:
        self.network = network
        self.rate = rate
        self.load(theta)

    def load(self, theta: Floats) -> None:
        """Begin from these weights, without any memory of steps before."""
        if theta.shape != (self.network.size,):
            raise PolicyError(
                f"A network of layers {self.network.sizes} has {self.network.size} weights, not {theta.size}."
            )
        self.main = self.target = theta
        self.mean = self.square = np.zeros(0, np.float32)
        self.count = 0

    def descend(self, gradient: Floats) -> None:
        """One Adam step of θ against a gradient (Eqs 26 and 27)."""
        if not self.count:
            self.main, self.target = self.main.copy(), self.main.copy()
            self.mean, self.square = np.zeros_like(self.main), np.zeros_like(self.main)
        self.count += 1
        self.mean *= self.DECAY1
        self.mean += (1 - self.DECAY1) * gradient
        self.square *= self.DECAY2
        self.square += (1 - self.DECAY2) * gradient * gradient
        scale = np.sqrt(self.square)
        scale /= (1 - self.DECAY2**self.count) ** 0.5
        scale += self.EPSILON
        self.main -= (self.rate / (1 - self.DECAY1**self.count)) * (self.mean / scale)

    def follow(self, beta: float) -> None:
        """θ' = β·θ + (1 - β)·θ' (Eq. 28)."""
        if self.count:
            self.target += np.float32(beta) * (self.main - self.target)

    def saved_state(self) -> SavedPair | None:
        """What the steps have made; None before the first."""
        if not self.count:
            return None
        return SavedPair(
            self.main.tobytes(), self.target.tobytes(), self.mean.tobytes(), self.square.tobytes(), self.count
        )

    def restore(self, saved: SavedPair | None) -> None:
        """Go on from what `saved_state` gave."""
        if saved is None:
            return
        vectors = [np.frombuffer(x, np.float32) for x in (saved.main, saved.target, saved.mean, saved.square)]
        self.load(vectors[0])
        if any(len(each) != self.network.size for each in vectors):
            raise PolicyError("The saved state of an agent is damaged: its parts differ in length.")
        self.main, self.target, self.mean, self.square = (each.copy() for each in vectors)
        self.count = saved.count
