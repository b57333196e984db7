"""What a model is worth on some samples: loss, accuracy, macro-F1."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Metrics:
    """Mean loss, accuracy and macro-F1 over a set of samples: the state s_i(t) of Eq. 20.

    The loss of a model that has diverged is infinite or NaN; it is not hidden. Where there are no classes,
    accuracy and F1 are NaN: an agent then goes by the loss alone.
    """

    loss: float
    accuracy: float
    f1: float


@dataclass(frozen=True)
class Score(Metrics):
    """The metrics of a global model on the test set, and its accuracy for each client, in their order.

    Nothing is known of the clients of a deployment whose data only they have.
    """

    client_accuracy: tuple[float | None, ...] = ()
    more: Mapping[str, float] = field(default_factory=dict)
    """What the task's own metrics say."""


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Macro-F1 of a confusion matrix (true class by row, predicted class by column).

    The mean of F1 over the classes that occur among the labels or the predictions, as
    scikit-learn's `f1_score(average="macro", zero_division=0)` has it: a class that is neither
    there nor predicted says nothing about the model, and counts for nothing.

    >>> macro_f1(np.array([[2, 0, 0], [1, 1, 0], [0, 0, 0]]))
    0.7333333333333334
    """
    hits = np.diagonal(confusion)
    occurrences = confusion.sum(axis=0) + confusion.sum(axis=1)
    occurring = occurrences > 0
    if not occurring.any():
        return 0.0
    return float(np.mean(2 * hits[occurring] / occurrences[occurring]))


def metrics_of(total_loss: float, confusion: NDArray[np.int64]) -> Metrics:
    """Metrics from the sum of the samples' losses and their confusion matrix."""
    samples = int(confusion.sum())
    if samples == 0:
        raise ValueError("Metrics need at least one sample.")
    accuracy = float(np.trace(confusion)) / samples
    return Metrics(total_loss / samples, accuracy, macro_f1(confusion))
