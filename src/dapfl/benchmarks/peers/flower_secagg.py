"""The workload in Flower's simulation with its SecAgg+, which it offers for its old interface only.

Shares as in Flower's own example: every client's secrets for 7 clients, any 4 of which restore them. A server
that follows the protocol cannot read a client's model; nothing is signed. A client that gives up before it
has sent its masked model is left out; a round for which too few are left gives no new model.
"""

import sys
from typing import Any

import msgspec

from dapfl.arrays import Vector
from dapfl.benchmarks.peers.flower import Scores, simulate, trained
from dapfl.benchmarks.peers.workload import Workload

SHARES = 7
THRESHOLD = 4


def client_app(workload: Workload) -> Any:
    """A ClientApp that trains as the client of its partition, and masks what comes of it."""
    from flwr.client import NumPyClient
    from flwr.client.mod import secaggplus_mod
    from flwr.clientapp import ClientApp

    class Client(NumPyClient):
        def __init__(self, client: int) -> None:
            self._client = client

        def fit(self, parameters: list[Any], config: Any) -> tuple[list[Any], int, dict[str, Any]]:
            local, samples, loss = trained(workload, parameters[0], self._client, int(config["server-round"]))
            return [local], samples, {"loss": loss}

    def client(context: Any) -> Any:
        return Client(int(context.node_config["partition-id"])).to_client()

    return ClientApp(client_fn=client, mods=[secaggplus_mod])


def server(grid: Any, context: Any, workload: Workload, initial: Vector, scores: Scores) -> None:
    """FedAvg, over sums that only all masked models together give."""
    from flwr.common import ndarrays_to_parameters
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

    def score(_: int, weights: list[Any], __: Any) -> tuple[float, dict[str, Any]]:
        return 0.0, {"accuracy": scores.add(weights[0])}

    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_available_clients=workload.clients,
        initial_parameters=ndarrays_to_parameters([initial]),
        evaluate_fn=score,
        on_fit_config_fn=lambda round_: {"server-round": round_},
    )
    secure = SecAggPlusWorkflow(num_shares=SHARES, reconstruction_threshold=THRESHOLD)
    config = ServerConfig(num_rounds=workload.rounds)
    DefaultWorkflow(fit_workflow=secure)(grid, LegacyContext(context, config, strategy))


def main(text: str) -> int:
    """Runs the workload given as JSON and prints a PeerReport."""
    workload = msgspec.json.decode(text, type=Workload)
    simulate(workload, client_app(workload), server).say()
    return 0


if __name__ == "__main__":
    # The module is imported under its own name, so that ray finds its functions there.
    from dapfl.benchmarks.peers import flower_secagg

    sys.exit(flower_secagg.main(sys.argv[1]))
