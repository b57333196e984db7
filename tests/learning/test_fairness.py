import numpy as np
import pytest

from dapfl.learning.data import Dataset, NaturalClients
from dapfl.learning.fairness import ClientTests, worst_tenth

LABELS = np.array([0, 0, 1, 1, 1, 2])
NATURAL = NaturalClients(("Ann", "Bob", "Cy"), np.array([0, 1, 2, 0, 1, 2]), np.array([0, 0, 1, -1, 1, 0]))


def data(labels: np.ndarray = LABELS) -> Dataset:
    return Dataset(np.zeros((6, 1)), labels, np.zeros((6, 1)), labels, 4, NATURAL)


HITS = np.array([True, False, True, True, False, True])


def test_a_natural_client_is_tested_on_its_own_samples() -> None:
    tests = ClientTests.natural(data(), [0, 1])
    assert tests.accuracies(HITS) == (pytest.approx(2 / 3), 0.5)


def test_a_natural_client_without_test_samples_has_no_accuracy() -> None:
    assert ClientTests.natural(data(), [2, 0]).accuracies(HITS) == (None, pytest.approx(2 / 3))


def test_all_labels_of_a_sample_count_for_its_client() -> None:
    rows = np.stack([LABELS, LABELS], axis=1)
    hits = np.repeat(HITS, 2)
    hits[1] = False  # of Ann's six labels, three are right
    assert ClientTests.natural(data(rows), [0]).accuracies(hits) == (pytest.approx(3 / 6),)


def test_other_clients_are_tested_on_their_mixture_of_classes() -> None:
    tests = ClientTests.by_class(data(), [np.array([0, 1]), np.array([2, 3, 5])])
    by_class = [1 / 2, 2 / 3, 1.0]
    assert tests.accuracies(HITS) == (by_class[0], pytest.approx((2 * by_class[1] + by_class[2]) / 3))


def test_a_client_like_everyone_has_the_accuracy_of_the_whole_test_set() -> None:
    tests = ClientTests.by_class(data(), [np.arange(6)])
    assert tests.accuracies(HITS) == (pytest.approx(HITS.mean()),)


def test_a_class_that_is_not_tested_does_not_count() -> None:
    training = np.array([0, 3, 3, 3, 1, 1])
    mixed = Dataset(np.zeros((6, 1)), training, np.zeros((6, 1)), LABELS, 4)
    assert ClientTests.by_class(mixed, [np.array([0, 1, 2])]).accuracies(HITS) == (0.5,)
    assert ClientTests.by_class(mixed, [np.array([1, 2])]).accuracies(HITS) == (None,)


def test_the_worst_tenth_is_at_least_one_client() -> None:
    assert worst_tenth([0.3, 0.9]) == 0.3
    assert worst_tenth([0.1, 0.3, *[1.0] * 9]) == pytest.approx(0.2)
