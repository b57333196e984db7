"""A model as Flower carries it, an `ArrayRecord`, and as the protocol does: one flat float32 vector."""

import math

import msgspec
import numpy as np
from flwr.app import Array, ArrayRecord

from dapfl.arrays import Vector
from dapfl.crypto.packing import Segment
from dapfl.errors import ConfigError, ProtocolError

# What is small costs little to be sent as numbers of any size (`Segment.wide`), and in a model on raw data
# it needs to be: intercepts, running variances, the weights of linear models.
MOST_WIDE = 4096
ORDINARY = 32.0  # an array that is beyond it at the start will not stay within what codecs take for weights


class ArraySpec(msgspec.Struct, frozen=True):
    """One array of a model. An array that is not of floats keeps its first value, `constant`; one that is
    `wide` may have numbers of any size."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    constant: bytes | None = None
    wide: bool = False

    @property
    def size(self) -> int:
        """How many numbers of it are averaged."""
        return math.prod(self.shape) if self.constant is None else 0


class ModelArrays(msgspec.Struct, frozen=True):
    """The arrays of a model in their order.

    Integers and booleans, such as the counters of batch normalisation, have no meaningful average: they are
    not sent back, and stay as they were in the initial model.
    """

    specs: tuple[ArraySpec, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> "ModelArrays":
        """The arrays of a federation's initial model."""
        specs = []
        for name, array in arrays.items():
            values = _numpy(name, array)
            averaged = values.dtype.kind == "f"
            if not averaged and values.dtype.kind not in "iub":
                # NumPy's files know no bfloat16: JAX's arrive as two bytes without a type. Taken for
                # a counter, such an array would never learn.
                raise ConfigError(
                    f"The array '{name}' has the type {values.dtype}, which has no average here. Hand over "
                    "float32, float64 or float16 (bfloat16 arrives as bytes without a type)."
                )
            constant = None if averaged else np.ascontiguousarray(values).tobytes()
            wide = averaged and (
                values.size <= MOST_WIDE or values.ndim == 1 or not (np.abs(values) <= ORDINARY).all()
            )
            specs.append(ArraySpec(name, values.dtype.str, values.shape, constant, wide))
        if not any(spec.size for spec in specs):
            raise ConfigError(
                "The initial arrays hold no floating-point numbers: there is nothing to average."
            )
        return cls(tuple(specs))

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Where each averaged array lies in the vector."""
        segments: list[Segment] = []
        start = 0
        for spec in self.specs:
            if spec.constant is None:
                nonnegative = spec.name.endswith("running_var")
                stop = start + spec.size
                segments.append(Segment(spec.name, start, stop, nonnegative=nonnegative, wide=spec.wide))
                start = stop
        return tuple(segments)

    def vector(self, arrays: ArrayRecord) -> Vector:
        """The averaged numbers of a model; ProtocolError `other-model` if it is not this federation's."""
        if list(arrays) != [spec.name for spec in self.specs]:
            missing = [spec.name for spec in self.specs if spec.name not in arrays]
            extra = [name for name in arrays if name not in {spec.name for spec in self.specs}]
            raise ProtocolError(
                "other-model",
                f"the arrays are not those of this federation's model (missing: {_few(missing)}; "
                f"unknown: {_few(extra)})",
            )
        parts: list[Vector] = []
        for spec in self.specs:
            values = _numpy(spec.name, arrays[spec.name])
            if values.shape != spec.shape:
                raise ProtocolError(
                    "other-model",
                    f"the array '{spec.name}' has the shape {values.shape}; in this federation's model it "
                    f"is {spec.shape}",
                )
            if spec.constant is None:
                with np.errstate(over="ignore"):  # what is too large is infinite then, and refused as such
                    parts.append(values.astype(np.float32).ravel())
        return np.concatenate(parts)

    def arrays(self, vector: Vector) -> ArrayRecord:
        """A model as the user's functions take it, in the types of the initial one."""
        arrays: dict[str, Array] = {}
        start = 0
        for spec in self.specs:
            if spec.constant is None:
                values = vector[start : start + spec.size].astype(spec.dtype)
                start += spec.size
            else:
                values = np.frombuffer(spec.constant, spec.dtype).copy()
            arrays[spec.name] = Array(values.reshape(spec.shape))
        return ArrayRecord(arrays)


def _numpy(name: str, array: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    try:
        values: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = array.numpy()
    except TypeError:
        raise ProtocolError("other-model", f"the array '{name}' is not stored as a NumPy array") from None
    return values


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") if names else "none"
