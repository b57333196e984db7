"""The workload in Flower's simulation, with its ServerApp, its FedAvg strategy and its ray back end."""

import os
import sys
import time
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from dapfl.benchmarks.peers.workload import PeerReport, Workload

INSTALL = "pip install 'flwr[simulation]==1.41.0'"


class _Reached(Exception):
    """The model is as good as it was asked to become."""


def client_app(workload: Workload) -> Any:
    """A ClientApp that trains as the client of its partition."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        from dapfl.benchmarks.peers.training import clients_of

        (weights,) = message.content["arrays"].to_numpy_ndarrays()
        client = int(context.node_config["partition-id"])
        round_ = int(message.content["config"]["server-round"])
        clients = clients_of(workload)
        if not workload.affordable(client, round_ - 1, len(clients.indices[client])):
            raise RuntimeError("this device has run out of its budget")
        trained, samples, loss = clients.train(weights, client, round_)
        content: dict[str, Any] = {
            "arrays": ArrayRecord([trained]),
            "metrics": MetricRecord({"num-examples": samples, "loss": loss}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server_app(workload: Workload, report: dict[str, PeerReport]) -> Any:
    """A ServerApp that runs FedAvg and notes when each round ended."""
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    from dapfl.benchmarks.peers.training import clients_of

    began = time.perf_counter()
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        clients = clients_of(workload)
        ends: list[float] = []
        scores: list[float] = []

        def score(_: int, arrays: Any) -> Any:
            (weights,) = arrays.to_numpy_ndarrays()
            scores.append(clients.test_accuracy(np.ascontiguousarray(weights)))
            ends.append(time.perf_counter())
            if workload.target is not None and scores[-1] >= workload.target:
                raise _Reached
            return MetricRecord({"accuracy": scores[-1]})

        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=workload.clients)
        reached = None
        try:
            strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord([clients.initial()]),
                num_rounds=workload.rounds,
                evaluate_fn=score,
            )
        except _Reached:
            reached = time.time()
        seconds = [end - start for start, end in pairwise(ends)]
        report["flower"] = PeerReport(
            start_seconds=ends[0] - began,
            round_seconds=seconds,
            accuracy=scores[-1],
            processes=os.cpu_count() or 1,
            accuracies=scores[1:],
            reached=reached,
        )

    return app


def main(text: str) -> int:
    """Runs the workload given as JSON and prints a PeerReport."""
    from flwr.simulation import run_simulation

    workload = msgspec.json.decode(text, type=Workload)
    report: dict[str, PeerReport] = {}
    run_simulation(
        server_app=server_app(workload, report),
        client_app=client_app(workload),
        num_supernodes=workload.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    report["flower"].say()
    return 0


if __name__ == "__main__":
    # The module is imported under its own name, so that ray finds its functions there.
    from dapfl.benchmarks.peers import flower

    sys.exit(flower.main(sys.argv[1]))
