"""The real data sets, where the cache has them: what the docs say of them."""

import numpy as np
import pytest

from dapfl.learning import datasets
from dapfl.learning.data import Dataset
from dapfl.learning.datasets.collection import Collection


def cached(name: str) -> Dataset:
    collection: Collection = datasets.COLLECTIONS[name]
    if any(file.state != "verified" for file in datasets.status(name)):
        pytest.skip(f"the data set {name} is not in the cache: dapfl data fetch {name}")
    return datasets.load(collection.name)


@pytest.mark.parametrize(
    ("name", "clients", "train", "test", "classes"),
    [
        ("cifar10", None, 50_000, 10_000, 10),
        ("hapt", 30, 7_922, 1_923, 6),
        ("shakespeare", 447, 37_734, 9_261, 63),
        ("adult", 39, 32_561, 16_281, 2),
    ],
)
def test_sizes(name: str, clients: int | None, train: int, test: int, classes: int) -> None:
    data = cached(name)
    assert (len(data.train_labels), len(data.test_labels), data.classes) == (train, test, classes)
    assert (data.natural and len(data.natural.names)) == clients


@pytest.mark.parametrize("name", ["hapt", "shakespeare", "adult"])
def test_every_natural_client_has_samples_to_learn_from_and_to_be_tested_on(name: str) -> None:
    natural = cached(name).natural
    assert natural is not None
    assert len(set(natural.names)) == len(natural.names)
    for owners in (natural.train, natural.test):
        assert np.bincount(owners[owners >= 0], minlength=len(natural.names)).min() >= 2


def test_hamlet_is_there() -> None:
    natural = cached("shakespeare").natural
    assert natural is not None
    assert "Hamlet (Hamlet, Prince of Denmark)" in natural.names
