"""Nothing leaves a device but the protocol's replies and the codes of failures."""

import os
import sys
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from dapfl.engines.flower.apps import client_app
from dapfl.engines.flower.apps.transport import pack, unpack
from dapfl.engines.flower.apps.worker import WorkerFailure

SECRET = "/home/me/very-private"


@pytest.fixture(autouse=True)
def _inside_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def answer(content: RecordDict, node_config: dict[str, Any]) -> RecordDict:
    context = Context(
        run_id=1, node_id=7, node_config=node_config, state=RecordDict(), run_config={}, series_id=1
    )
    message = Message(content, 7, MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = "m"
    return client_app.app(message, context).content


def code(content: RecordDict) -> Any:
    assert set(content) == {"dapfl-failure"}
    return content.config_records["dapfl-failure"]["code"]


def test_the_worker_gets_the_message_and_how_long_it_took_to_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask(folder: Any, message: bytes, transfer_seconds: float, executor: int) -> bytes:
        asked.append((str(folder), message, transfer_seconds >= 0))
        return b"sealed"

    monkeypatch.setattr(client_app, "ask", ask)
    assert unpack(answer(pack(b"call"), {"state-dir": "folder"})) == b"sealed"
    assert asked == [("folder", b"call", True)]


@pytest.mark.parametrize(
    ("arguments", "executor"),
    [(["--parent-pid", "123"], 123), ([], os.getppid()), (["--parent-pid"], os.getppid())],
)
def test_a_worker_ends_with_the_executor_that_has_started_the_app_even_if_that_has_died_already(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], executor: int
) -> None:
    """The parent of an orphan may be process 1: a worker that waited for its end would never end."""
    asked: list[int] = []

    def ask(folder: Any, message: bytes, transfer_seconds: float, executor: int) -> bytes:
        asked.append(executor)
        return b"sealed"

    monkeypatch.setattr(client_app, "ask", ask)
    monkeypatch.setattr(sys, "argv", ["flwr-clientapp", "--token", "t", *arguments])
    answer(pack(b"call"), {"state-dir": "folder"})
    assert asked == [executor]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(SECRET), "client-error"),
        (WorkerFailure("no-data"), "no-data"),
        (OSError(SECRET), "client-error"),
    ],
)
def test_only_a_code_leaves_the_device_when_an_exception_is_raised(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
) -> None:
    def ask(*_: Any, **__: Any) -> bytes:
        raise error

    monkeypatch.setattr(client_app, "ask", ask)
    content = answer(pack(b"call"), {"state-dir": SECRET})
    assert code(content) == expected
    assert SECRET not in repr(content)


def test_a_node_without_a_folder_answers_with_a_code() -> None:
    assert code(answer(pack(b"call"), {})) == "client-error"


def test_a_message_of_another_app_is_answered_with_a_code() -> None:
    assert code(answer(RecordDict({"x": ConfigRecord({"y": 1})}), {"state-dir": "."})) == "client-error"
