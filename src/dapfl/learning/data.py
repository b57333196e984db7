"""What a task learns from: samples with labels and, where the data have them, the clients they come from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class NaturalClients:
    """Whose samples these are: people, roles, places. `--partition natural` gives each its own.

    `train` and `test` say for every sample which of `names` it belongs to; -1 belongs to nobody.
    """

    names: tuple[str, ...]
    train: NDArray[np.integer[Any]]
    test: NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with their class labels, 0 to `classes` - 1, or with numbers to predict.

    Inputs are arrays with one sample per row, of any shape: bytes (uint8) reach the model as
    float32 in [0, 1], floats as float32, whole numbers (such as tokens) as they are. A sample has
    one label, or a row of them (such as the next character at each place of a passage).

    Without classes (`classes=0`) labels are floats: numbers that a model is to predict (regression), or any
    other target that the task's loss understands, such as a row of zeros and ones (many labels at once).
    """

    train_images: NDArray[Any]
    train_labels: NDArray[Any]
    test_images: NDArray[Any]
    test_labels: NDArray[Any]
    classes: int = 0
    natural: NaturalClients | None = None
