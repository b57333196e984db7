"""Local training (Eq. 2) and evaluation of models given as flat weight vectors.

A client of a simulated federation is a `Learner`: little more than the indices of its samples.
All learners of a process share one module and one memory-mapped data set per task.
"""

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from dapfl.arrays import Vector
from dapfl.config import OptimiserConfig
from dapfl.errors import DataError, TaskError
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning import device
from dapfl.learning.fairness import ClientTests
from dapfl.learning.inputs import measure, scale_inputs
from dapfl.learning.layout import Layout
from dapfl.learning.metrics import Metrics, Score, metrics_of
from dapfl.learning.optimisers import rule_of
from dapfl.learning.runtime import (
    Samples,
    TaskRuntime,
    as_inputs,
    as_labels,
    build_model,
    optimizer_epoch,
    takes_floats,
    task_runtime,
    torch_seeded,
)
from dapfl.learning.tasks import Metric, Task

EVALUATION_BATCH = 512


def initial_weights(task: Task, seed: int) -> Vector:
    """W(0): the model's own initialisation, decided by the seed, and the scale of the test set's inputs."""
    module, data = build_model(task, seed), task_runtime(task).data
    if takes_floats(data):
        measure(scale_inputs(module, data.test_images), data.test_images)
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
    >>> trained = learner.train(weights, Hyperparameters(0.5, 10, 32), stream(1, "sgd", 1, 0))
    >>> learner.evaluate(trained).accuracy > 0.9
    True
    """

    def __init__(
        self,
        task: Task,
        indices: NDArray[np.integer[Any]],
        optimiser: OptimiserConfig = OptimiserConfig(),  # noqa: B008 - frozen
    ) -> None:
        if len(indices) == 0:
            raise ValueError("A learner needs at least one sample.")
        self._optimiser = optimiser
        self.step_size: float | None = None  # the last one of an optimiser that goes on from it: `DoG`
        self._runtime = task_runtime(task)
        self._indices = np.asarray(indices, np.int32)

    @property
    def sample_count(self) -> int:
        """|D_i|."""
        return len(self._indices)

    @property
    def reference_loss(self) -> float | None:
        """What guessing gives: ln(classes) for the cross-entropy; None for a loss of the user's own."""
        runtime = self._runtime
        classes = runtime.data.classes
        return math.log(classes) if classes > 1 and runtime.task.loss is cross_entropy else None

    @cached_property
    def guess_loss(self) -> float | None:
        """The loss of the best constant guess on D_i, the entropy of its labels; None as above."""
        if self.reference_loss is None:
            return None
        counts = np.bincount(self._runtime.data.train_labels[self._indices].reshape(-1))
        share = counts[counts > 0] / counts.sum()
        return float(-(share * np.log(share)).sum())

    @property
    def layout(self) -> Layout:
        """Which tensor lies where in the weight vectors."""
        return self._runtime.layout

    @property
    def metrics(self) -> dict[str, float | list[float] | None]:
        """What training tells besides its loss: nothing."""
        return {}

    def evaluate(self, weights: Vector) -> Metrics:
        """The state s_i(t) of Eq. 20: loss, accuracy and macro-F1 of the weights on D_i."""
        inputs, labels = self._samples()
        found = _evaluate(self._runtime, weights, inputs, labels, map)
        return _metrics(found, labels, self._runtime.data.classes)

    def _samples(self) -> Samples:
        """D_i as tensors."""
        return self._runtime.cache.get(self, self._load)

    def _load(self) -> Samples:
        """D_i from the data set; DataError if there is anything in it that no model can learn from."""
        data, mine = self._runtime.data, self._indices
        inputs = data.train_images[mine]
        if np.issubdtype(inputs.dtype, np.floating) and not np.isfinite(inputs).all():
            bad = np.flatnonzero(~np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1))
            raise DataError(
                f"NaN or infinity in {len(bad)} of this client's {len(inputs)} training samples; the first "
                f"is training sample {mine[bad[0]]} of task {self._runtime.task.name}. Clean or remove them."
            )
        return device.moved(as_inputs(inputs)), device.moved(as_labels(data.train_labels[mine]))

    def train(self, weights: Vector, hyperparameters: Hyperparameters, rng: np.random.Generator) -> Vector:
        """Eq. 2: α epochs of SGD over D_i at the learning rate η; returns ŵ_i(t).

        What another optimiser than plain SGD takes η for, `optimisers.py` says.

        Samples are shuffled anew in each epoch by `rng`. The last batch of an epoch may be short;
        a single sample left over joins the batch before it, since batch normalisation cannot learn
        from one. The same arguments give the same bits in any process of a machine.
        """
        runtime = self._runtime
        inputs, labels = self._samples()
        lengths = batch_lengths(self.sample_count, hyperparameters.batch_size)
        runtime.weights.assign(weights)
        runtime.module.train()
        rule = rule_of(self._optimiser, runtime, self.step_size)
        epoch = runtime.epoch if rule is None else rule.epoch
        if rule is None and runtime.task.optimizer is not None:
            epoch = optimizer_epoch(runtime, hyperparameters.eta)
        with torch_seeded(int(rng.integers(2**63))):
            for _ in range(hyperparameters.alpha):
                order = device.moved(torch.from_numpy(rng.permutation(self.sample_count)))
                epoch(inputs, labels, order, lengths, hyperparameters)
        if rule is not None:
            self.step_size = rule.last
        return runtime.weights.flatten()


