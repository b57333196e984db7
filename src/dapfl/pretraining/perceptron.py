"""Networks of the synthetic federations: all clients at once, as batches of matrix products.

A network is only a shape here. Its weights are a list of matrices, one for each layer, with the bias as the
last row; with a leading axis of clients, or without.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dapfl.arrays import Floats

Weights = list[Floats]
Activation = Literal["relu", "tanh", "sigmoid"]
_Tape = list[tuple[Floats, Floats | None, Floats | None, Floats | None]]
"""Of each layer: its inputs, and of a hidden one the normalised sums, their deviation and the outputs."""


@dataclass(frozen=True)
class Perceptron:
    """Fully connected layers; `normalised` puts a layer normalisation before each activation."""

    widths: tuple[int, ...]  # of the inputs, the hidden layers and the outputs
    activation: Activation = "relu"
    normalised: bool = False

    def initial(self, rng: np.random.Generator) -> Weights:
        """W(0): uniform within 1/√inputs, as PyTorch does."""
        return [
            rng.uniform(-(n**-0.5), n**-0.5, (n + 1, m)).astype(np.float32)
            for n, m in zip(self.widths, self.widths[1:], strict=False)
        ]

    def logits(self, weights: Weights, x: Floats) -> Floats:
        """The outputs for rows of inputs."""
        return self._forward(weights, x)[0]

    def descend(self, weights: Weights, x: Floats, targets: Floats, shares: Floats) -> None:
        """A step of SGD on the cross-entropy, in place; a row counts as much as its share, η included."""
        logits, tape = self._forward(weights, x)
        error = softmax(logits)
        error -= targets
        error *= shares
        for layer in range(len(weights) - 1, -1, -1):
            inputs, normal, deviation, outputs = tape[layer]
            if outputs is not None:  # of a hidden layer: back through its activation and normalisation
                error *= self._slope(outputs)
                if normal is not None and deviation is not None:
                    error -= error.mean(-1, keepdims=True) + normal * (error * normal).mean(-1, keepdims=True)
                    error /= deviation
            below = error @ weights[layer][..., :-1, :].swapaxes(-1, -2) if layer else None
            weights[layer][..., :-1, :] -= inputs.swapaxes(-1, -2) @ error
            weights[layer][..., -1, :] -= error.sum(-2)
            if below is not None:
                error = below

    def _forward(self, weights: Weights, x: Floats) -> tuple[Floats, _Tape]:
        tape: _Tape = []
        for layer, each in enumerate(weights):
            inputs = x
            x = x @ each[..., :-1, :]
            x += each[..., -1:, :]
            if layer == len(weights) - 1:
                tape.append((inputs, None, None, None))
                break
            normal: Floats | None = None
            deviation: Floats | None = None
            if self.normalised:
                x -= x.mean(-1, keepdims=True)
                deviation = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
                normal = x = x / deviation
            x = self._activate(x)
            tape.append((inputs, normal, deviation, x))
        return x, tape

    def _activate(self, x: Floats) -> Floats:
        if self.activation == "relu":
            return np.maximum(x, 0)
        if self.activation == "tanh":
            return np.tanh(x)
        return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), np.float32)

    def _slope(self, outputs: Floats) -> Floats:
        """The activation's derivative, from its value."""
        if self.activation == "relu":
            return np.asarray(outputs > 0, np.float32)
        if self.activation == "tanh":
            return 1 - outputs * outputs
        return outputs * (1 - outputs)


def softmax(logits: Floats) -> Floats:
    """Probabilities, in place."""
    logits -= logits.max(-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(-1, keepdims=True)
    return logits


def cross_entropy(logits: Floats, labels: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Floats:
    """The loss of each row."""
    top = logits.max(-1)
    own = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return np.asarray(np.log(np.exp(logits - top[..., None]).sum(-1)) + top - own, np.float32)
