"""Nothing leaves a device but the protocol's answers and the names of failures."""

from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from dapfl.engines.flower import client_app
from dapfl.engines.flower.transport import pack, unpack
from dapfl.engines.flower.worker import WorkerFailure

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


def test_an_answer_is_handed_on_with_the_time_that_its_message_took(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask(folder: Any, message: bytes, seconds: float, guardian: int) -> bytes:
        asked.append((str(folder), message, seconds >= 0))
        return b"sealed"

    monkeypatch.setattr(client_app, "ask", ask)
    assert unpack(answer(pack(b"call"), {"state-dir": "folder"})) == b"sealed"
    assert asked == [("folder", b"call", True)]


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError(SECRET), "client-error"),
        (WorkerFailure("no-data"), "no-data"),
        (OSError(SECRET), "client-error"),
    ],
)
def test_of_an_exception_only_a_name_leaves(
    monkeypatch: pytest.MonkeyPatch, error: Exception, name: str
) -> None:
    def ask(*_: Any, **__: Any) -> bytes:
        raise error

    monkeypatch.setattr(client_app, "ask", ask)
    content = answer(pack(b"call"), {"state-dir": SECRET})
    assert code(content) == name
    assert SECRET not in repr(content)


def test_a_node_that_was_started_without_a_folder_says_so_by_name() -> None:
    assert code(answer(pack(b"call"), {})) == "client-error"


def test_a_message_that_is_not_ours_is_answered_by_a_name() -> None:
    assert code(answer(RecordDict({"x": ConfigRecord({"y": 1})}), {"state-dir": "."})) == "client-error"
