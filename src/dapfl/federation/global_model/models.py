"""The global model W(t): its weights, its name, and the bytes and hash that stand for it."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dapfl.arrays import Vector
from dapfl.errors import ProtocolError
from dapfl.federation.messages import digest


def no_memory() -> Vector:
    """The memory of a server step that remembers nothing."""
    return np.empty(0, np.float32)


@dataclass(frozen=True)
class GlobalModel:
    """W(t) under its name.

    `previous` is W(t-1), which the codec `compact` refers to. `memory` is what the server step carries from
    round to round (see `server_step.py`); it belongs to the model, so whoever has one has the other.
    """

    name: bytes
    weights: Vector
    previous: Vector | None = None
    memory: Vector = field(default_factory=no_memory)

    @property
    def contents(self) -> bytes:
        """Weights and memory as they travel."""
        return to_bytes(self.weights) + to_bytes(self.memory)

    @cached_property
    def commitment(self) -> bytes:
        """The hash of weights and memory, on which all honest clients agree."""
        return commitment_of(self.weights, self.memory)


def commitment_of(weights: Vector, memory: Vector | None = None) -> bytes:
    """The hash of a model's weights and of its server step's memory.

    >>> commitment_of(np.zeros(3, np.float32)).hex()[:16]
    'fb597ca38da69dc7'
    """
    return digest(b"dapfl global model", view_of(weights), b"" if memory is None else view_of(memory))


def to_bytes(weights: Vector) -> bytes:
    """Weights as they travel: little-endian float32."""
    return bytes(view_of(weights))


def view_of(weights: Vector) -> memoryview:
    """The same bytes where they are, without a copy of a large model."""
    return np.ascontiguousarray(weights, "<f4").view(np.uint8).data


def from_bytes(data: bytes, size: int) -> Vector:
    """Weights as they came; anything but `size` finite numbers is refused."""
    if len(data) != 4 * size:
        raise ProtocolError("wrong-size", f"{len(data)} bytes of weights where the model has {4 * size}")
    weights = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(weights).all():
        raise ProtocolError("not-finite", "a model with weights that are not numbers")
    weights.flags.writeable = False
    return weights
