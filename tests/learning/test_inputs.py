"""Inputs of any scale: what a model makes of them, and what travels in W(0)."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

import dapfl
from dapfl import Dataset, Task
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning import Learner, initial_weights
from dapfl.learning.inputs import EXPONENT, SHIFT, attach, measure, scale_inputs, without_idle_scaling
from dapfl.learning.models import Logistic
from dapfl.learning.runtime import task_runtime
from dapfl.randomness import stream

ONES = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)


def buffers(samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    module = scale_inputs(nn.Identity(), samples)
    measure(module, samples)
    return module.get_buffer(SHIFT).numpy(), module.get_buffer(EXPONENT).numpy()


def seen(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a model is given for these samples, which it also measured."""
    module = scale_inputs(nn.Identity(), samples)
    measure(module, samples)
    return np.asarray(module(torch.tensor(samples)).numpy())


@pytest.mark.parametrize(
    "samples",
    [
        ONES,
        0.5 * ONES,
        np.abs(ONES) / 4,
        ONES + 3,
        np.random.default_rng(1).random((300, 8, 8)).astype(np.float32),  # pixels from 0 to 1
        np.eye(10, dtype=np.float32)[np.arange(200) % 10],  # one-hot columns
        np.zeros((20, 4), np.float32),
    ],
    ids=["unit variance", "half", "a quarter, positive", "off zero", "pixels", "one-hot", "all zero"],
)
def test_ordinary_inputs_stay_as_they_are_bit_for_bit(samples: NDArray[np.float32]) -> None:
    shift, exponent = buffers(samples)
    assert not shift.any() and not exponent.any()
    np.testing.assert_array_equal(seen(samples), samples)


@pytest.mark.parametrize("factor", [1e-6, 0.01, 100.0, 10_000.0, 1e9])
@pytest.mark.parametrize("shape", [(500, 3), (500, 3, 1)], ids=["table", "images"])
def test_inputs_of_another_scale_come_to_about_one(factor: float, shape: tuple[int, ...]) -> None:
    scaled = seen((factor * ONES).astype(np.float32).reshape(shape))
    assert 0.2 < np.abs(scaled).max() <= 8
    ratio = scaled.reshape(500, 3) / ONES
    assert np.ptp(ratio) < 1e-5 * ratio.mean()  # one factor for all
    exponent = math.log2(ratio.mean() / factor)
    assert exponent == pytest.approx(round(exponent), abs=1e-4)  # exact in floating point


def test_columns_that_differ_are_scaled_each_by_itself() -> None:
    rng = np.random.default_rng(2)
    ages, incomes = rng.uniform(18, 90, 400), rng.lognormal(10, 1, 400)
    years, shares = rng.integers(1990, 2021, 400), rng.random(400)
    times = rng.uniform(1.6e9, 1.7e9, 400)
    hot = np.eye(6)[np.arange(400) % 6]
    table = np.column_stack((ages, incomes, years, shares, times, hot)).astype(np.float32)
    shift, exponent = buffers(table)
    scaled = seen(table)
    np.testing.assert_array_equal(scaled[:, 5:], hot)
    np.testing.assert_array_equal(scaled[:, 3], table[:, 3])
    for column in (0, 1, 2, 4):
        assert np.abs(scaled[:, column].mean()) <= 4.1
        assert 0.05 < scaled[:, column].std() < 4
    assert np.abs(shift).max() <= 1000  # fits every codec
    assert (exponent == np.rint(exponent)).all() and (shift * 64 == np.rint(shift * 64)).all()


def test_a_column_that_never_changes_breaks_nothing() -> None:
    table = np.column_stack((ONES[:, 0], np.full(500, 7e6), np.zeros(500))).astype(np.float32)
    assert np.isfinite(seen(table)).all() and np.abs(seen(table)).max() < 100


def test_the_rare_values_of_a_column_do_not_become_huge() -> None:
    table = np.column_stack((ONES[:, 0], np.zeros(500), ONES[:, 1])).astype(np.float32)
    table[7, 1] = 1 / 16  # a pixel at the border, once in 500 images
    assert 0.5 < seen(table)[7, 1] < 2
    np.testing.assert_array_equal(seen(table)[:, [0, 2]], table[:, [0, 2]])


def test_a_model_without_the_buffers_is_left_alone() -> None:
    module = nn.Linear(3, 2)
    measure(module, 1e6 * ONES)
    assert set(module.state_dict()) == {"weight", "bias"}


def test_only_buffers_that_change_nothing_are_left_out() -> None:
    idle = {"weight": np.ones(2), SHIFT: np.zeros(3), EXPONENT: np.zeros(3)}
    assert set(without_idle_scaling(idle)) == {"weight"}
    for name in (SHIFT, EXPONENT):
        at_work = {**idle, name: np.array([0.0, 1.0, 0.0])}
        assert without_idle_scaling(at_work) == at_work
    assert without_idle_scaling({"weight": np.ones(2)}).keys() == {"weight"}


# In a federation ----------------------------------------------------------------------------------


