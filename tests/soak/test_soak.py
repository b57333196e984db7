"""The short form of scripts/soak."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dapfl.crypto import paillier
from dapfl.federation.server import reception
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.server_state import partial_sum
from tests.federation.small import Small
from tests.soak.counts import Counts
from tests.soak.faults import FaultTally, run_with_faults
from tests.soak.hostile import Tally, attack
from tests.soak.load import FLOODERS, KINDS, LOOKED_AT, hostile_messages
from tests.soak.peak import server_peak
from tests.soak.scenes import SCENES
from tests.soak.secrets import forms, leaks, private_values
from tests.soak.whole_runs import ROOT

TASK = f"{Path(__file__).parents[1] / 'engines' / 'tiny_task.py'}:TASK"


@pytest.mark.parametrize("number", range(len(SCENES)), ids=["-".join(each) for each in SCENES])
def test_hostile_messages_get_named_refusals_only(number):
    tally = Tally()
    attack(tally, number, 100)
    assert tally.problems == []
    assert tally.messages == 100 and len(tally.outcomes) > 5


@pytest.mark.parametrize("one_exchange_per_round", [False, True])
def test_faults_lose_no_round_and_change_no_bit(one_exchange_per_round):
    tally = FaultTally()
    for seed in range(3):
        run_with_faults(tally, seed, one_exchange_per_round=one_exchange_per_round)
    assert tally.problems == []
    assert (tally.runs, tally.rounds, tally.lost_rounds) == (3, 12, 0)


@pytest.mark.parametrize("decryption", ["shared", "committee"])
def test_no_secret_is_found_outside(decryption):
    assert leaks(decryption) == []


def test_the_search_would_find_a_secret():
    small = Small(clients=6)
    assert small.keys is not None
    bait = forms(small.keys[0].sk_cs_sign.p)[1]
    assert leaks(bait=bait) == ["p of SK_CS^Sign"]
    assert len(private_values(small)) == 2 * (1 + 6 + 6 + 1)


def test_of_a_flood_cs_opens_one_message_of_each_client_that_it_has_asked(monkeypatch):
    opened: list[int] = []
    open_each = CentralServer.open_each

    def counting(self, messages):
        opened.append(len(messages))
        return open_each(self, messages)

    monkeypatch.setattr(CentralServer, "open_each", counting)
    small_keys = {"crypto.key_bits": 512, "crypto.allow_insecure_small_keys": True}
    samples = {"mean_samples": 60, "std_samples": 10, "seed": 5}
    shared = {"crypto.decryption": "shared"}  # a committee would not decrypt sums of three
    load = hostile_messages(TASK, 400, clients=3, rounds=3, **samples, **small_keys, **shared)
    asked = 3 * 2 * (3 + FLOODERS)  # three rounds: calls, and requests for the model
    assert sum(opened) - len(KINDS) * LOOKED_AT <= asked
    assert load.refused["duplicate"] == 3 + FLOODERS and load.refused["not-asked"] > 50


def small_batches(monkeypatch):
    """A model is small here, and would be one of several that are worked on at once."""
    monkeypatch.setattr(reception, "_ENOUGH_BYTES", 1)
    monkeypatch.setattr(partial_sum, "_MOST_BYTES", 0)
    monkeypatch.setattr(partial_sum, "_BYTES_AT_ONCE", 2**16)
    monkeypatch.setattr(paillier, "_ROWS_AT_ONCE", 256)


def test_cs_makes_few_copies_of_large_uploads(monkeypatch):
    """The product, an upload as it came, and as it was opened; later the aggregate and two messages."""
    small_batches(monkeypatch)
    assert server_peak(300_000, 5, 512, traced=True).models < 5


def test_for_a_committee_cs_has_the_uploads_in_one_message(monkeypatch):
    """With little more than it has without a committee. (Kept uploads are not traced: see test_messages.)"""
    small_batches(monkeypatch)
    clients = 8
    assert server_peak(300_000, clients, 512, decryption="committee", traced=True).models < clients + 4


def test_counts_are_continued_and_told_apart_by_session(tmp_path):
    path = tmp_path / "soak.json"
    for command, count in (("first", 2), ("second", 3)):
        counts = Counts.read(path, command)
        counts.add("faults", faults=count, kinds={"killed": count})
        counts.write(path)
    kept = json.loads(path.read_text())
    assert kept["parts"] == {"faults": {"batches": 2, "faults": 5, "kinds": {"killed": 5}}}
    assert [each["added"]["faults"]["faults"] for each in kept["sessions"]] == [2, 3]


@pytest.mark.processes
def test_faults_of_processes_lose_no_round_and_change_no_bit():
    """In a process of its own: runs are copies of it, and a copy of a process with threads may hang."""
    script = """
from tests.soak.processes import FaultTally, Plan, run_with_faults

tally = FaultTally()
run_with_faults(tally, 1, Plan("local", "committee", prepared=True, rounds=30, most=6))
print(tally.problems, tally.runs, tally.rounds, tally.lost_rounds, sum(tally.faults.values()) > 3)
"""
    command, environment = [sys.executable, "-c", script], {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert (done.stdout, done.stderr) == ("[] 1 30 0 True\n", "")
