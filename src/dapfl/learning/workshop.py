"""What all learners of a task share in one process: the module, its layout, the data, an epoch of SGD."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dapfl.errors import DataError, TaskError
from dapfl.learning.data import Dataset
from dapfl.learning.layout import Layout, Weights
from dapfl.learning.tasks import Task
from dapfl.randomness import entropy

KEPT_BYTES = 64 << 20

Samples = tuple[Tensor, Tensor]
"""Inputs as the model takes them, and labels."""


class Kept:
    """The samples of those who used theirs last, as many as fit: a process serves its clients in turn."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._bytes = 0
        self._samples: OrderedDict[object, Samples] = OrderedDict()

    def get(self, owner: object, make: Callable[[], Samples]) -> Samples:
        """The owner's samples, made if they are not there; the last used always stay."""
        if owner in self._samples:
            self._samples.move_to_end(owner)
            return self._samples[owner]
        samples = self._samples[owner] = make()
        self._bytes += _bytes(samples)
        while self._bytes > self._limit and len(self._samples) > 1:
            self._bytes -= _bytes(self._samples.popitem(last=False)[1])
        return samples


def _bytes(samples: Samples) -> int:
    return sum(tensor.nbytes for tensor in samples)


Epoch = Callable[[Tensor, Tensor, Tensor, list[int], float], None]


@dataclass(frozen=True)
class Workshop:
    """The shared means of learning a task.

    `epoch(inputs, labels, order, lengths, eta)` takes a step of SGD on each batch of the samples, in the
    order given, and moves the module's weights.
    """

    task: Task
    module: nn.Module
    layout: Layout
    weights: Weights  # of the module
    data: Dataset
    epoch: Epoch
    kept: Kept = field(default_factory=Kept)


@runtime_checkable
class ClosedForm(Protocol):
    """A model that does SGD on the cross-entropy by its own formula, faster than autograd."""

    def cross_entropy_epoch(
        self, inputs: Tensor, labels: Tensor, order: Tensor, lengths: list[int], eta: float
    ) -> None:
        """Moves the weights by -eta times the gradient of each batch's mean cross-entropy, in turn."""


@cache
def workshop(task: Task) -> Workshop:
    """The one workshop of a task in this process; TaskError if model, data and loss do not fit together.

    From here on, torch computes on one thread in this process: models this small gain nothing
    from more, worker processes fill the cores, and one order of summation makes results equal bit
    for bit wherever a client trains.
    """
    torch.set_num_threads(1)
    module = build_model(task, seed=0)
    data = _load_data(task)
    epoch: Epoch
    if isinstance(module, ClosedForm) and task.loss is cross_entropy:
        epoch = module.cross_entropy_epoch
    else:
        weights = tuple(weight for weight in module.parameters() if weight.requires_grad)
        epoch = partial(_autograd_epoch, task, module, weights)
    layout = Layout.of(module)
    shop = Workshop(task, module, layout, Weights(layout, module), data, epoch)
    _try_out(shop)
    return shop


def build_model(task: Task, seed: int) -> nn.Module:
    """A new module of the task, initialised by the seed alone."""
    with torch_seeded(entropy(seed, "weights") % 2**63):
        try:
            module = task.build_model()
        except Exception as error:
            raise TaskError(f"The model of task {task.name} cannot be built: {_words(error)}.") from error
    if not isinstance(module, nn.Module):
        raise TaskError(f"Task {task.name} builds a {type(module).__name__}, not a torch.nn.Module.")
    # Convolutions on a CPU run about 1.5 times faster with their channels last.
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Starts torch's global random stream (initialisation, dropout) at the seed, and puts it back after."""
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def as_inputs(samples: NDArray[Any]) -> Tensor:
    """Samples as the model takes them (see `Dataset`)."""
    tensor = torch.from_numpy(samples)
    if samples.dtype == np.uint8:
        return tensor.float().div_(255)
    return tensor.float() if tensor.is_floating_point() else tensor


def as_labels(labels: NDArray[np.integer[Any]]) -> Tensor:
    """Labels as a loss takes them: int64."""
    return torch.from_numpy(labels.astype(np.int64))


def _autograd_epoch(
    task: Task,
    module: nn.Module,
    weights: tuple[Tensor, ...],
    inputs: Tensor,
    labels: Tensor,
    order: Tensor,
    lengths: list[int],
    eta: float,
) -> None:
    """Eq. 2 on each batch."""
    for batch in torch.split(order, lengths):
        gradients = torch.autograd.grad(task.loss(module(inputs[batch]), labels[batch]), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-eta)


def _load_data(task: Task) -> Dataset:
    try:
        data = task.load_data()
    except DataError:
        raise
    except Exception as error:
        raise TaskError(f"The data of task {task.name} cannot be loaded: {_words(error)}.") from error
    if not isinstance(data, Dataset):
        raise TaskError(f"Task {task.name} loads a {type(data).__name__}, not a dapfl.learning.data.Dataset.")
    for part, inputs, labels in (
        ("training", data.train_images, data.train_labels),
        ("test", data.test_images, data.test_labels),
    ):
        if len(inputs) != len(labels) or not len(labels):
            raise TaskError(
                f"The {part} data of {task.name} are {len(inputs):,} samples and {len(labels):,} labels: "
                "there must be as many of one as of the other, and at least one."
            )
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= data.classes:
            raise TaskError(
                f"The {part} labels of task {task.name} must be whole numbers from 0 to {data.classes - 1}."
            )
    return data


def _try_out(shop: Workshop) -> None:
    """Scores two samples, so that a model, data and loss that do not fit fail here and by name."""
    task, data = shop.task, shop.data
    shop.module.eval()
    with torch.inference_mode():
        try:
            outputs = shop.module(as_inputs(data.train_images[:2].copy()))
            loss = task.loss(outputs, as_labels(data.train_labels[:2]))
        except Exception as error:
            raise TaskError(f"The model of task {task.name} fails on its data: {_words(error)}.") from error
    if outputs.ndim != 2 or outputs.shape[1] != data.classes:
        raise TaskError(
            f"The model of task {task.name} gives outputs of shape {tuple(outputs.shape)} for two samples: "
            f"(2, {data.classes}) is wanted, one logit a class."
        )
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise TaskError(f"The loss of task {task.name} must be a tensor of one number, the mean of a batch.")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".")
