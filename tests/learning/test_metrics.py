import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from dapfl.learning.metrics import Metrics, macro_f1, metrics_of


def confusion(truth: list[int], predicted: list[int], classes: int) -> np.ndarray:
    matrix = np.zeros((classes, classes), np.int64)
    np.add.at(matrix, (truth, predicted), 1)
    return matrix


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=60))
def test_accuracy_and_macro_f1_agree_with_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    truth, predicted = [a for a, _ in pairs], [b for _, b in pairs]
    ours = metrics_of(1.0, confusion(truth, predicted, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn remarks on classes never predicted
        assert ours.f1 == pytest.approx(f1_score(truth, predicted, average="macro", zero_division=0))
    assert ours.accuracy == pytest.approx(accuracy_score(truth, predicted))


def test_a_class_that_does_not_occur_counts_for_nothing() -> None:
    assert macro_f1(np.diag([3, 4, 0])) == 1.0
    assert macro_f1(np.zeros((3, 3), np.int64)) == 0.0


def test_loss_is_the_mean_over_samples_and_may_be_infinite() -> None:
    assert metrics_of(6.0, np.diag([1, 2])) == Metrics(loss=2.0, accuracy=1.0, f1=1.0)
    assert metrics_of(float("inf"), np.diag([1, 2])).loss == float("inf")


def test_no_samples_have_no_metrics() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        metrics_of(0.0, np.zeros((2, 2), np.int64))
