"""Local optimisers that find their own step sizes, against independent arithmetic and their authors' code."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dapfl.config import OptimiserConfig
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.data import Dataset
from dapfl.learning.layout import Layout
from dapfl.learning.optimisers import KINDS, DeltaSGD, gradients_per_step, rule_of
from dapfl.learning.runtime import task_runtime
from dapfl.learning.sgd import Learner, initial_weights
from dapfl.learning.tasks import Task
from dapfl.randomness import stream

CLASSES, FEATURES, SAMPLES = 3, 5, 80


def points() -> Dataset:
    rng = stream(3, "points")
    x = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    y = (x[:, :CLASSES] + 0.1 * rng.normal(size=(SAMPLES, CLASSES))).argmax(1)
    return Dataset(x, y, x, y, CLASSES)


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, CLASSES)
    )


LINEAR = Task("linear", lambda: nn.Linear(FEATURES, CLASSES), points)
NORMALISED = Task("normalised", normalised, points)
DELTA, DOG = OptimiserConfig(kind="delta-sgd"), OptimiserConfig(kind="dog", first_distance=1e-3)
CHOSEN = Hyperparameters(eta=0.2, alpha=4, batch_size=16)


def trained(task: Task, optimiser: OptimiserConfig, chosen: Hyperparameters = CHOSEN) -> np.ndarray:
    learner = Learner(task, np.arange(SAMPLES), optimiser)
    return learner.train(initial_weights(task, 0), chosen, stream(1, "sgd"))


class Softmax:
    """The linear task in float64 without torch: its batches, and the gradient of each."""

    def __init__(self, chosen: Hyperparameters = CHOSEN) -> None:
        data, rng = points(), stream(1, "sgd")
        self.x, self.y = data.train_images.astype(np.float64), np.eye(CLASSES)[data.train_labels]
        rng.integers(2**63)
        orders = [rng.permutation(SAMPLES) for _ in range(chosen.alpha)]
        self.batches = [order[i : i + 16] for order in orders for i in range(0, SAMPLES, 16)]
        # The last two are the input buffers, which change nothing here and are not trained.
        self.start = initial_weights(LINEAR, 0).astype(np.float64)[: CLASSES * (FEATURES + 1)]

    def gradient(self, weights: np.ndarray, batch: np.ndarray) -> np.ndarray:
        matrix, bias = weights[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), weights[CLASSES * FEATURES :]
        logits = self.x[batch] @ matrix.T + bias
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        error = (shares - self.y[batch]) / len(batch)
        return np.concatenate([(error.T @ self.x[batch]).ravel(), error.sum(0)])


@pytest.mark.parametrize(("gamma", "delta"), [(2.0, 0.1), (0.1, 0.1), (2.0, 1.0)])
def test_delta_sgd_is_the_rule_of_its_paper(gamma: float, delta: float) -> None:
    task, eta, theta, bound = Softmax(), 0.2, 1.0, set()
    x, before = task.start, task.start
    for k, batch in enumerate(task.batches):
        g = task.gradient(x, batch)
        if k:
            curvature = (
                gamma * np.linalg.norm(x - before) / (2 * np.linalg.norm(g - task.gradient(before, batch)))
            )
            growth = math.sqrt(1 + delta * theta) * eta
            bound.add(curvature < growth)
            new = min(curvature, growth)
            theta, eta = new / eta, new
        before, x = x, x - eta * g
    ours = trained(LINEAR, OptimiserConfig(kind="delta-sgd", gamma=gamma, delta=delta))
    np.testing.assert_allclose(ours[: len(x)], x, rtol=1e-3, atol=1e-4)
    if (gamma, delta) == (0.1, 0.1):
        assert bound == {True, False}  # both sides of the minimum were met


def test_dog_is_distance_over_gradients() -> None:
    chosen, task = Hyperparameters(1.0, 4, 16), Softmax()
    x, farthest, squares = task.start, 1e-3 * (1 + np.linalg.norm(task.start)), 1e-8
    for batch in task.batches:
        g = task.gradient(x, batch)
        farthest, squares = max(farthest, np.linalg.norm(x - task.start)), squares + g @ g
        x = x - farthest / math.sqrt(squares) * g
    np.testing.assert_allclose(trained(LINEAR, DOG, chosen)[: len(x)], x, rtol=1e-3, atol=1e-4)
    doubled = trained(LINEAR, DOG, Hyperparameters(2.0, 4, 16))
    assert np.abs(doubled[: len(x)] - x).max() > 1e-3  # η is its factor c


def test_dog_is_that_of_its_authors() -> None:
    dog = pytest.importorskip("dog")
    task, module = Softmax(), nn.Linear(FEATURES, CLASSES)
    layout = Layout.of(module)  # without the buffers that scale inputs
    layout.assign(module, initial_weights(LINEAR, 0)[: layout.size])
    optimiser = dog.DoG(module.parameters(), reps_rel=1e-3)
    data = points()
    for batch in task.batches:
        optimiser.zero_grad()
        x, y = torch.from_numpy(data.train_images[batch]), torch.from_numpy(data.train_labels[batch])
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    theirs = layout.flatten(module)
    ours = trained(LINEAR, DOG, Hyperparameters(1.0, 4, 16))
    np.testing.assert_allclose(ours[: len(theirs)], theirs, atol=1e-5)


def test_plain_sgd_is_left_to_the_epoch_of_the_task() -> None:
    runtime = task_runtime(LINEAR)
    assert rule_of(OptimiserConfig(), runtime) is None
    learner = Learner(LINEAR, np.arange(SAMPLES))
    learner.train(initial_weights(LINEAR, 0), CHOSEN, stream(1, "sgd"))
    assert learner.step_size is None
    assert [gradients_per_step(OptimiserConfig(kind=kind)) for kind in ("sgd", "delta-sgd", "dog")] == [
        1,
        2,
        1,
    ]


def test_delta_sgd_computes_the_gradients_that_it_is_charged_for() -> None:
    counted, runtime = [], task_runtime(LINEAR)

    class Counting:
        module, trained = runtime.module, runtime.trained

        def gradient(self, *batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
            counted.append(len(batch[0]))
            return runtime.gradient(*batch)

    epoch = DeltaSGD(DELTA, Counting()).epoch  # type: ignore[arg-type]
    data = points()
    order = torch.arange(SAMPLES)
    x, y = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    epoch(x, y, order, [16] * 5, CHOSEN)
    assert len(counted) == 2 * 5 - 1  # the first step has no step before it


def test_dog_goes_on_with_the_step_size_that_it_ended_with() -> None:
    learner, start = Learner(LINEAR, np.arange(SAMPLES), DOG), initial_weights(LINEAR, 0)
    first = learner.train(start, Hyperparameters(1.0, 4, 16), stream(1, "sgd"))
    last = learner.step_size
    assert last is not None and last > 0
    # One batch of all samples: a single step of that size.
    second = learner.train(first, Hyperparameters(1.0, 1, SAMPLES), stream(2, "sgd"))
    x = first.astype(np.float64)[: len(Softmax().start)]
    moved = x - last * Softmax().gradient(x, np.arange(SAMPLES))
    np.testing.assert_allclose(second[: len(x)], moved, atol=1e-5)
    assert learner.step_size == pytest.approx(last)
    # Whoever restores that one number goes on with the same bits.
    again = Learner(LINEAR, np.arange(SAMPLES), DOG)
    again.step_size = last
    assert (
        again.train(first, Hyperparameters(1.0, 1, SAMPLES), stream(2, "sgd")).tobytes() == second.tobytes()
    )


@pytest.mark.parametrize("optimiser", [DELTA, DOG], ids=lambda each: each.kind)
@pytest.mark.parametrize("task", [LINEAR, NORMALISED], ids=lambda task: task.name)
def test_the_same_arguments_give_the_same_bits(task: Task, optimiser: OptimiserConfig) -> None:
    first = trained(task, optimiser)
    trained(task, OptimiserConfig())
    assert trained(task, optimiser).tobytes() == first.tobytes()
    assert trained(task, OptimiserConfig()).tobytes() != first.tobytes()


def test_the_gradient_at_the_weights_before_leaves_no_trace() -> None:
    runtime, data = task_runtime(NORMALISED), points()
    runtime.weights.assign(initial_weights(NORMALISED, 0))
    runtime.module.train()
    rule = DeltaSGD(DELTA, runtime)
    x, y = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    elsewhere = tuple(weight.detach() + 1 for weight in runtime.trained)
    before, randomness = runtime.weights.flatten().copy(), torch.default_generator.get_state()
    first = rule._at(elsewhere, lambda: runtime.gradient(x, y))
    assert runtime.weights.flatten().tobytes() == before.tobytes()
    assert torch.equal(torch.default_generator.get_state(), randomness)
    again = rule._at(elsewhere, lambda: runtime.gradient(x, y))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))  # dropout too


def test_a_gradient_that_does_not_change_says_nothing_of_the_curvature() -> None:
    straight = Task(
        "straight", lambda: nn.Linear(FEATURES, CLASSES), points, loss=lambda outputs, _: outputs.mean()
    )
    chosen = Hyperparameters(0.2, 1, 40)
    weights, start = trained(straight, DELTA, chosen), initial_weights(straight, 0)
    assert np.isfinite(weights).all()
    # Two steps down a plane: η₀, then √1.1·η₀. The bias' gradient is 1/3 for each class.
    np.testing.assert_allclose(
        (start - weights)[CLASSES * FEATURES : CLASSES * (FEATURES + 1)],
        0.2 * (1 + math.sqrt(1.1)) / CLASSES,
        rtol=1e-4,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_diverges_shows_it(kind: str) -> None:
    broken = Task(
        "broken",
        lambda: nn.Linear(FEATURES, CLASSES),
        points,
        loss=lambda outputs, _: (outputs * math.inf).mean(),
    )
    assert not np.isfinite(trained(broken, OptimiserConfig(kind=kind))).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "changed"),
    [("delta-sgd", {"gamma": 0.1}), ("delta-sgd", {"delta": 2.0}), ("dog", {"first_distance": 1e-2})],
)
def test_every_constant_matters(kind: str, changed: dict[str, float]) -> None:
    usual = trained(LINEAR, OptimiserConfig(kind=kind))  # type: ignore[arg-type]
    assert trained(LINEAR, OptimiserConfig(kind=kind, **changed)).tobytes() != usual.tobytes()  # type: ignore[arg-type]
