import mmap

import numpy as np
import pytest

from dapfl.learning.datasets import adult
from dapfl.learning.datasets.adult import read_tables

TRAIN = """39, Private, 1, Bachelors, 13, Never-married, Sales, Husband, White, Male, 0, 0, 40, Cuba, <=50K
50, Private, 2, Bachelors, 13, Divorced, Sales, Wife, White, Female, 2174, 0, 20, Cuba, >50K
20, ?, 3, HS-grad, 9, Divorced, ?, Wife, Black, Female, 0, 5, 60, Peru, <=50K
61, State-gov, 3, HS-grad, 9, Divorced, Tech-support, Wife, Black, Female, 0, 5, 60, Peru, >50K

"""
TEST = """|1x3 Cross validator
25, Private, 9, HS-grad, 9, Divorced, Sales, Husband, White, Male, 0, 0, 40, Chile, >50K.
25, State-gov, 9, HS-grad, 9, Divorced, Sales, Husband, White, Male, 0, 0, 40, Peru, <=50K.
"""


def mapped(text: str) -> mmap.mmap:
    content = mmap.mmap(-1, len(text))
    content.write(text.encode())
    return content


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adult, "ENOUGH", 1)
    return read_tables([mapped(TRAIN), mapped(TEST)])


def test_numbers_are_standardised_by_the_training_set(data) -> None:
    numbers = data.train_images[:, :5]
    assert np.allclose(numbers.mean(axis=0), 0, atol=1e-6)
    assert np.allclose(numbers.std(axis=0), 1, atol=1e-6)
    ages = np.array([39, 50, 20, 61])
    assert data.test_images[0, 0] == pytest.approx((25 - ages.mean()) / ages.std(), abs=1e-6)


def test_words_become_a_column_for_each_value_of_the_training_set(data) -> None:
    words = data.train_images[:, 5:]
    assert set(np.unique(words)) == {0.0, 1.0}
    assert (words.sum(axis=1) == 7).all()  # one for each of the seven columns of words
    assert data.test_images[0, 5:].sum() == 6  # nobody in the training set comes from Chile


def test_labels_are_read_with_and_without_a_dot(data) -> None:
    assert data.train_labels.tolist() == [0, 1, 0, 1]
    assert data.test_labels.tolist() == [1, 0]


def test_clients_are_groups_of_occupation_and_employer(data) -> None:
    assert data.natural.names == ("sales, private", "tech-support, state-gov")
    assert data.natural.train.tolist() == [0, 0, -1, 1]
    assert data.natural.test.tolist() == [0, -1]
