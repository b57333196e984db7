"""Local training (Eq. 2) and evaluation of models given as flat weight vectors.

A client of a simulated federation is a `Learner`: little more than the indices of its samples.
All learners of a process share one module and one memory-mapped data set per task.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapfl.learning.layout import Layout
from dapfl.learning.metrics import Metrics, metrics_of
from dapfl.learning.tasks import Task
from dapfl.learning.workshop import (
    Samples,
    Workshop,
    as_inputs,
    as_labels,
    build_model,
    torch_seeded,
    workshop,
)

Vector = NDArray[np.float32]
EVALUATION_BATCH = 512


def initial_weights(task: Task, seed: int) -> Vector:
    """W(0): the model's own initialisation, decided by the seed alone."""
    module = build_model(task, seed)
    return Layout.of(module).flatten(module)


def batch_lengths(samples: int, batch_size: int) -> list[int]:
    """The lengths of an epoch's batches; a single sample left over joins the batch before it.

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

    >>> from dapfl.learning.data import Dataset
    >>> from dapfl.randomness import stream
    >>> points = stream(1, "points").normal(size=(400, 3)).astype(np.float32)
    >>> sides = (points[:, 0] > 0).astype(np.int64)
    >>> data = Dataset(points, sides, points, sides, classes=2)
    >>> task = Task("sides", lambda: torch.nn.Linear(3, 2), lambda: data)
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
        return _evaluate(self._shop, weights, *self._samples(), map)

    def _samples(self) -> Samples:
        """D_i as tensors."""
        data, mine = self._shop.data, self._indices
        return self._shop.kept.get(
            self, lambda: (as_inputs(data.train_images[mine]), as_labels(data.train_labels[mine]))
        )

    def train(
        self, weights: Vector, eta: float, alpha: int, batch_size: int, rng: np.random.Generator
    ) -> Vector:
        """Eq. 2: `alpha` epochs of plain SGD over D_i at the learning rate `eta`; ŵ_i(t).

        Samples are shuffled anew in each epoch by `rng`. The last batch of an epoch may be short;
        a single sample left over joins the batch before it, since batch normalisation cannot learn
        from one. The same arguments give the same bits in any process of a machine.
        """
        shop = self._shop
        inputs, labels = self._samples()
        lengths = batch_lengths(self.samples, batch_size)
        shop.weights.assign(weights)
        shop.module.train()
        with torch_seeded(int(rng.integers(2**63))):
            for _ in range(alpha):
                order = torch.from_numpy(rng.permutation(self.samples))
                shop.epoch(inputs, labels, order, lengths, eta)
        return shop.weights.flatten()


class Evaluator:
    """Scores global models on the task's whole test set, on all cores: the clients are waiting for it."""

    def __init__(self, task: Task) -> None:
        self._shop = workshop(task)

    @property
    def layout(self) -> Layout:
        """Which tensor lies where in the weight vectors."""
        return self._shop.layout

    @cached_property
    def _samples(self) -> Samples:
        data = self._shop.data
        return as_inputs(np.array(data.test_images)), as_labels(data.test_labels)

    def evaluate(self, weights: Vector) -> Metrics:
        """Loss, accuracy and macro-F1 of the weights on the test set."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return _evaluate(self._shop, weights, *self._samples, pool.map)


Score = tuple[float, NDArray[np.int64]]


def _evaluate(
    shop: Workshop,
    weights: Vector,
    inputs: Tensor,
    labels: Tensor,
    each: Callable[[Callable[[int], Score], Iterable[int]], Iterable[Score]],
) -> Metrics:
    """Metrics on samples, in batches small enough for the CPU's caches; `each` maps over them, in order."""
    shop.weights.assign(weights)
    shop.module.eval()
    classes = shop.data.classes

    def score(start: int) -> Score:
        batch = slice(start, start + EVALUATION_BATCH)
        with torch.inference_mode():
            outputs = shop.module(inputs[batch])
            truth = labels[batch]
            loss = float(shop.task.loss(outputs, truth)) * len(truth)
            cells = truth * classes + outputs.argmax(1)
        return loss, np.bincount(cells.numpy(), minlength=classes * classes)

    losses, counts = zip(*each(score, range(0, len(labels), EVALUATION_BATCH)), strict=True)
    return metrics_of(sum(losses), np.sum(counts, axis=0).reshape(classes, classes))
