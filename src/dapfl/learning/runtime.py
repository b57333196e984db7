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
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning import device
from dapfl.learning.data import Dataset
from dapfl.learning.inputs import scale_inputs
from dapfl.learning.layout import Layout, Weights
from dapfl.learning.tasks import Task
from dapfl.randomness import entropy

CACHE_BYTES = 64 << 20
_ONE_LOGIT = (
    " To keep a single logit, say classes=0, make the labels floats of the shape of the outputs, and take "
    "torch.nn.BCEWithLogitsLoss() as the loss."
)

Samples = tuple[Tensor, Tensor]
"""Inputs as the model takes them, and labels."""


class SampleCache:
    """The tensors of the learners that trained last, as many as fit: a process serves its clients in turn."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._bytes = 0
        self._samples: OrderedDict[object, Samples] = OrderedDict()

    def get(self, owner: object, make: Callable[[], Samples]) -> Samples:
        """The owner's samples, made if they are absent; those used last always stay."""
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


Epoch = Callable[[Tensor, Tensor, Tensor, list[int], Hyperparameters], None]


@dataclass(frozen=True)
class TaskRuntime:
    """What all learners of a task share: one module, its layout and weights, the data, a cache.

    `epoch(inputs, labels, order, lengths, hyperparameters)` takes a step of SGD on each batch of the
    samples, in the order given, and moves the module's weights.
    """

    task: Task
    module: nn.Module
    layout: Layout
    weights: Weights  # of the module
    data: Dataset
    epoch: Epoch
    trained: tuple[Tensor, ...]  # the weights that have gradients
    cache: SampleCache = field(default_factory=SampleCache)

    def gradient(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """The gradient of a batch's loss at the module's weights, by autograd."""
        return torch.autograd.grad(self.task.loss(self.module(inputs), labels), self.trained)


@runtime_checkable
class ClosedForm(Protocol):
    """A model that does SGD on the cross-entropy by its own formula, faster than autograd."""

    def cross_entropy_epoch(
        self,
        inputs: Tensor,
        labels: Tensor,
        order: Tensor,
        lengths: list[int],
        hyperparameters: Hyperparameters,
    ) -> None:
        """Moves the weights by -η times the gradient of each batch's mean cross-entropy, in turn."""


def task_runtime(task: Task) -> TaskRuntime:
    """The runtime of a task in this process, made once; TaskError if model, data and loss do not fit.

    From here on, torch computes on one thread in this process: models this small gain nothing
    from more, worker processes fill the cores, and one order of summation makes results equal bit
    for bit wherever a client trains.
    """
    return _runtime_on(device.current(), task)


@cache
def _runtime_on(place: torch.device, task: Task) -> TaskRuntime:
    torch.set_num_threads(1)
    module = build_model(task, seed=0)
    data = _load_data(task)
    epoch: Epoch
    scaled = takes_floats(data)
    if scaled:
        scale_inputs(module, data.train_images)
    module.to(place)
    trained = tuple(weight for weight in module.parameters() if weight.requires_grad)
    if (
        isinstance(module, ClosedForm)
        and place.type == "cpu"
        and task.loss is cross_entropy
        and task.optimizer is None
        and not scaled
    ):
        epoch = module.cross_entropy_epoch
    else:
        epoch = partial(_autograd_epoch, task, module, trained)
    layout = Layout.of(module)
    runtime = TaskRuntime(task, module, layout, Weights(layout, module), data, epoch, trained)
    _try_out(runtime)
    return runtime


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


def takes_floats(data: Dataset) -> bool:
    """Whether inputs are numbers of any scale: not bytes, which become 0 to 1, nor the numbers of things."""
    return bool(np.issubdtype(data.train_images.dtype, np.floating))


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Starts torch's global random stream (initialisation, dropout) at the seed; restores it afterwards."""
    generator = torch.default_generator
    before = generator.get_state()
    if device.current().type == "cpu":
        generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)  # of every device
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


def as_labels(labels: NDArray[Any]) -> Tensor:
    """Labels as a loss takes them: classes as int64, numbers as float32."""
    whole = np.issubdtype(labels.dtype, np.integer)
    return torch.from_numpy(labels.astype(np.int64 if whole else np.float32))


def _autograd_epoch(
    task: Task,
    module: nn.Module,
    weights: tuple[Tensor, ...],
    inputs: Tensor,
    labels: Tensor,
    order: Tensor,
    lengths: list[int],
    hyperparameters: Hyperparameters,
) -> None:
    """Eq. 2 on each batch."""
    for batch in torch.split(order, lengths):
        gradients = torch.autograd.grad(task.loss(module(inputs[batch]), labels[batch]), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-hyperparameters.eta)


