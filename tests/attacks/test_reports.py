"""One enrolled client reports whatever it likes: nothing it says ends a run, a report or a page."""

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dapfl.dashboard.follower import Follower
from dapfl.errors import ProtocolError
from dapfl.federation.messages import Notice, Refusal, Report, Upload, decode_report, encode
from dapfl.federation.records import ClientRecord, ClientReport, Rejection, RoundRecord, Status
from dapfl.learning.metrics import Score
from dapfl.reporting.report import write_report
from dapfl.runs.results import read_run
from dapfl.tuning.selection import build_selector
from tests.fake_runs import manifest
from tests.federation.small import Learner, Lying, Small

WILD = {
    "no state": {"state": []},
    "a state of one": {"state": [1.0]},
    "a state of four": {"state": [1.0, 0.5, 0.5, 0.5]},
    "a state of text": {"state": ["a", "b", "c"]},
    "infinite seconds": {"seconds": {"train": math.inf}},
    "NaN seconds": {"seconds": {"train": math.nan}},
    "negative seconds": {"seconds": {"train": -1.0}},
    "an unknown phase": {"seconds": {"\x1b]0;pwn\x07<a href='https://evil'>x</a>": 1.0}},
    "a negative rate": {"eta": -1.0},
    "a huge rate": {"eta": 1.7e308},
    "NaN capability": {"capability": math.nan},
    "negative capability": {"capability": -1e300},
    "infinite cost": {"cost": math.inf, "budget": math.inf},
    "negative cost": {"cost": -5.0},
    "too many epochs": {"epochs": 2**62},
    "negative epochs": {"epochs": -1},
    "control characters": {"refused": ["\x1b[31m=cmd|calc"]},
    "a line break": {"refused": ["replayed\n"]},
    "too many refusals": {"refused": ["replayed"] * 17},
    "HTML": {"reward_parts": {"<img src=x onerror=alert(1)>": 1.0}},
    "too many parts": {"reward_parts": {f"part {i}": 1.0 for i in range(33)}},
    "an unknown field": {"surprise": 1},
    "an unknown outcome": {"outcome": "glorious"},
    "no map": None,
}


def forged(wild):
    honest = msgspec.to_builtins(ClientReport(outcome="trained", eta=0.1, alpha=3, state=(1.0, 0.5, 0.4)))
    return msgspec.msgpack.encode("hello" if wild is None else honest | wild)


def reporting(data: bytes):
    def alter(body):
        said = isinstance(body, Upload | Notice | Report) and body.report
        return msgspec.structs.replace(body, report=data) if said else body

    return alter


@pytest.mark.parametrize("wild", WILD.values(), ids=WILD)
def test_a_report_out_of_bounds_is_dropped_by_name(wild):
    with pytest.raises(ProtocolError, match="bad-report"):
        decode_report(forged(wild))


@pytest.mark.parametrize("decryption", ["shared", "committee"])
def test_the_run_goes_on_and_the_contribution_counts(decryption):
    few = {"clients": 6, "min_cohort": 5} if decryption == "committee" else {}
    honest, small = (Small(decryption=decryption, **few) for _ in range(2))
    small.local.clients[2] = Lying(small, 2, reporting(forged({"state": []})))
    expected, records = honest.play(2), small.play(2)
    np.testing.assert_array_equal(honest.federation.weights, small.federation.weights)
    assert [row.cohort for row in records] == [row.cohort for row in expected]
    assert Rejection(2, "bad-report") in records[0].rejections
    told = {client.id: client.eta for client in records[0].clients}
    assert told[2] is None and told[1] is not None


def test_a_server_that_selects_clients_by_their_reports_goes_on():
    small = Small(options={"selector": build_selector("ddpg-client", 1, 4)})
    small.local.clients[2] = Lying(small, 2, reporting(forged({"state": []})))
    assert [row.participants for row in small.play(3)] == [4, 4, 4]


def test_a_reply_that_comes_again_after_a_resume_is_dropped_again():
    small = Small(standalone=True)
    small.local.clients[2] = Lying(small, 2, reporting(forged({"state": []})))
    small.play(1)
    again = Small(standalone=True, run=small.server.run)
    again.federation.restore(small.federation.saved_state())
    again.local.clients.update(small.local.clients)
    assert again.play(2)[-1].participants == 4


def test_an_honest_client_whose_loss_is_infinite_reports_what_can_be_said():
    learner = Learner(1)
    learner.evaluate = lambda weights: Score(math.inf, 0.1, 0.1)
    small = Small(learners={1: learner})
    record = small.play(1)[0]
    assert not record.rejections
    assert record.clients[0].state == (None, 0.1, 0.1)


@pytest.mark.parametrize("reason", ["", "a b", "\x1b[31m", "x" * 65, "line\n"])
def test_a_refusal_gives_a_plain_reason_or_is_no_message(reason):
    small = Small()
    small.local.clients[1] = Lying(small, 1, lambda body: Refusal(body.context, body.answers, reason))
    record = small.play(1)[0]
    assert record.rejections == (Rejection(1, "malformed"),)
    assert record.participants == 3


def folder_with(path: Path, record: RoundRecord) -> Path:
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps(manifest()))
    (path / "rounds.jsonl").write_bytes(record.to_json() + b"\n")
    return path


def test_every_line_of_such_a_run_can_be_read_shown_and_drawn(tmp_path):
    small = Small()
    for client, wild in zip((1, 2, 3), ("infinite seconds", "a negative rate", "no state"), strict=True):
        small.local.clients[client] = Lying(small, client, reporting(forged(WILD[wild])))
    folder = folder_with(tmp_path / "run", small.play(1)[0])
    assert json.loads((folder / "rounds.jsonl").read_text())["rejected"] == 3
    assert len(read_run(folder).rounds) == 1
    follower = Follower(folder)
    follower.refresh()
    assert follower.run.problem is None and len(follower.run.update().clients) == 4
    assert write_report([folder], tmp_path / "report")


def test_the_live_page_survives_a_file_that_another_program_has_written(tmp_path):
    strange = ClientRecord(id=1, status=Status.ACCEPTED, capability=1.0, eta=-1.0)
    follower = Follower(folder_with(tmp_path / "run", RoundRecord(round=0, clients=(strange,))))
    follower.refresh()
    assert follower.run.update().rounds


def test_the_largest_honest_report_is_taken():
    largest = ClientReport(
        outcome="trained",
        reward_parts={f"{'name':x<60}{i:04}": -1e30 for i in range(32)},
        refused=("x" * 64,) * 16,
        state=(1e30, -1e30, None),
        seconds=dict.fromkeys(("open", "evaluate", "agent", "train", "encode", "encrypt"), 1e9),
    )
    assert decode_report(encode(largest)) == largest
    assert len(encode(largest)) < 2**14
