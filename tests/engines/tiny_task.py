"""A task that takes no time: which half of sixteen numbers is larger?"""

import numpy as np
from torch import nn

from dapfl.learning.data import Dataset
from dapfl.learning.tasks import Task


def load() -> Dataset:
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(700, 16)).astype(np.float32)
    labels = (numbers[:, :8].sum(axis=1) > numbers[:, 8:].sum(axis=1)).astype(np.int64)
    return Dataset(numbers[:600], labels[:600], numbers[600:], labels[600:], classes=2)


TASK = Task("tiny", lambda: nn.Sequential(nn.Linear(16, 2)), load)
