"""Tasks on which nothing can be learned, each for a reason of its own."""

import dataclasses

import numpy as np

from dapfl.learning.data import Dataset
from tests.engines.tiny_task import TASK, load


def _with_nan() -> Dataset:
    data = load()
    data.train_images[::2] = np.nan
    return data


def _too_large() -> Dataset:
    data = load()
    return dataclasses.replace(data, train_images=data.train_images * np.float32(1e30))


NAN_DATA = dataclasses.replace(TASK, name="nan-data", load_data=_with_nan)
NAN_LOSS = dataclasses.replace(TASK, name="nan-loss", loss=lambda outputs, _: outputs.sum() * float("nan"))
TOO_LARGE = dataclasses.replace(TASK, name="too-large", load_data=_too_large)
