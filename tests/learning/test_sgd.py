import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.data import Dataset
from dapfl.learning.models import CNN, Logistic, ResNet18
from dapfl.learning.runtime import task_runtime
from dapfl.learning.sgd import Evaluator, Learner, batch_lengths, initial_weights
from dapfl.learning.tasks import Task
from dapfl.randomness import stream


def images() -> Dataset:
    """Classes that differ by which rows are bright: easy to learn, quick to make."""
    rng = stream(0, "images")
    labels = rng.integers(0, 10, 400).astype(np.uint8)
    pixels = rng.integers(0, 80, (400, 28, 28)).astype(np.uint8)
    for label in range(10):
        pixels[labels == label, 2 * label : 2 * label + 3] += 150
    pixels.flags.writeable = labels.flags.writeable = False  # as memory-mapped files are
    return Dataset(pixels[:300], labels[:300], pixels[300:], labels[300:], 10)


class DroppingOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(784, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(nn.functional.dropout(x.flatten(1), 0.3, self.training))


LOGISTIC = Task("logistic", Logistic, images)
CONVOLUTIONS = Task("cnn", CNN, images)
RESIDUAL = Task("resnet", lambda: ResNet18(widths=(4, 4, 8, 8)), images)
DROPOUT = Task("dropout", DroppingOut, images)
TASKS = [LOGISTIC, CONVOLUTIONS, RESIDUAL, DROPOUT]


def name(task: Task) -> str:
    return task.name


USUAL = Hyperparameters(eta=0.1, alpha=2, batch_size=32)


def trained(task: Task, seed: int = 1, hyperparameters: Hyperparameters = USUAL) -> np.ndarray:
    learner = Learner(task, np.arange(100))
    return learner.train(initial_weights(task, 0), hyperparameters, stream(seed, "sgd"))


@pytest.mark.parametrize("task", [LOGISTIC, CONVOLUTIONS], ids=name)
def test_training_is_plain_sgd_over_shuffled_batches(task: Task) -> None:
    data, rng = images(), stream(1, "sgd")
    weights = initial_weights(task, 0)
    reference = task.build_model()
    layout = Learner(task, np.arange(100)).layout
    layout.assign(reference, weights)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1)
    x = torch.from_numpy(data.train_images[:100] / np.float32(255))
    y = torch.from_numpy(data.train_labels[:100].astype(np.int64))
    rng.integers(2**63)
    for _ in range(2):
        order = rng.permutation(100)
        for batch in (order[:32], order[32:64], order[64:96], order[96:]):
            optimiser.zero_grad()
            cross_entropy(reference(x[batch]), y[batch]).backward()
            optimiser.step()
    np.testing.assert_allclose(trained(task), layout.flatten(reference), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", TASKS, ids=name)
def test_the_same_arguments_give_the_same_bits(task: Task) -> None:
    first = trained(task)
    torch.manual_seed(12345)  # the global stream has no say
    trained(task, seed=9)  # nor what the shared module did in between
    assert trained(task).tobytes() == first.tobytes()
    assert trained(task, seed=2).tobytes() != first.tobytes()


@pytest.mark.processes
def test_another_process_gives_the_same_bits() -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += "from test_sgd import *\nfor t in TASKS: sys.stdout.write(trained(t).tobytes().hex() + '\\n')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [trained(task).tobytes().hex() for task in TASKS]


@pytest.mark.parametrize("task", [LOGISTIC, CONVOLUTIONS, RESIDUAL], ids=name)
def test_training_learns(task: Task) -> None:
    learner, evaluator, start = Learner(task, np.arange(300)), Evaluator(task), initial_weights(task, 0)
    result = learner.train(start, Hyperparameters(0.1, 8, 32), stream(0, "sgd"))
    assert learner.evaluate(result).loss < learner.evaluate(start).loss
    assert evaluator.evaluate(result).accuracy > 0.8 > evaluator.evaluate(start).accuracy


OTHER = Hyperparameters(eta=0.2, alpha=3, batch_size=16)


@pytest.mark.parametrize("task", [LOGISTIC, CONVOLUTIONS, RESIDUAL], ids=name)
@pytest.mark.parametrize("changed", Hyperparameters.names())
def test_every_hyper_parameter_matters(task: Task, changed: str) -> None:
    other = replace(USUAL, **{changed: getattr(OTHER, changed)})
    assert trained(task, hyperparameters=other).tobytes() != trained(task).tobytes()


def test_training_leaves_its_arguments_alone() -> None:
    weights = initial_weights(LOGISTIC, 0)
    before = weights.copy()
    Learner(LOGISTIC, np.arange(50)).train(weights, USUAL, stream(0, "sgd"))
    assert np.array_equal(weights, before)


def test_running_statistics_are_part_of_what_training_returns() -> None:
    before, after = initial_weights(RESIDUAL, 0), trained(RESIDUAL)
    for tensor in Learner(RESIDUAL, np.arange(50)).layout.tensors:
        if tensor.kind == "buffer":
            assert not np.array_equal(before[tensor.start : tensor.stop], after[tensor.start : tensor.stop])


def test_a_single_sample_left_over_does_not_break_batch_normalisation() -> None:
    weights = Learner(RESIDUAL, np.arange(65)).train(initial_weights(RESIDUAL, 0), USUAL, stream(0, "sgd"))
    assert np.isfinite(weights).all()


def test_every_sample_is_in_one_batch() -> None:
    for samples in range(1, 200):
        lengths = batch_lengths(samples, 32)
        assert sum(lengths) == samples
        assert max(lengths) <= 33
        assert 1 not in lengths or samples == 1
    assert batch_lengths(5, 1) == [1] * 5


def test_initial_weights_depend_on_the_seed_and_on_nothing_else() -> None:
    first = initial_weights(CONVOLUTIONS, 5)
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    assert np.array_equal(initial_weights(CONVOLUTIONS, 5), first)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not np.array_equal(initial_weights(CONVOLUTIONS, 6), first)


def test_evaluation_is_the_mean_over_all_samples_whatever_the_batches() -> None:
    data, weights = images(), trained(CONVOLUTIONS)
    metrics = Learner(CONVOLUTIONS, np.arange(300)).evaluate(weights)  # a batch of 256 and one of 44
    model = CNN()
    task_runtime(CONVOLUTIONS).layout.assign(model, weights)
    with torch.no_grad():
        outputs = model(torch.from_numpy(data.train_images / np.float32(255)))
    labels = torch.from_numpy(data.train_labels.astype(np.int64))
    assert metrics.loss == pytest.approx(float(cross_entropy(outputs, labels)), rel=1e-5)
    assert metrics.accuracy == float((outputs.argmax(1) == labels).double().mean())


def test_a_model_that_has_diverged_shows_it() -> None:
    weights = np.full_like(initial_weights(LOGISTIC, 0), np.nan)
    assert np.isnan(Learner(LOGISTIC, np.arange(50)).evaluate(weights).loss)


def test_learners_share_one_module_and_one_data_set() -> None:
    first, second = Learner(LOGISTIC, np.arange(50)), Learner(LOGISTIC, np.arange(50, 90))
    assert first._runtime is second._runtime
    assert (first.sample_count, second.sample_count) == (50, 40)
    assert torch.get_num_threads() == 1


def test_another_loss_is_not_trained_by_the_closed_form_of_the_cross_entropy() -> None:
    doubled = Task(
        "doubled", Logistic, images, loss=lambda outputs, labels: 2 * cross_entropy(outputs, labels)
    )
    halved = replace(USUAL, eta=USUAL.eta / 2)
    np.testing.assert_allclose(
        trained(doubled, hyperparameters=halved), trained(LOGISTIC), rtol=1e-4, atol=1e-5
    )


def test_a_learner_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Learner(LOGISTIC, np.arange(0))
