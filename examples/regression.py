"""Regression: numbers instead of classes, a metric of your own, and Adam instead of plain SGD.

    .venv/bin/pip install scikit-learn
    dapfl run --task examples/regression.py:diabetes --clients 5 --rounds 10

Ten measurements of a person predict how a disease goes on within a year (scikit-learn's diabetes data, no
download). `adam` is the same task with another optimiser.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from dapfl import Dataset, Task


def load_diabetes() -> Dataset:
    """Measurements and targets in units of one standard deviation. `classes` stays 0: there are none."""
    from sklearn.datasets import load_diabetes as load

    features, progress = load(return_X_y=True)
    inputs = (features / features.std(0)).astype(np.float32)
    targets = ((progress - progress.mean()) / progress.std()).astype(np.float32)[:, None]
    return Dataset(inputs[:342], targets[:342], inputs[342:], targets[342:])


def build_model() -> nn.Module:
    """A linear model, whose outputs have the shape of the targets: one number for each person."""
    return nn.Linear(10, 1)


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> float:
    """Of all test persons; it is in every round's record, in the tables and on the page."""
    return float((outputs - targets).abs().mean())


diabetes = Task(
    "diabetes", build_model, load_diabetes, nn.MSELoss(), metrics={"mean_absolute_error": mean_absolute_error}
)
adam = replace(
    diabetes, name="diabetes-adam", optimizer=lambda weights, eta: torch.optim.Adam(weights, lr=eta)
)
