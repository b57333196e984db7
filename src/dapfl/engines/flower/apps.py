"""Dap-FL inside a Flower app of your own: a ClientApp and a ServerApp in a line each.

    app = client_app(CONFIG, POLICY)          # client_app.py of the Flower app
    app = server_app(CONFIG, on_round=print)  # server_app.py

A node finds its keys in the folder that its node config names as `keys` (or the run config, in a simulation,
where there is one folder for all), and keeps its state in the folder `state-dir`, or in `Context.state`.
`examples/flower-app` is such an app.
"""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from dapfl.config import PolicyConfig, RunConfig
from dapfl.engines.flower.bundles import client_bundle, server_bundle
from dapfl.engines.flower.participant import FolderMemory, Memory, Participant
from dapfl.engines.flower.roll import Roll, pack_name
from dapfl.engines.flower.transport import FlowerTransport, on_the_way, pack, pack_failure, unpack
from dapfl.engines.flower.worker import failure_code
from dapfl.errors import KeyFileError, TransportError
from dapfl.federation.assembly import Shared, build_client, build_federation
from dapfl.federation.client import Client
from dapfl.federation.models import Vector
from dapfl.federation.records import RoundRecord
from dapfl.federation.transport import ClientId

_RECORD = "dapfl-state"


class ContextMemory:
    """A client's state in Flower's `Context.state`: lasts as long as the node, enough for a simulation."""

    def __init__(self, context: Context) -> None:
        self._records = context.state

    def load(self) -> bytes | None:
        """The last state, or None."""
        record = self._records.config_records.get(_RECORD)
        state = record["state"] if record is not None else None
        return state if isinstance(state, bytes) else None

    def save(self, state: bytes) -> None:
        """Replaces the state."""
        self._records[_RECORD] = ConfigRecord({"state": state})


def client_app(config: RunConfig, policy: PolicyConfig) -> ClientApp:
    """The ClientApp of a federation; node n of Flower's partition is client n + 1."""
    app = ClientApp()

    @app.query()
    def name(message: Message, context: Context) -> Message:
        return Message(pack_name(_client(context)), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            participant = Participant(lambda: _build(config, policy, context), _memory(context))
            content = pack(participant.answer(unpack(message.content), on_the_way(message)))
        except Exception as error:
            traceback.print_exc()  # stays on this device
            content = pack_failure(failure_code(error))
        return Message(content, reply_to=message)

    return app


def server_app(
    config: RunConfig,
    *,
    selection: Literal["all", "ddpg-client"] = "all",
    on_round: Callable[[RoundRecord], object] = print,
    on_end: Callable[[Vector], object] = lambda weights: None,
    patience: float = 120.0,
) -> ServerApp:
    """The ServerApp of a federation: plays all rounds, and hands the last global model to `on_end`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        bundle = server_bundle(_keys(context), config.crypto)
        transport = FlowerTransport(grid, Roll(config.clients))
        missing = transport.wait_for(set(range(1, config.clients + 1)), patience)
        if config.clients - len(missing) < config.min_cohort:
            raise TransportError(
                f"Too few clients are online after {patience:.0f} s: {sorted(missing)} are not."
            )
        federation = build_federation(config, selection, bundle, transport, carried=True)
        for record in federation.rounds(config.rounds):
            on_round(record)
        on_end(federation.weights)

    return app


def _client(context: Context) -> ClientId:
    return int(context.node_config["partition-id"]) + 1


def _keys(context: Context) -> Path:
    try:
        return Path(str(context.node_config.get("keys") or context.run_config["keys"]))
    except KeyError:
        raise KeyFileError(
            "No folder of keys is named: neither in the node config nor in the run config."
        ) from None


def _memory(context: Context) -> Memory:
    folder = context.node_config.get("state-dir")
    return FolderMemory(Path(str(folder))) if folder else ContextMemory(context)


def _build(config: RunConfig, policy: PolicyConfig, context: Context) -> Client:
    client = _client(context)
    bundle = client_bundle(_keys(context), client, config.crypto)
    return build_client(config, policy, client, bundle, Shared(config), standalone=True)
