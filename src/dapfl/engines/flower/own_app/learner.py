"""The train and evaluate functions of a Flower app, as what a client of the protocol trains with."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from flwr.app import ArrayRecord, RecordDict

from dapfl.arrays import Vector
from dapfl.engines.flower.own_app.plan import Plan
from dapfl.errors import ProtocolError
from dapfl.federation.messages import digest
from dapfl.federation.records import LARGEST, Metric
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.metrics import Metrics

_NAME = re.compile(r"[\w .:/+-]{1,64}")
_MOST, _LONGEST = 32, 256


@dataclass(frozen=True)
class MetricNames:
    """What the app's functions call the loss, the accuracy and F1; None: what sounds like it."""

    loss: str | None = None
    accuracy: str | None = None
    f1: str | None = None

    def read(self, metrics: Mapping[str, Metric]) -> Metrics:
        """Loss, accuracy and F1 out of the metrics of a function; NaN where it does not report them."""
        return Metrics(
            _measured(metrics, self.loss, "loss"),
            _measured(metrics, self.accuracy, "acc"),
            _measured(metrics, self.f1, "f1"),
        )


def _measured(metrics: Mapping[str, Metric], name: str | None, sound: str) -> float:
    found = [key for key in metrics if key == name or (name is None and sound in key.lower())]
    value = metrics[found[0]] if found else None
    if not isinstance(value, int | float):
        return math.nan
    return float(value) if math.isfinite(value) else math.inf  # measured, and no number: it has diverged


class Memory(msgspec.Struct):
    """What a node knows of its own app."""

    samples: int = 1  # unknown before the first training
    evaluated: bytes = b""  # the hash of the model that was evaluated last
    evaluation: dict[str, Metric] = {}
    training: dict[str, Metric] = {}  # the metrics of the last training


class AppLearner:
    """A `LocalLearner` that trains and evaluates by calling the app's functions.

    Loss and accuracy of a model come from the evaluate function: from its last call if that was about the
    same model, which it is where the strategy evaluates each round's model on all clients. An app without
    one is known by the metrics that its train function returns.
    """

    step_size: float | None = None  # it is the app that takes steps
    reference_loss: float | None = None  # and its loss may be of any kind
    guess_loss: float | None = None

    def __init__(
        self,
        plan: Plan,
        names: MetricNames,
        memory: Memory,
        train: Callable[[ArrayRecord, Hyperparameters], RecordDict],
        evaluate: Callable[[ArrayRecord], RecordDict] | None,
    ) -> None:
        self._plan = plan
        self._names = names
        self._memory = memory
        self._train = train
        self._evaluate = evaluate
        self.failure: ProtocolError | None = None  # why a function of the app could not be used

    @property
    def sample_count(self) -> int:
        """|D_i|, as the train function has last returned it."""
        return self._memory.samples

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """What the train function has returned besides the model, as far as a report can tell it."""
        told = {name: _plain(value) for name, value in self._memory.training.items() if _NAME.fullmatch(name)}
        return dict(list(told.items())[:_MOST])

    def evaluate(self, weights: Vector) -> Metrics:
        """Loss, accuracy and F1 of a model on the client's data, as far as the app tells."""
        with self._noting_failures():
            return self._judged(weights)

    def _judged(self, weights: Vector) -> Metrics:
        model = digest(weights.tobytes())
        if self._memory.evaluated != model and self._evaluate is not None:
            content = self._evaluate(self._plan.model.arrays(weights))
            self._memory.evaluation, self._memory.evaluated = metrics_in(content), model
        known = self._memory.evaluation if self._memory.evaluated == model else {}
        metrics = self._names.read(known)
        return self._names.read(self._memory.training) if math.isnan(metrics.loss) else metrics

    def train(self, weights: Vector, hyperparameters: Hyperparameters, rng: np.random.Generator) -> Vector:
        """Calls the train function with the global model and what the agent has chosen."""
        with self._noting_failures():
            return self._learned(weights, hyperparameters)

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except ProtocolError as error:
            self.failure = error
            raise

    def _learned(self, weights: Vector, hyperparameters: Hyperparameters) -> Vector:
        content = self._train(self._plan.model.arrays(weights), hyperparameters)
        if len(content.array_records) != 1:
            raise ProtocolError(
                "no-model", f"the train function returned {len(content.array_records)} array records, not one"
            )
        metrics = metrics_in(content)
        self._memory.samples = self._samples(metrics.pop(self._plan.weight_key, None))
        self._memory.training = metrics
        return self._plan.model.vector(next(iter(content.array_records.values())))

    def _samples(self, count: Metric) -> int:
        most, name = self._plan.max_samples, self._plan.weight_key
        if not isinstance(count, int | float) or count != int(count) or count < 1:
            raise ProtocolError(
                "no-sample-count",
                f"the train function's metrics must have a whole number '{name}', 1 or more",
            )
        if count > most:
            raise ProtocolError(
                "too-many-samples",
                f"this node has {int(count)} samples, and the strategy allows {most} per node: "
                f"DapFL(max_samples={int(count)}) would do",
            )
        return int(count)


def _plain(value: Metric) -> Metric:
    """A number, or a list of them, that a report may hold; None if it may not."""
    numbers = value if isinstance(value, list) else [value]
    finite = [float(each) for each in numbers if each is not None and abs(each) <= LARGEST]
    if len(finite) != len(numbers) or len(finite) > _LONGEST:
        return None
    return finite if isinstance(value, list) else finite[0]


def metrics_in(content: RecordDict) -> dict[str, Metric]:
    """All metrics that a function has returned."""
    found: dict[str, Any] = {}
    for record in content.metric_records.values():
        found.update(record)
    return found
