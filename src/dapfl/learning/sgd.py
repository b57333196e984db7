"""Local training (Eq. 2) and evaluation of models given as flat weight vectors.

A client of a simulated federation is a `Learner`: little more than the indices of its samples.
All learners of a process share one module and one memory-mapped data set per task.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dapfl.learning.data import Dataset
from dapfl.learning.layout import Layout
from dapfl.learning.metrics import Metrics, metrics_of
from dapfl.learning.tasks import Task
from dapfl.randomness import entropy

Vector = NDArray[np.float32]
EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Workshop:
    """What all learners of a task share in one process; `step` trains the module on one batch."""

    task: Task
    module: nn.Module
    layout: Layout
    data: Dataset
    step: Callable[[Tensor, Tensor, float], None]


@runtime_checkable
class ClosedForm(Protocol):
    """A model that takes a step of SGD on the cross-entropy by its own formula, faster than autograd."""

    def cross_entropy_step(self, inputs: Tensor, labels: Tensor, eta: float) -> None:
        """Moves the weights by -eta times the gradient of the batch's mean cross-entropy."""


@cache
def workshop(task: Task) -> Workshop:
    """The one workshop of a task in this process.

    From here on, torch computes on one thread in this process: models this small gain nothing
    from more, worker processes fill the cores, and one order of summation makes results equal bit
    for bit wherever a client trains.
    """
    torch.set_num_threads(1)
    module = _build(task, seed=0)
    if isinstance(module, ClosedForm) and task.loss is cross_entropy:
        step = module.cross_entropy_step
    else:
        weights = tuple(weight for weight in module.parameters() if weight.requires_grad)
        step = partial(_autograd_step, task, module, weights)
    return Workshop(task, module, Layout.of(module), task.load_data(), step)


def initial_weights(task: Task, seed: int) -> Vector:
    """W(0): the model's own initialisation, decided by the seed alone."""
    module = _build(task, seed)
    return Layout.of(module).flatten(module)


def batch_lengths(samples: int, batch_size: int) -> list[int]:
    """The lengths of an epoch's batches.

    >>> batch_lengths(100, 32), batch_lengths(97, 32)
    ([32, 32, 32, 4], [32, 32, 33])
    """
    full, rest = divmod(samples, batch_size)
    lengths = [batch_size] * full
    if rest == 1 and full:
        lengths[-1] += 1
    elif rest:
        lengths.append(rest)
    return lengths


class Learner:
    """One client's learning: its samples D_i, and what it does with a model it is given.

    >>> from dapfl.randomness import stream
    >>> points = stream(1, "points").normal(size=(400, 3)).astype(np.float32)
    >>> sides = (points[:, 0] > 0).astype(np.int64)
    >>> task = Task("sides", lambda: nn.Linear(3, 2), lambda: Dataset(points, sides, points, sides, classes=2))
    >>> learner = Learner(task, np.arange(100))
    >>> weights = initial_weights(task, seed=1)
    >>> trained = learner.train(weights, eta=0.5, alpha=10, batch_size=32, rng=stream(1, "sgd", 1, 0))
    >>> learner.evaluate(trained).accuracy > 0.9
    True
    """

    def __init__(self, task: Task, indices: NDArray[np.integer[Any]]) -> None:
        if len(indices) == 0:
            raise ValueError("A learner needs at least one sample.")
        self._shop = workshop(task)
        self._indices = np.asarray(indices, np.int32)

    @property
    def samples(self) -> int:
        """|D_i|."""
        return len(self._indices)

    @property
    def layout(self) -> Layout:
        """Which tensor lies where in the weight vectors."""
        return self._shop.layout

    def evaluate(self, weights: Vector) -> Metrics:
        """The state s_i(t) of Eq. 20: loss, accuracy and macro-F1 of the weights on D_i."""
        data = self._shop.data
        return _evaluate(self._shop, weights, data.train_images, data.train_labels, self._indices)

    def train(
        self, weights: Vector, eta: float, alpha: int, batch_size: int, rng: np.random.Generator
    ) -> Vector:
        """Eq. 2: `alpha` epochs of plain SGD over D_i at the learning rate `eta`; ŵ_i(t).

        Samples are shuffled anew in each epoch by `rng`. The last batch of an epoch may be short;
        a single sample left over joins the batch before it, since batch normalisation cannot learn
        from one. The same arguments give the same bits in any process of a machine.
        """
        shop = self._shop
        inputs = _inputs(shop.data.train_images[self._indices])
        labels = _labels(shop.data.train_labels[self._indices])
        lengths = batch_lengths(self.samples, batch_size)
        shop.layout.assign(shop.module, weights)
        shop.module.train()
        with _torch_seeded(int(rng.integers(2**63))):
            for _ in range(alpha):
                order = torch.from_numpy(rng.permutation(self.samples))
                batches = torch.split(inputs.index_select(0, order), lengths)
                targets = torch.split(labels.index_select(0, order), lengths)
                for batch, target in zip(batches, targets, strict=True):
                    shop.step(batch, target, eta)
        return shop.layout.flatten(shop.module)


