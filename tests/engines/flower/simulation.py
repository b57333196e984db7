"""A stand-in for Flower's simulation, in this process."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


def inside_an_app(monkeypatch: pytest.MonkeyPatch, run: int) -> None:
    """What Flower sets up in the processes of a run."""
    monkeypatch.setattr(TaskIdentity, "_run_id", run)
    for name in ("_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@contextmanager
def _as_a_node() -> Iterator[None]:
    """Flower's simulation tells the processes of its nodes no run, node or task."""
    names = ("_run_id", "_node_id", "_task_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        setattr(TaskIdentity, name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


class Simulation:
    """A Grid that calls the ClientApps itself: node 100 + i has partition i."""

    def __init__(
        self,
        app: ClientApp,
        nodes: int,
        run_config: Mapping[str, Any] | None = None,
        node_config: Mapping[str, Any] | None = None,
    ) -> None:
        run_id = TaskIdentity.run_id
        self.apps = {100 + i: app for i in range(nodes)}
        self.contexts = {
            100 + i: Context(
                run_id=run_id,
                node_id=100 + i,
                node_config={"partition-id": i, "num-partitions": nodes, **(node_config or {})},
                state=RecordDict(),
                run_config=dict(run_config or {}),
                series_id=1,
            )
            for i in range(nodes)
        }
        self.run = Run.create_empty(run_id)
        self.waiting: dict[str, Message] = {}
        self.kinds: list[str] = []
        self.replies: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            name = f"m{len(self.kinds)}"
            self.kinds.append(message.metadata.message_type)
            message.metadata.__dict__["_message_id"] = name
            self.waiting[name] = message
            names.append(name)
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        return [self.deliver(self.waiting.pop(name)) for name in names if name in self.waiting]

    def send_and_receive(self, messages: Iterable[Message], timeout: float) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def deliver(self, message: Message) -> Message:
        """As Flower does: what a ClientApp raises comes back as an error."""
        node = message.metadata.dst_node_id
        try:
            with _as_a_node():
                reply = self.apps[node](message, self.contexts[node])
        except ImportError as error:
            reply = Message(Error(1, str(error)), reply_to=message)
        except Exception as error:
            reply = Message(Error(2, str(error)), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node
        self.replies.append(reply)
        return reply
