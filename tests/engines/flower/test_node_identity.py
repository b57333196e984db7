"""Which node is which client, found out by asking."""

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
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


def test_a_node_that_comes_later_does_not_take_the_place_of_a_client() -> None:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(pack_identity(1), reply_to=message)

    grid = Simulation(app, 2)
    late = grid.contexts.pop(101)
    lookup = LookupByQuery(3)
    assert lookup(grid) == {1: 100}
    grid.contexts[101] = late
    assert lookup(grid) == {1: 100}
    assert lookup.refusals == {101: "client-twice"}
    del grid.contexts[100]  # the client has a new node, and its old one is gone
    assert lookup(grid) == {1: 101}
    assert lookup.refusals == {}


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


def test_a_node_that_never_answers_is_waited_for_once() -> None:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(pack_identity(int(context.node_config["partition-id"]) + 1), reply_to=message)

    grid, now = Simulation(app, 3), [0.0]
    pull = grid.pull_messages
    silent = True

    def pull_messages(names: list[str]) -> list[Message]:
        return pull(
            [name for name in names if not (silent and grid.waiting[name].metadata.dst_node_id == 101)]
        )

    def sleep(seconds: float) -> None:
        now[0] += seconds

    grid.pull_messages = pull_messages  # type: ignore[assignment]
    lookup = LookupByQuery(3, timeout=60, poll=1, clock=lambda: now[0], sleep=sleep)
    assert lookup(grid) == {1: 100, 3: 102}
    assert now == [60] and lookup.refusals == {101: "no-answer"}
    assert lookup(grid) == {1: 100, 3: 102} and now == [60]  # nobody is held up a second time
    silent = False
    assert lookup(grid) == {1: 100, 2: 101, 3: 102} and lookup.refusals == {}
    assert len(grid.kinds) == 3


def test_a_node_whose_question_expired_is_asked_again() -> None:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(pack_identity(1), reply_to=message)

    grid = Simulation(app, 1)
    grid.apps[100] = lambda message, context: Message(Error(3, "gone"), reply_to=message)  # type: ignore[assignment]
    lookup = LookupByQuery(3)
    assert lookup(grid) == {} and lookup.refusals == {}
    grid.apps[100] = app
    assert lookup(grid) == {1: 100}
