"""The tiny task with seven named clients, of whom one sees the world the other way round."""

import numpy as np
from torch import nn

from dapfl.learning.data import Dataset, NaturalClients
from dapfl.learning.tasks import Task

NAMES = ("Ann", "Bob", "Cy", "Dee", "Eve", "Flo", "Guy")
CONTRARY = NAMES.index("Eve")


def load() -> Dataset:
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(840, 16)).astype(np.float32)
    owners = np.arange(840) % len(NAMES)
    labels = (numbers[:, :8].sum(axis=1) > numbers[:, 8:].sum(axis=1)) != (owners == CONTRARY)
    labels = labels.astype(np.int64)
    natural = NaturalClients(NAMES, owners[:560], owners[560:])
    return Dataset(numbers[:560], labels[:560], numbers[560:], labels[560:], classes=2, natural=natural)


TASK = Task("natural", lambda: nn.Sequential(nn.Linear(16, 2)), load)
