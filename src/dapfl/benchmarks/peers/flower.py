"""The workload in Flower's simulation, with its ServerApp, its FedAvg strategy and its ray back end."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dapfl.arrays import Vector
from dapfl.benchmarks.peers.workload import PeerReport, Workload

if TYPE_CHECKING:
    from dapfl.benchmarks.peers.training import PeerClients

INSTALL = "pip install 'flwr[simulation]==1.41.0'"


class Reached(Exception):
    """The model is as good as it was asked to become."""


class Scores:
    """What the server notes: the test accuracy after every round, and when the round ended."""

    def __init__(self, workload: Workload, clients: "PeerClients", began: float) -> None:
        self._workload = workload
        self._clients = clients
        self._began = began
        self._ends: list[float] = []
        self._accuracies: list[float] = []
        self._reached: float | None = None

    def add(self, weights: Vector) -> float:
        """The accuracy of a model, first of W(0), then after every round; raises Reached at the target."""
        accuracy = self._clients.test_accuracy(np.ascontiguousarray(weights))
        self._accuracies.append(accuracy)
        self._ends.append(time.perf_counter())
        if self._workload.target is not None and accuracy >= self._workload.target:
            self._reached = time.time()
            raise Reached
        return accuracy

    def report(self) -> PeerReport:
        """All of it, once the run has ended."""
        return PeerReport(
            start_seconds=self._ends[0] - self._began,
            round_seconds=[end - start for start, end in pairwise(self._ends)],
            accuracy=self._accuracies[-1],
            processes=os.cpu_count() or 1,
            accuracies=self._accuracies[1:],
            reached=self._reached,
        )


def trained(workload: Workload, weights: Vector, client: int, round_: int) -> tuple[Vector, int, float]:
    """What a client (from 0) makes of the weights in a round (from 1); RuntimeError beyond its budget."""
    from dapfl.benchmarks.peers.training import clients_of

    clients = clients_of(workload)
    if not workload.affordable(client, round_ - 1, len(clients.indices[client])):
        raise RuntimeError("this device has run out of its budget")
    return clients.train(weights, client, round_)


def client_app(workload: Workload) -> Any:
    """A ClientApp that trains as the client of its partition."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        (weights,) = message.content["arrays"].to_numpy_ndarrays()
        client = int(context.node_config["partition-id"])
        round_ = int(message.content["config"]["server-round"])
        local, samples, loss = trained(workload, weights, client, round_)
        content: dict[str, Any] = {
            "arrays": ArrayRecord([local]),
            "metrics": MetricRecord({"num-examples": samples, "loss": loss}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server(grid: Any, _: Any, workload: Workload, initial: Vector, scores: Scores) -> None:
    """FedAvg, with the strategies of today."""
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp.strategy import FedAvg

    def score(_: int, arrays: Any) -> Any:
        (weights,) = arrays.to_numpy_ndarrays()
        return MetricRecord({"accuracy": scores.add(weights)})

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=workload.clients)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([initial]),
        num_rounds=workload.rounds,
        evaluate_fn=score,
    )


def simulate(workload: Workload, client_app: Any, server: Callable[..., None]) -> PeerReport:
    """Runs the workload in Flower's simulation."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from dapfl.benchmarks.peers.training import clients_of

    server_app = ServerApp()
    reports: list[PeerReport] = []
    began = time.perf_counter()

    @server_app.main()
    def main(grid: Any, context: Any) -> None:
        clients = clients_of(workload)
        scores = Scores(workload, clients, began)
        with suppress(Reached):
            server(grid, context, workload, clients.initial(), scores)
        reports.append(scores.report())

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=workload.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    (report,) = reports
    return report


def main(text: str) -> int:
    """Runs the workload given as JSON and prints a PeerReport."""
    workload = msgspec.json.decode(text, type=Workload)
    simulate(workload, client_app(workload), server).say()
    return 0


if __name__ == "__main__":
    # The module is imported under its own name, so that ray finds its functions there.
    from dapfl.benchmarks.peers import flower

    sys.exit(flower.main(sys.argv[1]))
