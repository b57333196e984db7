"""What a global model is worth to each client: good on average may be bad for some."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dapfl.learning.data import Dataset


@dataclass(frozen=True)
class ClientTests:
    """For each client, the part of the test set that is like its own samples.

    Test samples lie in groups, and a client has a share of each group. A natural client is a group: it
    has test samples of its own. Other clients have none; for them a group is a class, and their share
    of it is that of their training samples: what to expect on fresh samples of the same mixture.
    """

    groups: NDArray[np.int64]
    """The group of every test label; -1 is nobody's."""
    shares: NDArray[np.float64]
    """Clients by row, groups by column."""

    @classmethod
    def natural(cls, data: Dataset, chosen: Sequence[int]) -> "ClientTests":
        """The tests of the natural clients that were chosen."""
        assert data.natural is not None
        owners = np.asarray(data.natural.test, np.int64)
        labels = data.test_labels
        everyone = np.eye(len(data.natural.names))
        return cls(np.repeat(owners, labels.size // len(labels)), everyone[list(chosen)])

    @classmethod
    def by_class(cls, data: Dataset, partition: Sequence[NDArray[np.int32]]) -> "ClientTests":
        """The tests of clients that got these training samples."""
        counts = [np.bincount(data.train_labels[mine].ravel(), minlength=data.classes) for mine in partition]
        return cls(data.test_labels.ravel().astype(np.int64), np.array(counts, np.float64))

    def accuracies(self, hits: NDArray[np.bool_]) -> tuple[float | None, ...]:
        """Each client's accuracy, from which test labels were guessed right; None where it has no tests.

        >>> tests = ClientTests(np.array([0, 0, 1, 1]), np.array([[3.0, 1.0], [0.0, 2.0]]))
        >>> tests.accuracies(np.array([True, True, True, False]))
        (0.875, 0.5)
        """
        known = self.groups >= 0
        size = self.shares.shape[1]
        tests = np.bincount(self.groups[known], minlength=size)
        right = np.bincount(self.groups[known], hits[known], minlength=size)
        there = tests > 0
        shares = self.shares[:, there]
        totals = shares.sum(axis=1)
        sums = shares @ (right[there] / tests[there])
        return tuple(
            float(each / total) if total > 0 else None for each, total in zip(sums, totals, strict=True)
        )


def worst_tenth(accuracies: Sequence[float]) -> float:
    """The mean accuracy of the tenth of the clients that the model serves worst, and of at least one.

    >>> worst_tenth([0.9] * 18 + [0.5, 0.6])
    0.55
    """
    worst = sorted(accuracies)[: math.ceil(len(accuracies) / 10)]
    return math.fsum(worst) / len(worst)
