"""A Flower app of one's own with Dap-FL inside: its two apps, with a Grid that calls the clients itself."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from dapfl.config import RunConfig, override
from dapfl.engines.flower.apps import client_app, server_app
from dapfl.engines.flower.roll import Roll, pack_name
from dapfl.experiments.settings import resolve
from dapfl.federation.assembly import Shared, build_client, build_federation, make_keys, save_keys
from dapfl.federation.records import RoundRecord
from dapfl.federation.transport import LocalTransport

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-app"
CONFIG = override(
    RunConfig(),
    {
        "task": f"{Path(__file__).with_name('tiny_task.py')}:TASK",
        "clients": 3,
        "rounds": 3,
        "mean_samples": 60,
        "std_samples": 10,
        "crypto.key_bits": 512,
        "crypto.engine": "gmp",
        "crypto.allow_insecure_small_keys": True,
    },
)


@pytest.fixture(autouse=True)
def _inside_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Simulation:
    """As much of Flower's simulation as the apps can tell: node 100 + i has partition i."""

    def __init__(self, app: ClientApp, nodes: int, keys: Path) -> None:
        self.app = app
        self.contexts = {
            100 + i: Context(
                run_id=1,
                node_id=100 + i,
                node_config={"partition-id": i, "num-partitions": nodes},
                state=RecordDict(),
                run_config={"keys": str(keys)},
                series_id=1,
            )
            for i in range(nodes)
        }
        self.waiting: dict[str, Message] = {}
        self.kinds: list[str] = []

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: list[Message]) -> list[str]:
        names = []
        for message in messages:
            name = f"m{len(self.kinds)}"
            self.kinds.append(message.metadata.message_type)
            message.metadata.__dict__["_message_id"] = name
            self.waiting[name] = message
            names.append(name)
        return names

    def pull_messages(self, names: list[str]) -> list[Message]:
        return [self.deliver(self.waiting.pop(name)) for name in names if name in self.waiting]

    def deliver(self, message: Message) -> Message:
        return self.app(message, self.contexts[message.metadata.dst_node_id])


def expected(config: RunConfig, keys: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    policy, shared = resolve(config).policy, Shared(config)
    clients = {i: build_client(config, policy, i, keys.clients[i], shared) for i in keys.clients}
    federation = build_federation(config, "all", keys.server, LocalTransport(clients))
    for _ in federation.rounds(config.rounds):
        pass
    return federation.weights


def test_both_apps_together_make_the_same_model_as_any_engine(tmp_path: Path) -> None:
    keys = make_keys(CONFIG)
    save_keys(tmp_path, keys)
    records: list[RoundRecord] = []
    models: list[np.ndarray[Any, np.dtype[np.float32]]] = []
    grid = Simulation(client_app(CONFIG, resolve(CONFIG).policy), 3, tmp_path)
    app = server_app(CONFIG, on_round=records.append, on_end=models.append)
    context = Context(
        run_id=1,
        node_id=0,
        node_config={},
        state=RecordDict(),
        run_config={"keys": str(tmp_path)},
        series_id=1,
    )
    app(grid, context)
    assert [record.round for record in records] == [0, 1, 2]
    assert all(client.status == "accepted" for record in records for client in record.clients)
    assert np.array_equal(models[0], expected(CONFIG, keys))
    # The clients remember in Flower's own memory, and every round was one exchange (and one at the end).
    assert all("dapfl-state" in context.state for context in grid.contexts.values())
    assert grid.kinds.count("query") == 3
    assert grid.kinds.count("train") == 3 * 3 + 3


def test_a_client_app_without_keys_gives_a_name_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = Simulation(client_app(CONFIG, resolve(CONFIG).policy), 1, tmp_path / "nowhere")
    from dapfl.engines.flower.transport import FlowerTransport

    assert FlowerTransport(grid, Roll(3)).exchange({1: b"hello"}, 5).failures == {1: "no-usable-keys"}
    assert "nowhere" in capsys.readouterr().err  # on the device


def test_nodes_that_say_nonsense_about_themselves_are_nobody() -> None:
    app = ClientApp()
    answers = iter([pack_name(2), pack_name(7), RecordDict(), RecordDict({"dapfl-client": ConfigRecord()})])

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(next(answers), reply_to=message)

    grid = Simulation(app, 4, Path())
    roll = Roll(3)
    assert roll(grid) == {2: 100}
    assert roll(grid) == {2: 100}
    assert len(grid.kinds) == 4  # everyone is asked once


def test_a_node_that_has_gone_is_not_offered() -> None:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(pack_name(int(context.node_config["partition-id"]) + 1), reply_to=message)

    grid = Simulation(app, 3, Path())
    roll = Roll(3)
    assert roll(grid) == {1: 100, 2: 101, 3: 102}
    del grid.contexts[101]
    assert roll(grid) == {1: 100, 3: 102}


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_example_is_a_flower_app(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.cli.build import build_fab_from_disk
    from flwr.clientapp import ClientApp as FlowerClientApp
    from flwr.serverapp import ServerApp

    assert len(build_fab_from_disk(EXAMPLE)) < 100_000
    monkeypatch.syspath_prepend(str(EXAMPLE))
    modules: list[ModuleType] = []
    for name in ("wards.client_app", "wards.server_app"):
        __import__(name)
        modules.append(sys.modules[name])
    assert isinstance(modules[0].app, FlowerClientApp)
    assert isinstance(modules[1].app, ServerApp)
    for name in [name for name in sys.modules if name.split(".")[0] == "wards"]:
        monkeypatch.delitem(sys.modules, name)