class Evaluator:
    """Scores global models on the task's whole test set."""

    def __init__(self, task: Task) -> None:
        self._shop = workshop(task)

    @property
    def layout(self) -> Layout:
        """Which tensor lies where in the weight vectors."""
        return self._shop.layout

    def evaluate(self, weights: Vector) -> Metrics:
        """Loss, accuracy and macro-F1 of the weights on the test set."""
        data = self._shop.data
        return _evaluate(self._shop, weights, data.test_images, data.test_labels, None)


def _build(task: Task, seed: int) -> nn.Module:
    """A new module, initialised by the seed; convolutions run faster with their channels last."""
    with _torch_seeded(entropy(seed, "weights") % 2**63):
        return task.build_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


@contextmanager
def _torch_seeded(seed: int) -> Iterator[None]:
    """Starts torch's global random stream (initialisation, dropout) at the seed, and puts it back after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _inputs(samples: NDArray[Any]) -> Tensor:
    """Samples as the model takes them: bytes become float32 in [0, 1]."""
    if samples.dtype == np.uint8:
        return torch.from_numpy(samples).float().div_(255)
    return torch.from_numpy(samples)


def _labels(labels: NDArray[np.integer[Any]]) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def _autograd_step(
    task: Task, module: nn.Module, weights: tuple[Tensor, ...], inputs: Tensor, labels: Tensor, eta: float
) -> None:
    """Eq. 2 on one batch."""
    gradients = torch.autograd.grad(task.loss(module(inputs), labels), weights)
    with torch.no_grad():
        torch._foreach_add_(weights, gradients, alpha=-eta)


def _evaluate(
    shop: Workshop,
    weights: Vector,
    inputs: NDArray[Any],
    labels: NDArray[np.integer[Any]],
    indices: NDArray[np.int32] | None,
) -> Metrics:
    """Metrics on the samples at the indices, or on all, in batches small enough for the CPU's caches."""
    shop.layout.assign(shop.module, weights)
    shop.module.eval()
    classes = shop.data.classes
    total_loss = 0.0
    confusion = np.zeros(classes * classes, np.int64)
    count = len(labels) if indices is None else len(indices)
    with torch.inference_mode():
        for start in range(0, count, EVALUATION_BATCH):
            batch = slice(start, min(start + EVALUATION_BATCH, count))
            chosen = np.arange(batch.start, batch.stop) if indices is None else indices[batch]
            truth = _labels(labels[chosen])
            outputs = shop.module(_inputs(inputs[chosen]))
            total_loss += float(shop.task.loss(outputs, truth)) * len(truth)
            cells = truth * classes + outputs.argmax(1)
            confusion += np.bincount(cells.numpy(), minlength=classes * classes)
    return metrics_of(total_loss, confusion.reshape(classes, classes))