class Evaluator:
    """Scores global models on the task's whole test set, on all cores, since the clients wait for it.

    With `tests`, it also says what a model is worth to each client.
    """

    def __init__(self, task: Task, tests: ClientTests | None = None) -> None:
        self._runtime = task_runtime(task)
        self._tests = tests

    @property
    def layout(self) -> Layout:
        """Which tensor lies where in the weight vectors."""
        return self._runtime.layout

    @cached_property
    def _samples(self) -> Samples:
        data = self._runtime.data
        inputs = device.moved(as_inputs(np.array(data.test_images)))
        return inputs, device.moved(as_labels(data.test_labels))

    def evaluate(self, weights: Vector) -> Score:
        """Loss, accuracy and macro-F1 of the weights on the test set, and the accuracy for each client."""
        threads = os.cpu_count() if device.current().type == "cpu" else 1
        with ThreadPoolExecutor(threads) as pool:
            own = self._runtime.task.metrics
            loss, cells, outputs = _evaluate(
                self._runtime, weights, *self._samples, pool.map, keep_outputs=bool(own)
            )
        classes, labels = self._runtime.data.classes, self._samples[1].cpu()
        metrics = _metrics((loss, cells, outputs), labels, classes)
        accuracies = self._tests.accuracies(cells // classes == cells % classes) if self._tests else ()
        more = {name: self._own(name, measure, outputs, labels) for name, measure in own.items()}
        return Score(metrics.loss, metrics.accuracy, metrics.f1, accuracies, more)

    def _own(self, name: str, measure: Metric, outputs: Tensor, labels: Tensor) -> float:
        try:
            return float(measure(outputs, labels))
        except Exception as error:
            raise TaskError(
                f"The metric '{name}' of task {self._runtime.task.name} fails: {type(error).__name__}: "
                f"{error}. It makes one number of two tensors: the outputs and labels of all test samples."
            ) from error


Cells = NDArray[np.int64]
"""For every label, its place in the confusion matrix: true class by row, predicted class by column."""
BatchScore = tuple[float, Cells, Tensor]
"""The sum of the losses, the cells (none without classes), and the outputs, if they are kept."""


def _metrics(found: BatchScore, labels: Tensor, classes: int) -> Metrics:
    loss, cells, _ = found
    if not classes:
        return Metrics(loss / labels.numel(), math.nan, math.nan)
    confusion = np.bincount(cells, minlength=classes * classes).reshape(classes, classes)
    return metrics_of(loss, confusion)


def _evaluate(
    runtime: TaskRuntime,
    weights: Vector,
    inputs: Tensor,
    labels: Tensor,
    each: Callable[[Callable[[int], BatchScore], Iterable[int]], Iterable[BatchScore]],
    *,
    keep_outputs: bool = False,
) -> BatchScore:
    """The sum of all labels' losses, and their cells, in batches small enough for the CPU's caches; `each`
    maps over the batches, in order."""
    runtime.weights.assign(weights)
    runtime.module.eval()
    classes = runtime.data.classes

    def score(start: int) -> BatchScore:
        batch = slice(start, start + EVALUATION_BATCH)
        with torch.inference_mode():
            outputs = runtime.module(inputs[batch])
            truth = labels[batch]
            loss = float(runtime.task.loss(outputs, truth)) * truth.numel()
            cells = truth * classes + outputs.argmax(1) if classes else torch.empty(0, dtype=torch.int64)
        kept = outputs.cpu() if keep_outputs else torch.empty(0)
        return loss, cells.flatten().cpu().numpy(), kept

    losses, cells, outputs = zip(*each(score, range(0, len(labels), EVALUATION_BATCH)), strict=True)
    return sum(losses), np.concatenate(cells), torch.cat(outputs)
