"""Flower's SecAgg+ in `bench target`: its real workflow and its real mod, on clients in this process."""

import time
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest

from dapfl.benchmarks.peers import flower_secagg
from dapfl.benchmarks.peers.flower import Reached, Scores, trained
from dapfl.benchmarks.peers.training import clients_of
from dapfl.benchmarks.peers.workload import Workload

pytest.importorskip("flwr")

CLIENTS = 8
WORK = Workload(task="logistic-mnist", clients=CLIENTS, rounds=1, epochs=12, trainer="dapfl", budgets=True)


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's processes have one, and messages are made with it."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


class Grid:
    """Hands every message to the client that it is for; one that raises has dropped out."""

    def __init__(self, work: Workload) -> None:
        from flwr.app import Context, RecordDict

        self.run = SimpleNamespace(run_id=1)
        self.app = flower_secagg.client_app(work)
        self.contexts = {
            100 + client: Context(1, 100 + client, {"partition-id": client}, RecordDict(), {})
            for client in range(work.clients)
        }
        self.dropped = 0

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        from flwr.app import Error, Message

        try:
            return self.app(deepcopy(message), self.contexts[message.metadata.dst_node_id])
        except RuntimeError:
            self.dropped += 1
            return Message(Error(code=1), reply_to=message)


class SeenScores(Scores):
    """Keeps the models that are scored."""

    def add(self, weights) -> float:
        self.models = [*getattr(self, "models", []), weights]
        return super().add(weights)


def played(work: Workload) -> tuple[Grid, SeenScores]:
    from flwr.app import Context, RecordDict

    clients = clients_of(work)
    grid, scores = Grid(work), SeenScores(work, clients, time.perf_counter())
    context = Context(1, 0, {}, RecordDict(), {})
    flower_secagg.server(grid, context, work, clients.initial(), scores)
    return grid, scores


def test_secagg_gives_the_mean_of_those_who_stay_within_their_budgets() -> None:
    grid, scores = played(WORK)
    clients = clients_of(WORK)
    initial = clients.initial()
    able = [i for i in range(CLIENTS) if WORK.affordable(i, 0, len(clients.indices[i]))]
    assert 0 < grid.dropped == CLIENTS - len(able)
    locals_, samples, _ = zip(*(trained(WORK, initial, client, 1) for client in able), strict=True)
    np.testing.assert_array_equal(scores.models[0], initial)
    # Flower rounds weights to steps of 16/2^22, and the mean may be off by as much for each client.
    np.testing.assert_allclose(scores.models[1], np.average(locals_, 0, samples), atol=4e-5)
    assert scores.report().accuracies == [clients.test_accuracy(scores.models[1])]


def test_secagg_ends_when_the_target_is_reached() -> None:
    with pytest.raises(Reached):
        played(Workload(task="logistic-mnist", clients=CLIENTS, rounds=3, trainer="dapfl", target=0.2))


def test_clients_beyond_their_budget_say_so() -> None:
    initial = clients_of(WORK).initial()
    weak = next(i for i in range(CLIENTS) if not WORK.affordable(i, 0, len(clients_of(WORK).indices[i])))
    with pytest.raises(RuntimeError, match="run out of its budget"):
        trained(WORK, initial, weak, 1)
