"""Your own model and data, as any Flower app has them."""

import numpy as np
from torch import Tensor, nn

from dapfl.learning.data import Dataset
from dapfl.learning.tasks import Task

FEATURES = 12


class Model(nn.Module):
    """A small network on a patient's measurements."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, patients: Tensor) -> Tensor:
        """One logit for each outcome."""
        return self.layers(patients)


def load_data() -> Dataset:
    """Made-up patients; read your own records here. The test set is the server's."""
    rng = np.random.default_rng(7)
    patients = rng.normal(size=(4000, FEATURES)).astype(np.float32)
    risk = patients[:, :4].sum(axis=1) + patients[:, 4] * patients[:, 5]
    returned = (risk + rng.normal(scale=0.5, size=len(patients)) > 0).astype(np.int64)
    return Dataset(patients[:3000], returned[:3000], patients[3000:], returned[3000:], classes=2)


TASK = Task("wards", Model, load_data)
