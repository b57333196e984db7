"""Tasks beyond classification by plain SGD: regression, next tokens, metrics and optimisers of one's own."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dapfl.config import RunConfig, override
from dapfl.errors import ConfigError, TaskError
from dapfl.federation.assembly import Shared, build_client, build_federation
from dapfl.federation.records import RoundRecord
from dapfl.federation.run_keys import make_keys
from dapfl.federation.transport import LocalTransport
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.data import Dataset
from dapfl.learning.partition import partition
from dapfl.learning.runtime import task_runtime
from dapfl.learning.sgd import Learner, initial_weights
from dapfl.learning.tasks import Task, register
from dapfl.randomness import stream
from dapfl.runs.settings import resolve


def diabetes() -> Dataset:
    """How a disease went on, by ten measurements: scikit-learn's, in units of one deviation."""
    from sklearn.datasets import load_diabetes

    features, progress = load_diabetes(return_X_y=True)
    inputs = (features / features.std(0)).astype(np.float32)
    targets = ((progress - progress.mean()) / progress.std()).astype(np.float32)[:, None]
    return Dataset(inputs[:342], targets[:342], inputs[342:], targets[342:])


def absolute_error(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs - labels).abs().mean())


REGRESSION = Task(
    "diabetes", lambda: nn.Linear(10, 1), diabetes, nn.MSELoss(), metrics={"mae": absolute_error}
)


class NextCharacter(nn.Module):
    """The next character by the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Embedding(27, 27)

    def forward(self, text: Tensor) -> Tensor:
        return self.logits(text).transpose(1, 2)


def rhyme() -> Dataset:
    words = "the cat sat on the mat and the rat ran from the cat " * 40
    codes = np.array([0 if c == " " else ord(c) - 96 for c in words], np.int64)
    rows = codes[: len(codes) // 21 * 21].reshape(-1, 21)
    return Dataset(rows[:, :20], rows[:, 1:], rows[:20, :20], rows[:20, 1:], classes=27)


TOKENS = Task("next-character", NextCharacter, rhyme)


def run(task: Task, rounds: int, **setting: object) -> list[RoundRecord]:
    changes = {
        **setting,
        "task": register(task),
        "clients": 3,
        "rounds": rounds,
        "mean_samples": 25 if task is TOKENS else 100,
        "std_samples": 0,
        "crypto.encryption": "none",
    }
    config = override(RunConfig(), changes)
    keys, shared, policy = make_keys(config), Shared(config), resolve(config).policy
    clients = {i: build_client(config, policy, i, None, shared) for i in keys.clients}
    return list(build_federation(config, "all", None, LocalTransport(clients)).rounds(rounds))


def test_a_regression_is_learned_without_an_accuracy() -> None:
    records = run(REGRESSION, 4, setting="fixed-capped", eta=0.02, alpha=5)
    losses = [record.loss for record in records]
    assert all(loss is not None and math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.8  # the mean of all would have 1
    assert all(record.accuracy is None and record.f1 is None for record in records)
    assert all(0 < record.metrics["mae"] < 2 for record in records)
    assert [record.participants for record in records] == [3] * 4
    assert RoundRecord.from_json(records[0].to_json()).metrics == records[0].metrics


def test_an_agent_goes_by_the_loss_where_there_is_no_accuracy() -> None:
    first, second = run(REGRESSION, 2, setting="dap-fl")
    assert first.clients[0].state[0] > 0 and first.clients[0].state[1:] == (None, None)
    assert {"loss", "accuracy"} <= second.clients[0].reward_parts.keys()
    assert second.clients[0].reward_parts["accuracy"] == 0


def test_next_tokens_are_learned() -> None:
    records = run(TOKENS, 4, setting="fixed-capped", eta=3.0, alpha=5)
    assert records[-1].loss < records[0].loss
    assert records[-1].accuracy > 0.3


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda weights, eta: torch.optim.SGD(weights, lr=eta, momentum=0.9),
        lambda weights, eta: torch.optim.Adam(weights, lr=eta),
    ],
    ids=["momentum", "adam"],
)
def test_a_task_may_choose_its_optimiser(optimizer: object) -> None:
    plain = Learner(REGRESSION, np.arange(100))
    other = Learner(
        Task("other", REGRESSION.build_model, diabetes, nn.MSELoss(), optimizer=optimizer),  # type: ignore[arg-type]
        np.arange(100),
    )
    start = initial_weights(REGRESSION, seed=1)
    chosen = Hyperparameters(0.01, 3, 32)
    moved = other.train(start, chosen, stream(1, "sgd"))
    assert other.evaluate(moved).loss < other.evaluate(start).loss
    assert not np.array_equal(moved, plain.train(start, chosen, stream(1, "sgd")))
    # Nothing of one round is remembered in the next.
    assert np.array_equal(moved, other.train(start, chosen, stream(1, "sgd")))


def test_plain_sgd_by_an_optimiser_is_plain_sgd() -> None:
    same = Task(
        "same",
        REGRESSION.build_model,
        diabetes,
        nn.MSELoss(),
        optimizer=lambda weights, eta: torch.optim.SGD(weights, lr=eta),
    )
    start, chosen = initial_weights(REGRESSION, seed=1), Hyperparameters(0.05, 2, 32)
    results = [
        Learner(task, np.arange(64)).train(start, chosen, stream(1, "sgd")) for task in (REGRESSION, same)
    ]
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_labels_that_are_no_numbers_are_said() -> None:
    inputs = np.zeros((4, 2), np.float32)
    wrong = np.array([0, 1, 0, 1])
    task = Task("forgotten", lambda: nn.Linear(2, 2), lambda: Dataset(inputs, wrong, inputs, wrong))
    with pytest.raises(TaskError, match=r"finite floats.*classes=10"):
        task_runtime(task)
    nan = np.full((4, 1), np.nan, np.float32)
    with pytest.raises(TaskError, match="finite floats"):
        task_runtime(Task("nan", lambda: nn.Linear(2, 1), lambda: Dataset(inputs, nan, inputs, nan)))


def test_outputs_of_another_shape_than_the_labels_are_said() -> None:
    inputs, flat = np.zeros((4, 2), np.float32), np.zeros(4, np.float32)
    task = Task("flat", lambda: nn.Linear(2, 1), lambda: Dataset(inputs, flat, inputs, flat), nn.MSELoss())
    with pytest.raises(TaskError, match=r"shape \(2, 1\).*must be \(2,\), like the labels"):
        task_runtime(task)


def test_numbers_have_no_dirichlet_partition() -> None:
    with pytest.raises(ConfigError, match="no classes"):
        partition(np.zeros(100, np.float32), 2, seed=0, scheme="dirichlet:0.3", mean=30, std=0)
