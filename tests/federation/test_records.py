import json
import math
from typing import Any

import msgspec
import pytest

from dapfl.arrays import Vector
from dapfl.federation.records import ClientRecord, ClientReport, Rejection, RoundRecord, Status
from tests.federation.small import Learner, Small

ROUND_KEYS = [
    "round",
    "loss",
    "accuracy",
    "f1",
    "worst_accuracy",
    "accuracy_spread",
    "participants",
    "violations",
    "rejected",
    "rejections",
    "bytes_up",
    "bytes_down",
    "simulated_seconds",
    "wasted_epochs",
    "epochs",
    "cohort",
    "decrypted_by",
    "roster",
    "seconds",
    "metrics",
    "clients",
]
CLIENT_KEYS = {
    "id",
    "capability",
    "samples",
    "status",
    "eta",
    "alpha",
    "planned_alpha",
    "batch_size",
    "lambda",
    "budget",
    "cost",
    "epoch_cost",
    "transfer_cost",
    "reward",
    "reward_parts",
    "state",
    "critic_loss",
    "actor_loss",
    "q",
    "local_loss",
    "deferred",
    "unit",
    "trial_epochs",
    "repeats",
    "software",
    "metrics",
    "accuracy",
}


def test_a_line_has_the_keys_that_others_script_against():
    line = json.loads(Small().federation.run_round(0).to_json())
    assert list(line) == ROUND_KEYS
    for client in line["clients"]:
        assert set(client) == CLIENT_KEYS


def test_a_client_that_tells_nothing_has_the_same_keys():
    line = json.loads(
        RoundRecord(round=0, clients=(ClientRecord.of(3, Status.FAILED.because("late"), None),)).to_json()
    )
    (client,) = line["clients"]
    assert set(client) == CLIENT_KEYS
    assert (client["id"], client["status"], client["eta"]) == (3, "failed:late", None)


@pytest.mark.parametrize("text", ["accepted", "over-budget", "failed:late", "rejected:odd:reason", "failed:"])
def test_a_status_is_the_same_text_in_every_encoding(text):
    record = RoundRecord(round=0, clients=(ClientRecord.of(1, Status(text), None),))
    assert json.loads(record.to_json())["clients"][0]["status"] == text
    again = RoundRecord.from_json(record.to_json())
    assert again == record
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=RoundRecord) == record
    status = again.clients[0].status
    assert (status.kind.value, status.reason) == (text.partition(":")[0], text.partition(":")[2])
    assert status.kind in list(Status)


@pytest.mark.parametrize("text", ["", "fine", "accepted:twice", "unselected:why", ":late"])
def test_what_is_no_status_is_refused(text):
    with pytest.raises(ValueError, match="not a valid Status"):
        Status(text)
    with pytest.raises(msgspec.ValidationError):
        RoundRecord.from_json(b'{"round":0,"clients":[{"id":1,"status":"%b"}]}' % text.encode())


def test_a_report_becomes_a_record():
    report = ClientReport(outcome="trained", eta=0.1, lambda_=0.5, state=(1.0, 0.5, 0.4), epochs=7)
    record = ClientRecord.of(2, Status.ACCEPTED, report)
    assert (record.id, record.status, record.eta, record.lambda_, record.state) == (
        2,
        "accepted",
        0.1,
        0.5,
        (1.0, 0.5, 0.4),
    )


def test_numbers_that_json_cannot_say_are_null():
    report = ClientReport(outcome="diverged", state=(math.nan, math.inf, 0.1), reward=math.nan)
    record = RoundRecord(round=0, loss=math.inf, clients=(ClientRecord.of(1, Status.DIVERGED, report),))
    line = json.loads(record.to_json(), parse_constant=lambda name: 1 / 0)
    assert line["loss"] is None
    assert line["clients"][0]["state"] == [None, None, 0.1]
    assert RoundRecord.from_json(record.to_json()).loss is None


def test_rejections_say_where_they_happened_unless_it_was_at_the_server():
    record = RoundRecord(
        round=0, rejections=(Rejection(7, "replayed"), Rejection(2, "malformed", at="client"))
    )
    assert json.loads(record.to_json())["rejections"] == [
        {"client": 7, "reason": "replayed"},
        {"client": 2, "reason": "malformed", "at": "client"},
    ]


class Leaping(Learner):
    """Moves one weight further than the compact codec can say in one round."""

    def train(self, weights: Vector, *args: Any) -> Vector:
        local = weights.copy()
        local[7] += 100
        return local


def test_what_the_compact_codec_holds_back_is_counted():
    small = Small(codec="compact", encryption="none", learners={2: Leaping(2)})
    record = small.federation.run_round(0)
    held_back = {client.id: client.deferred for client in record.clients}
    assert held_back == {1: 0, 2: 1, 3: 0, 4: 0}