def optimizer_epoch(runtime: TaskRuntime, eta: float) -> Epoch:
    """Epochs by the task's own optimiser, whose memory lasts as long as what is returned."""
    task, module = runtime.task, runtime.module
    assert task.optimizer is not None, "only a task with an optimiser of its own has such epochs"
    optimizer = task.optimizer([weight for weight in module.parameters() if weight.requires_grad], eta)

    def epoch(inputs: Tensor, labels: Tensor, order: Tensor, lengths: list[int], _: Hyperparameters) -> None:
        for batch in torch.split(order, lengths):
            optimizer.zero_grad()
            task.loss(module(inputs[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return epoch


def _load_data(task: Task) -> Dataset:
    try:
        data = task.load_data()
    except DataError:
        raise
    except Exception as error:
        raise TaskError(f"The data of task {task.name} cannot be loaded: {_words(error)}.") from error
    if not isinstance(data, Dataset):
        raise TaskError(f"Task {task.name} loads a {type(data).__name__}, not a dapfl.Dataset.")
    for part, inputs, labels in (
        ("training", data.train_images, data.train_labels),
        ("test", data.test_images, data.test_labels),
    ):
        for what, array in (("samples", inputs), ("labels", labels)):
            if not isinstance(array, np.ndarray):
                raise TaskError(
                    f"The {part} {what} of task {task.name} are a {type(array).__name__}: make them a NumPy "
                    "array with one sample in each row, by numpy.array(...)."
                )
        if len(inputs) != len(labels) or not len(labels):
            raise TaskError(
                f"The {part} data of {task.name} are {len(inputs):,} samples and {len(labels):,} labels: "
                "there must be as many labels as samples, and at least one."
            )
        if labels.ndim > 2:
            raise TaskError(f"A sample of task {task.name} must have one label or a row of them.")
        if not data.classes:
            _check_numbers(task, part, labels)
        elif not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= data.classes:
            found = f"{labels.min()} to {labels.max()}" if labels.dtype.kind in "iu" else labels.dtype
            raise TaskError(
                f"The {part} labels of task {task.name} must be whole numbers from 0 to {data.classes - 1}, "
                f"since classes={data.classes}; they are {found}."
            )
    _check_natural(task, data)
    if len(bad := rows_without_meaning(data.test_images)):
        raise TaskError(
            f"Task {task.name} has NaN or infinity in {len(bad):,} of its {len(data.test_images):,} test "
            f"samples, the first in row {bad[0]}: clean or remove them."
        )
    return data


def rows_without_meaning(samples: NDArray[Any]) -> NDArray[np.intp]:
    """The numbers of the samples that hold NaN or infinity."""
    if not np.issubdtype(samples.dtype, np.floating):
        return np.empty(0, np.intp)
    parts = (samples[start : start + 4096] for start in range(0, len(samples), 4096))  # it may be mapped
    return np.flatnonzero(
        ~np.concatenate([np.isfinite(part.reshape(len(part), -1)).all(1) for part in parts])
    )


def _check_numbers(task: Task, part: str, labels: NDArray[Any]) -> None:
    if not np.issubdtype(labels.dtype, np.floating) or not np.isfinite(labels).all():
        raise TaskError(
            f"The {part} labels of task {task.name} must be finite floats, since its data have no classes "
            "(for classes, say how many: Dataset(..., classes=10))."
        )


def _check_natural(task: Task, data: Dataset) -> None:
    natural = data.natural
    if natural is None:
        return
    for owners, labels in ((natural.train, data.train_labels), (natural.test, data.test_labels)):
        if len(owners) != len(labels) or owners.min() < -1 or owners.max() >= len(natural.names):
            raise TaskError(
                f"The natural clients of task {task.name} must be given for every sample: "
                f"a number from 0 to {len(natural.names) - 1}, or -1 for nobody's."
            )
    if not np.isin(np.arange(len(natural.names)), natural.train).all():
        raise TaskError(f"Every natural client of task {task.name} needs a training sample.")


def _try_out(runtime: TaskRuntime) -> None:
    """Scores two samples, so that a model, data and loss that do not fit fail here, with a message."""
    task, data = runtime.task, runtime.data
    runtime.module.eval()
    with torch.inference_mode():
        try:
            outputs = runtime.module(device.moved(as_inputs(data.train_images[:2].copy())))
        except Exception as error:
            raise TaskError(f"The model of task {task.name} fails on its data: {_words(error)}.") from error
        places = data.train_labels.shape[1:]
        wanted = (2, data.classes, *places) if data.classes else (2, *places)
        if outputs.shape != wanted:
            meaning = "a logit for each class" if data.classes else "like the labels"
            single = data.classes == 2 and tuple(outputs.shape) in ((2,), (2, 1))
            instead = _ONE_LOGIT if single else ""
            raise TaskError(
                f"The model of task {task.name} gives outputs of shape {tuple(outputs.shape)} for two "
                f"samples: it must be {wanted}, {meaning}.{instead}"
            )
        try:
            loss = task.loss(outputs, device.moved(as_labels(data.train_labels[:2])))
        except Exception as error:
            raise TaskError(f"The loss of task {task.name} fails on its data: {_words(error)}.") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise TaskError(f"The loss of task {task.name} must be a tensor of one number, the mean of a batch.")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".")
