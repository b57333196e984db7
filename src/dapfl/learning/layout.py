"""One flat, ordered, typed view of a model's weights and buffers.

Aggregation, encryption, checkpoints and messages all carry the same thing: a one-dimensional
float32 vector. A `Layout` says which tensor lies where in it, and moves it in and out of a module.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from dapfl.arrays import Vector
from dapfl.errors import TaskError

Kind = Literal["weight", "buffer"]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model and its place [start, stop) in the flat vector."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """All tensors of a model that a federation averages: first its weights, then its buffers.

    Buffers are what the model measures instead of learning, such as the running statistics of
    batch normalisation. Counters (integer buffers, `num_batches_tracked`) have no meaningful
    average and are left out.

    >>> layout = Layout.of(nn.Linear(784, 10))
    >>> layout.size, [(tensor.name, tensor.start, tensor.stop) for tensor in layout.tensors]
    (7850, [('weight', 0, 7840), ('bias', 7840, 7850)])
    """

    tensors: tuple[TensorSpec, ...]

    @cached_property
    def size(self) -> int:
        """How many numbers the flat vector holds."""
        return self.tensors[-1].stop if self.tensors else 0

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """The layout of a module, in the order in which it registered its tensors."""
        specs: list[TensorSpec] = []
        start = 0
        for name, kind, tensor in _tensors(module):
            stop = start + tensor.numel()
            specs.append(TensorSpec(name, tuple(tensor.shape), kind, start, stop))
            start = stop
        return cls(tuple(specs))

    def flatten(self, module: nn.Module) -> Vector:
        """The module's weights and buffers as a new vector."""
        return Weights(self, module).flatten()

    def assign(self, module: nn.Module, vector: Vector) -> None:
        """Copies a vector into the module's weights and buffers."""
        Weights(self, module).assign(vector)


class Weights:
    """The weights and buffers of one module, found once, as flat vectors."""

    def __init__(self, layout: Layout, module: nn.Module) -> None:
        tensors = [tensor for _, _, tensor in _tensors(module)]
        self._size = layout.size
        self._places = tuple(zip(layout.tensors, tensors, strict=True))

    def flatten(self) -> Vector:
        """A copy of them all."""
        vector = np.empty(self._size, np.float32)
        target = torch.from_numpy(vector)
        for spec, tensor in self._places:
            target[spec.start : spec.stop].view(spec.shape).copy_(tensor.detach())
        return vector

    def assign(self, vector: Vector) -> None:
        """Copies a vector into them."""
        if vector.shape != (self._size,):
            raise TaskError(
                f"A vector of shape {vector.shape} does not fit a model of {self._size:,} weights: "
                "both must belong to the same task."
            )
        with torch.no_grad():
            for spec, tensor in self._places:
                part = vector[spec.start : spec.stop]  # torch takes none that is read-only
                source = torch.from_numpy(part if part.flags.writeable else part.copy())
                tensor.copy_(source.view(spec.shape))
                if spec.name.endswith("running_var"):
                    # Averages of rounded numbers can bring a variance near zero just below it,
                    # and its square root would be NaN.
                    tensor.clamp_(min=0)


def _tensors(module: nn.Module) -> list[tuple[str, Kind, Tensor]]:
    """The tensors that travel, in order. A weight that two layers share appears once."""
    found: list[tuple[str, Kind, Tensor]] = []
    found += [(name, "weight", tensor) for name, tensor in module.named_parameters()]
    found += [(name, "buffer", tensor) for name, tensor in module.named_buffers()]
    return [(name, kind, tensor) for name, kind, tensor in found if tensor.is_floating_point()]
