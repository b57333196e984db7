"""The model and the data: nothing here knows of Flower or Dap-FL."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

Arrays = list[NDArray[np.float64]]
CLASSES = np.arange(10)


def make_model(lr: float = 0.01) -> SGDClassifier:
    """Logistic regression, trained by stochastic gradient descent; all weights are zero."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=lr, random_state=1)
    model.classes_ = CLASSES
    model.coef_, model.intercept_ = np.zeros((10, 64)), np.zeros(10)
    return model


def weights_of(model: SGDClassifier) -> Arrays:
    """The weights of a model."""
    return [model.coef_, model.intercept_]


def set_weights(model: SGDClassifier, arrays: Arrays) -> None:
    """Gives a model these weights."""
    model.coef_, model.intercept_ = np.array(arrays[0]), np.array(arrays[1])


def load_data(partition: int, partitions: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One partition of the digits."""
    digits = load_digits()
    return digits.data[partition::partitions] / 16, digits.target[partition::partitions]
