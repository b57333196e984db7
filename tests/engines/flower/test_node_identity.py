"""Which node is which client, found out by asking."""

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dapfl.engines.flower.apps.node_identity import LookupByQuery, pack_identity
from tests.engines.flower.simulation import Simulation, inside_an_app


@pytest.fixture(autouse=True)
def _inside_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    inside_an_app(monkeypatch, 1)


def test_a_node_that_gives_no_valid_client_number_is_ignored() -> None:
    app = ClientApp()
    answers = iter(
        [pack_identity(2), pack_identity(7), RecordDict(), RecordDict({"dapfl-client": ConfigRecord()})]
    )

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(next(answers), reply_to=message)

    grid = Simulation(app, 4)
    lookup = LookupByQuery(3)
    assert lookup(grid) == {2: 100}
    assert lookup(grid) == {2: 100}
    assert len(grid.kinds) == 4  # each node is asked once
    assert lookup.refusals == dict.fromkeys([101, 102, 103], "unknown-client")


def test_a_node_that_is_offline_is_not_listed() -> None:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(pack_identity(int(context.node_config["partition-id"]) + 1), reply_to=message)

    grid = Simulation(app, 3)
    lookup = LookupByQuery(3)
    assert lookup(grid) == {1: 100, 2: 101, 3: 102}
    del grid.contexts[101]
    assert lookup(grid) == {1: 100, 3: 102}


def test_a_node_that_was_no_client_is_asked_again() -> None:
    answers = {100: pack_identity(1)}
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(answers[context.node_id], reply_to=message)

    grid = Simulation(app, 2)
    lookup = LookupByQuery(3)
    assert lookup(grid) == {1: 100}
    assert lookup.refusals == {101: "client-app-failed"}
    answers[101] = pack_identity(2)
    assert lookup(grid) == {1: 100}
    lookup.ask_again()
    assert lookup(grid) == {1: 100, 2: 101}
    assert lookup.refusals == {}