def digits(factor: float = 1.0, offset: float = 0.0, dtype: type = np.float32) -> Task:
    """A small network on 1,797 digits, whose pixels go from 0 to 16 times a factor."""

    def load() -> Dataset:
        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        x, y = (factor * x + offset).astype(dtype)[order], y[order].astype(np.int64)
        return Dataset(x[:1000], y[:1000], x[1000:], y[1000:], classes=10)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    return Task(f"digits-{factor}-{offset}-{np.dtype(dtype).name}", build, load)


def test_w0_is_where_the_scale_is_set_and_training_never_changes_it() -> None:
    task = digits(100.0)
    layout = task_runtime(task).layout
    places = np.concatenate(
        [np.arange(spec.start, spec.stop) for spec in layout.tensors if spec.name in (SHIFT, EXPONENT)]
    )
    assert len(places) == 128
    first = initial_weights(task, seed=3)
    assert first[places].any()
    plain = digits(1 / 16)
    others = np.setdiff1d(np.arange(len(first)), places)
    np.testing.assert_array_equal(first[others], initial_weights(plain, seed=3)[others])  # the seed's own
    learner = Learner(task, np.arange(200))
    trained = learner.train(first, Hyperparameters(eta=0.3, alpha=6, batch_size=32), stream(0, "sgd", 1, 0))
    np.testing.assert_array_equal(trained[places], first[places])
    assert learner.reference_loss == pytest.approx(math.log(10))
    assert learner.evaluate(trained).loss < 0.7 * learner.evaluate(first).loss


def test_a_loss_of_ones_own_has_no_loss_of_guessing() -> None:
    task = digits()
    own = Task("own-loss", task.build_model, task.load_data, loss=nn.CrossEntropyLoss())
    assert Learner(own, np.arange(50)).reference_loss is None


def test_bytes_are_not_scaled_and_keep_the_fast_way() -> None:
    def load() -> Dataset:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (60, 28, 28)).astype(np.uint8)
        return Dataset(images[:40], np.arange(40) % 10, images[40:], np.arange(20) % 10, classes=10)

    runtime = task_runtime(Task("bytes", Logistic, load))
    assert not hasattr(runtime.module, EXPONENT)
    assert runtime.epoch.__func__ is type(runtime.module).cross_entropy_epoch  # type: ignore[attr-defined]


def run(task: Task, out: Path, rounds: int, **options: object) -> dapfl.RunResult:
    given = {"clients": 8, "encryption": "none", "seed": 5, "rounds": rounds, **options}
    return dapfl.run(task, out=out, **given)


@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_the_scale_survives_aggregation_exactly_and_loads_into_a_module(tmp_path: Path, codec: str) -> None:
    task = digits(300.0, offset=70_000.0)
    result = run(task, tmp_path / "run", 3, clients=3, setting="fixed-capped", eta=0.05, alpha=2, codec=codec)
    arrays, layout = result.model(), task_runtime(task).layout
    first = initial_weights(task, seed=5)
    for spec in layout.tensors:
        if spec.name in (SHIFT, EXPONENT):
            np.testing.assert_array_equal(arrays[spec.name].ravel(), first[spec.start : spec.stop])
            assert arrays[spec.name].any()
    mine = result.load_into(task.build_model()).eval()
    data = task.load_data()
    with torch.inference_mode():
        said = mine(torch.from_numpy(data.test_images)).argmax(1).numpy()
    assert float(np.mean(said == data.test_labels)) == pytest.approx(result.accuracy)


def test_a_model_of_ordinary_inputs_has_no_buffers_of_ours(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).normal(size=(600, 3)).astype(np.float32)
    data = Dataset(rows[:500], (rows[:500, 0] > 0) * 1, rows[500:], (rows[500:, 0] > 0) * 1, classes=2)
    task = Task("ordinary", lambda: nn.Linear(3, 2), lambda: data)
    assert not initial_weights(task, seed=0)[8:].any() and len(initial_weights(task, seed=0)) == 8 + 6
    result = run(task, tmp_path / "run", 2, clients=3, setting="fixed-capped", eta=0.05, alpha=1)
    assert set(result.model()) == {"weight", "bias"}
    module = task.build_model()
    assert result.load_into(module) is module and not hasattr(module, EXPONENT)


def accuracies(factors: tuple[float, ...], folder: Path) -> list[float]:
    return [float(run(digits(factor), folder / f"{factor}", 12).accuracy or 0) for factor in factors]


def test_inputs_over_six_orders_of_magnitude_end_within_a_point(tmp_path: Path) -> None:
    found = accuracies((0.01, 1.0, 100.0, 10_000.0), tmp_path)
    assert max(found) - min(found) <= 0.01 and min(found) > 0.85


def test_attaching_changes_the_inputs_by_the_formula() -> None:
    module = attach(nn.Identity(), np.float32([0.5, 0.0]), np.float32([3.0, -1.0]))
    assert module(torch.tensor([[16.0, 16.0]])).tolist() == [[16 / 8 - 0.5, 32.0]]
