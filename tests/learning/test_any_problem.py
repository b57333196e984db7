"""Tasks beyond classification by plain SGD: regression, next tokens, metrics and optimisers of one's own."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dapfl.config import RunConfig, override
from dapfl.errors import ConfigError, DataError, TaskError
from dapfl.federation.assembly import build_client, build_federation
from dapfl.federation.records import RoundRecord
from dapfl.federation.run_keys import make_keys
from dapfl.federation.run_terms import Shared
from dapfl.federation.transport import LocalTransport
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.data import Dataset
from dapfl.learning.partition import partition
from dapfl.learning.runtime import task_runtime
from dapfl.learning.sgd import Learner, initial_weights
from dapfl.learning.tasks import MakeOptimizer, Task, get_task, register
from dapfl.randomness import stream
from dapfl.runs.settings import resolve

EXAMPLES = Path(__file__).parents[2] / "examples"
REGRESSION = get_task(f"{EXAMPLES / 'regression.py'}:diabetes")
ADAM = get_task(f"{EXAMPLES / 'regression.py'}:adam")
TOKENS = get_task(f"{EXAMPLES / 'next_token.py'}:characters")


def run(task: Task, rounds: int, **setting: object) -> list[RoundRecord]:
    changes = {
        **setting,
        "task": register(task),
        "clients": 3,
        "rounds": rounds,
        "mean_samples": 200 if task is TOKENS else 100,
        "std_samples": 0,
        "crypto.encryption": "none",
    }
    config = override(RunConfig(), changes)
    keys, policy = make_keys(config), resolve(config).policy
    shared = Shared(config, policy)
    clients = {i: build_client(config, policy, i, None, shared) for i in keys.clients}
    transport = LocalTransport(clients)
    federation = build_federation(config, "all", None, transport, step=policy.server_step)
    return list(federation.rounds(rounds))


def test_a_regression_is_learned_without_an_accuracy() -> None:
    records = run(REGRESSION, 4, setting="fixed-capped", eta=0.02, alpha=5)
    losses = [record.loss for record in records]
    assert all(loss is not None and math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.8  # the mean of all would have 1
    assert all(record.accuracy is None and record.f1 is None for record in records)
    assert all(0 < record.metrics["mean_absolute_error"] < 2 for record in records)
    assert [record.participants for record in records] == [3] * 4
    assert RoundRecord.from_json(records[0].to_json()).metrics == records[0].metrics


def test_an_agent_goes_by_the_loss_where_there_is_no_accuracy() -> None:
    first, second = run(REGRESSION, 2, setting="dap-fl")
    assert first.clients[0].state[0] > 0 and first.clients[0].state[1:] == (None, None)
    assert {"loss", "accuracy"} <= second.clients[0].reward_parts.keys()
    assert second.clients[0].reward_parts["accuracy"] == 0


def test_next_tokens_are_learned() -> None:
    records = run(TOKENS, 3, setting="fixed-capped", eta=0.3, alpha=2)
    assert records[-1].loss < records[0].loss < math.log(128)
    assert records[-1].accuracy > 0.15  # always a space would have about that


def test_many_labels_at_once_are_floats_too() -> None:
    inputs = np.eye(4, dtype=np.float32)
    labels = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0]], np.float32)
    data = Dataset(inputs, labels, inputs, labels)
    task = Task("tags", lambda: nn.Linear(4, 3), lambda: data, nn.BCEWithLogitsLoss())
    learner, start = Learner(task, np.arange(4)), initial_weights(task, seed=1)
    moved = learner.train(start, Hyperparameters(1.0, 5, 2), stream(1, "sgd"))
    assert learner.evaluate(moved).loss < learner.evaluate(start).loss


@pytest.mark.parametrize(
    "optimizer",
    [lambda weights, eta: torch.optim.SGD(weights, lr=eta, momentum=0.9), ADAM.optimizer],
    ids=["momentum", "adam"],
)
def test_a_task_may_choose_its_optimiser(optimizer: MakeOptimizer) -> None:
    plain = Learner(REGRESSION, np.arange(100))
    other = Learner(
        replace(REGRESSION, optimizer=optimizer),
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
    same = replace(REGRESSION, optimizer=lambda weights, eta: torch.optim.SGD(weights, lr=eta))
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


def test_lists_are_said() -> None:
    inputs, labels = [[0.0, 1.0]] * 4, np.array([0, 1, 0, 1])
    task = Task("lists", lambda: nn.Linear(2, 2), lambda: Dataset(inputs, labels, inputs, labels, 2))  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"training samples of task lists are a list.*numpy\.array"):
        task_runtime(task)


def test_one_logit_for_two_classes_is_said_with_the_way_out() -> None:
    inputs, labels = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    task = Task("single", lambda: nn.Linear(2, 1), lambda: Dataset(inputs, labels, inputs, labels, 2))
    with pytest.raises(TaskError, match=r"\(2, 1\).*must be \(2, 2\).*classes=0.*BCEWithLogitsLoss"):
        task_runtime(task)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_test_samples_that_mean_nothing_are_said(wrong: float) -> None:
    inputs, labels = np.zeros((6, 2), np.float32), np.array([0, 1, 0, 1, 0, 1])
    spoilt = inputs.copy()
    spoilt[3:, 1] = wrong
    task = Task("spoilt", lambda: nn.Linear(2, 2), lambda: Dataset(inputs, labels, spoilt, labels, 2))
    with pytest.raises(TaskError, match=r"3 of its 6 test samples, the first in row 3"):
        task_runtime(task)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_training_samples_that_mean_nothing_are_said_before_training(wrong: float) -> None:
    inputs, labels = np.zeros((6, 2), np.float32), np.array([0, 1, 0, 1, 0, 1])
    spoilt = inputs.copy()
    spoilt[4, 0] = wrong
    task = Task("spoilt", lambda: nn.Linear(2, 2), lambda: Dataset(spoilt, labels, inputs, labels, 2))
    with pytest.raises(DataError, match=r"1 of this client's 3 training samples.*training sample 4 "):
        Learner(task, np.array([3, 4, 5])).evaluate(initial_weights(task, seed=0))


def test_numbers_have_no_dirichlet_partition() -> None:
    with pytest.raises(ConfigError, match="no classes"):
        partition(np.zeros(100, np.float32), 2, seed=0, scheme="dirichlet:0.3", mean=30, std=0)
