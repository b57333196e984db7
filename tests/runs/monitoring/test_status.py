"""`dapfl status`, and the same for Prometheus."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Message

from dapfl import cli
from dapfl.dashboard.app import build_app
from dapfl.federation.records import ClientRecord, RoundRecord, Status
from dapfl.runs.monitoring.status import metrics_of, overview_of
from dapfl.runs.results import read_run
from tests.fake_runs import manifest


def write(path: Path, *rounds: tuple[str, ...], status: str = "running") -> Path:
    """A run whose clients had these statuses; an empty text is a client that is no member any more."""
    path.mkdir()
    facts = {**manifest(clients=4, rounds=9), "status": status}
    (path / "manifest.json").write_text(json.dumps(facts))
    records = [
        RoundRecord(
            round=t,
            accuracy=0.5 + t / 100,
            participants=each.count("accepted"),
            bytes_up=100,
            bytes_down=50,
            seconds={"exchange": 2.0, "total": 3.0},
            clients=tuple(
                ClientRecord(id=i, status=Status(words)) for i, words in enumerate(each, start=1) if words
            ),
        )
        for t, each in enumerate(rounds)
    ]
    (path / "rounds.jsonl").write_bytes(b"".join(each.to_json() + b"\n" for each in records))
    return path


ROUNDS = (
    ("accepted", "accepted", "accepted", "accepted", "accepted"),
    ("accepted", "failed:offline", "unselected", "accepted", "accepted"),
    ("accepted", "failed:offline", "over-budget", "accepted", ""),
    ("accepted", "failed:offline", "accepted", "accepted", ""),
)


def get(app: ASGIApp, path: str) -> tuple[int, str, str]:
    """The status, the type and the text of an answer."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    # In a thread of its own: browser tests leave a running event loop in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, app(scope, receive, send)).result()
    headers = dict(sent[0]["headers"])
    text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
    return sent[0]["status"], headers[b"content-type"].decode(), text


def test_the_overview_says_how_every_client_is_doing(tmp_path: Path) -> None:
    overview = overview_of(read_run(write(tmp_path / "run", *ROUNDS)))
    assert [each.presence for each in overview.clients] == ["in", "lost", "in", "in", "removed"]
    lost = overview.clients[1]
    assert (lost.lost_for, lost.last_in, lost.reason, lost.contributions) == (3, 0, "offline", 1)
    assert overview.alerts == ("client 2 has been lost for 3 rounds (offline): start its SuperNode",)
    assert overview.lost == {"offline": 3, "over-budget": 1}
    assert (overview.rounds, overview.planned, overview.accuracy) == (4, 9, 0.53)


def test_in_the_terminal_and_for_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "run", *ROUNDS, status="stopped")
    assert cli.main(["status", str(path)]) == 3
    text = capsys.readouterr().out
    assert "stopped, round 4 of 9" in text
    assert "ALERT: client 2 has been lost for 3 rounds" in text
    assert f"To go on: dapfl run --resume {path}" in text
    assert cli.main(["status", str(path), "--json"]) == 3
    overview = json.loads(capsys.readouterr().out)
    assert overview["clients"][1]["presence"] == "lost" and overview["status"] == "stopped"


def test_a_task_without_classes_is_shown_by_its_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run", status="finished")
    (path / "rounds.jsonl").write_bytes(RoundRecord(round=0, loss=0.25, participants=4).to_json() + b"\n")
    assert cli.main(["status", str(path)]) == 0
    assert "test loss 0.2500; 4 contributions" in capsys.readouterr().out
    assert "\ndapfl_loss 0.25\n" in metrics_of(read_run(path))


def test_a_healthy_run_exits_with_0_and_a_failed_one_does_not(tmp_path: Path) -> None:
    assert cli.main(["status", str(write(tmp_path / "good", ROUNDS[0]))]) == 0
    bad = write(tmp_path / "bad", ("failed:late",) * 4, status="failed")
    assert cli.main(["status", str(bad)]) == 3
    assert "no trained model" in " ".join(overview_of(read_run(bad)).alerts)
    assert cli.main(["status", str(write(tmp_path / "new"))]) == 0
    assert cli.main(["status", str(tmp_path / "nowhere")]) == 2


def test_prometheus_reads_it_only_if_that_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "run", *ROUNDS)
    assert get(build_app(path, None), "/metrics")[0] == 404
    status, kind, text = get(build_app(path, None, metrics=True), "/metrics")
    assert status == 200 and kind.startswith("text/plain; version=0.0.4")
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert found == dict(
        line.rsplit(" ", 1) for line in metrics_of(read_run(path)).splitlines() if not line.startswith("#")
    )
    assert found["dapfl_rounds_total"] == "4"
    assert found['dapfl_lost_total{reason="offline"}'] == "3"
    assert found['dapfl_client_lost_rounds{client="2"}'] == "3"
    assert found['dapfl_seconds_total{phase="exchange"}'] == "8"
    assert found['dapfl_bytes_total{direction="up"}'] == "400"
    assert found["dapfl_alerts"] == "1"


def test_prometheus_is_told_that_there_is_no_run_yet(tmp_path: Path) -> None:
    assert get(build_app(tmp_path, None, metrics=True), "/metrics")[0] == 503
