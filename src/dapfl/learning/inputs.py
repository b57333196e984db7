"""Inputs of any scale: a model sees them shifted and scaled to about one.

Gradient descent on pixels from 0 to 255, or on a table with ages beside incomes, is slow or breaks down at
any single learning rate: weights and biases would need rates that differ by orders of magnitude. So a model
that takes floats gets two buffers that change its inputs, x·2^-exponent - shift. CS sets them in W(0), from
its test set; they travel in the model, and no client changes them. Inputs of an ordinary scale stay as they
are.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

SHIFT, EXPONENT = "input_shift", "input_exponent"
SMALLEST, LARGEST = 0.25, 8.0  # how far from their mean the values of an ordinary column reach
FARTHEST = 4.0  # how far from zero, in its own scale, the mean of an ordinary column is
LARGEST_SHIFT = 1000.0  # of a model's values, codecs take ±1024
SHIFT_STEPS = 64  # in one unit: such numbers pass through codecs and averages unchanged
MOST_COLUMNS = 4096


def scale_inputs(module: nn.Module, samples: NDArray[Any]) -> nn.Module:
    """Gives a module the two buffers, which change nothing yet. `samples` says what its inputs look like.

    A table has a shift and a scale for each column; anything else has one of each.
    """
    shape = samples.shape[1:] if samples.ndim == 2 and samples.shape[1] <= MOST_COLUMNS else ()
    return attach(module, np.zeros(shape, np.float32), np.zeros(shape, np.float32))


def attach(module: nn.Module, shift: NDArray[np.float32], exponent: NDArray[np.float32]) -> nn.Module:
    """Gives a module these two buffers, and changes its inputs by them from now on.

    >>> doubled = attach(nn.Identity(), np.float32(1.0), np.float32(-1.0))
    >>> doubled(torch.tensor([3.0]))
    tensor([5.])
    """
    module.register_buffer(SHIFT, torch.tensor(shift, dtype=torch.float32))
    module.register_buffer(EXPONENT, torch.tensor(exponent, dtype=torch.float32))

    def change(owner: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        scaled = inputs[0] * torch.exp2(-owner.get_buffer(EXPONENT)) - owner.get_buffer(SHIFT)
        return (scaled, *inputs[1:])

    module.register_forward_pre_hook(change)
    return module


def measure(module: nn.Module, samples: NDArray[Any]) -> None:
    """Sets the two buffers of a module by what these samples look like."""
    if not hasattr(module, EXPONENT):
        return
    exponent, shift = module.get_buffer(EXPONENT), module.get_buffer(SHIFT)
    values = np.asarray(samples, np.float64)
    values = values if exponent.ndim else values.reshape(-1, 1)
    mean, deviation = values.mean(0), values.std(0)
    reach = np.abs(values - mean).max(0)
    varying = reach > 0
    middle = float(np.median(reach[varying])) if varying.any() else 1.0
    # All columns together are brought to an ordinary scale, and then those that still differ, each by itself.
    common = 0.0 if SMALLEST <= middle <= LARGEST else np.rint(np.log2(middle))
    relative = reach * 2.0**-common
    unusual = varying & ((relative < SMALLEST / 2) | (relative > LARGEST))
    # A column that is nearly always the same deviates little from it: its rare values must not become huge.
    size = np.where(relative < SMALLEST, reach, deviation)
    own = np.rint(np.log2(np.where(varying, size, 1.0)))
    scale = np.where(unusual, own, common)
    # A year has a mean far from zero and a small deviation: its shift must fit into a message all the same.
    scale = np.maximum(scale, np.ceil(np.log2(np.maximum(np.abs(mean), 1e-300) / LARGEST_SHIFT))) + 0.0
    centre = np.rint(mean * 2.0**-scale * SHIFT_STEPS) / SHIFT_STEPS
    move = np.where(np.abs(centre) > FARTHEST, centre, 0.0)
    exponent.copy_(torch.tensor(scale.reshape(tuple(exponent.shape))))
    shift.copy_(torch.tensor(move.reshape(tuple(shift.shape))))


def without_idle_scaling(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of a model, without the two buffers if they change nothing."""
    if any(np.any(arrays[name] != 0) for name in (SHIFT, EXPONENT) if name in arrays):
        return arrays
    return {name: array for name, array in arrays.items() if name not in (SHIFT, EXPONENT)}
