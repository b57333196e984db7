"""The protocol's messages over a fake Grid."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

flwr = pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Error, Message, RecordDict  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from dapfl.engines.flower.apps.transport import (  # noqa: E402
    FlowerTransport,
    lookup_by_key,
    pack,
    pack_failure,
    unpack,
)
from dapfl.errors import TransportError  # noqa: E402


@pytest.fixture(autouse=True)
def _inside_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower lets messages be made only inside an app process, which knows these three."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


KEYS = {b"key-1": 1, b"key-2": 2, b"key-3": 3}


@dataclass
class FakeGrid:
    """Nodes 11, 12, 13 belong to clients 1, 2, 3; `behave` says what a node does with a message."""

    behave: Any
    nodes: dict[bytes, int] = field(default_factory=lambda: {b"key-1": 11, b"key-2": 12, b"key-3": 13})
    sent: list[Message] = field(default_factory=list)
    waiting: dict[str, Message] = field(default_factory=dict)
    now: float = 0.0

    def get_nodes(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(node_id=node, public_key=key) for key, node in self.nodes.items()]

    def push_messages(self, messages: list[Message]) -> list[str]:
        identifiers = []
        for message in messages:
            identifier = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = identifier
            self.sent.append(message)
            self.waiting[identifier] = message
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, identifiers: list[str]) -> list[Message]:
        replies = []
        for identifier in identifiers:
            message = self.waiting[identifier]
            what = self.behave(message.metadata.dst_node_id, message, self)
            if what is not None:
                replies.append(Message(what, reply_to=message))
        return replies


def transport(grid: FakeGrid, **options: Any) -> FlowerTransport:
    def sleep(seconds: float) -> None:
        grid.now += seconds

    return FlowerTransport(grid, lookup_by_key(lambda: KEYS), clock=lambda: grid.now, sleep=sleep, **options)


def echo(node: int, message: Message, grid: FakeGrid) -> RecordDict:
    return pack(b"%d:" % node + unpack(message.content))


def test_a_packed_message_unpacks_to_the_same_bytes() -> None:
    data = bytes(range(256)) * 100
    assert unpack(pack(data)) == data
    assert unpack(pack(b"")) == b""


def test_a_flower_message_without_one_of_ours_is_an_error() -> None:
    with pytest.raises(TransportError):
        unpack(RecordDict({"other": ConfigRecord({"x": 1})}))


def test_every_client_gets_its_message_and_its_reply_comes_back() -> None:
    replies, failures = transport(FakeGrid(echo)).exchange({1: b"a", 2: b"b", 3: b"b"}, timeout=10)
    assert replies == {1: b"11:a", 2: b"12:b", 3: b"13:b"}
    assert failures == {}


def test_equal_messages_share_one_content() -> None:
    grid = FakeGrid(echo)
    transport(grid).exchange({1: b"same", 2: b"same", 3: b"other"}, timeout=10)
    contents = [id(message.content) for message in grid.sent]
    assert contents[0] == contents[1] != contents[2]


def test_a_client_that_is_offline_is_not_waited_for() -> None:
    grid = FakeGrid(echo)
    del grid.nodes[b"key-2"]
    replies, failures = transport(grid).exchange({1: b"a", 2: b"b"}, timeout=1000)
    assert (set(replies), failures) == ({1}, {2: "offline"})
    assert grid.now == 0


def test_a_client_that_does_not_answer_is_late() -> None:
    silent = FakeGrid(lambda node, message, grid: None if node == 12 else echo(node, message, grid))
    replies, failures = transport(silent).exchange({1: b"a", 2: b"b"}, timeout=5)
    assert (set(replies), failures) == ({1}, {2: "late"})


def test_a_failure_arrives_as_its_code() -> None:
    grid = FakeGrid(lambda node, message, grid: pack_failure("no-usable-keys"))
    assert transport(grid).exchange({1: b"a"}, timeout=5).failures == {1: "no-usable-keys"}


@pytest.mark.parametrize("code", ["Traceback: secret", "x" * 41, "", 7, b"bytes", "UPPER", "a\nb"])
def test_a_device_cannot_write_anything_but_a_code_into_our_records(code: Any) -> None:
    content = RecordDict({"dapfl-failure": ConfigRecord({"code": code})})
    grid = FakeGrid(lambda node, message, grid: content)
    assert transport(grid).exchange({1: b"a"}, timeout=5).failures == {1: "unnamed-failure"}


def test_a_reply_without_one_of_our_messages_is_malformed() -> None:
    grid = FakeGrid(lambda node, message, grid: RecordDict())
    assert transport(grid).exchange({1: b"a"}, timeout=5).failures == {1: "malformed-reply"}


def test_the_text_of_flowers_errors_is_dropped() -> None:
    grid = FakeGrid(lambda node, message, grid: Error(2, "ValueError: my password"))
    assert transport(grid).exchange({1: b"a"}, timeout=5).failures == {1: "client-app-failed"}


def test_a_lost_node_that_comes_back_is_asked_again() -> None:
    def behave(node: int, message: Message, grid: FakeGrid) -> RecordDict | Error | None:
        if node == 12:
            grid.nodes.pop(b"key-2", None)
            return Error(5, "node unavailable")
        if grid.now > 3:
            grid.nodes[b"key-2"] = 22
        return echo(node, message, grid) if grid.now > 4 else None

    replies, failures = transport(FakeGrid(behave)).exchange({1: b"a", 2: b"b"}, timeout=60)
    assert replies == {1: b"11:a", 2: b"22:b"}
    assert failures == {}


@pytest.mark.parametrize(
    ("code", "failure"), [(8, "client-app-crashed"), (3, "message-lost"), (4, "message-lost")]
)
def test_a_client_whose_app_has_crashed_is_asked_once_more(code: int, failure: str) -> None:
    """Its ClientApp was killed, or was not up in time, or died while its reply was uploaded."""

    def behave(node: int, message: Message, grid: FakeGrid) -> RecordDict | Error:
        return echo(node, message, grid) if len(grid.sent) == 2 else Error(code, "of Flower")

    grid = FakeGrid(behave)
    assert transport(grid).exchange({2: b"b"}, timeout=60) == ({2: b"12:b"}, {})
    assert transport(grid).exchange({2: b"c"}, timeout=60).failures == {2: failure}
    assert len(grid.sent) == 4


def test_a_lost_node_that_stays_away_is_given_up() -> None:
    def behave(node: int, message: Message, grid: FakeGrid) -> Error:
        grid.nodes.clear()
        return Error(5, "node unavailable")

    grid = FakeGrid(behave)
    assert transport(grid, rejoin=10).exchange({2: b"b"}, timeout=1000).failures == {2: "node-lost"}
    assert 10 <= grid.now < 12


def test_a_node_is_lost_for_good_the_second_time() -> None:
    grid = FakeGrid(lambda node, message, grid: Error(5, "node unavailable"))
    assert transport(grid).exchange({2: b"b"}, timeout=1000).failures == {2: "node-lost"}
    assert len(grid.sent) == 2


def test_messages_that_the_superlink_does_not_accept_are_an_error() -> None:
    grid = FakeGrid(echo)
    grid.push_messages = lambda messages: []  # type: ignore[method-assign]
    with pytest.raises(TransportError, match="did not accept"):
        transport(grid).exchange({1: b"a"}, timeout=5)


def test_waiting_returns_the_clients_that_are_missing() -> None:
    grid = FakeGrid(echo)
    del grid.nodes[b"key-3"]
    assert transport(grid).wait_for({1, 2, 3}, timeout=5) == {3}
    assert transport(grid).wait_for({1, 2}, timeout=5) == set()


def test_nodes_with_unknown_keys_are_not_clients() -> None:
    grid = FakeGrid(echo)
    grid.nodes[b"stranger"] = 99
    assert transport(grid).online() == {1, 2, 3}
