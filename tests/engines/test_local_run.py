"""Whole runs, by workers that die or are attacked: what the local engine promises to real clients."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from dapfl.config import CryptoConfig, RunConfig, override
from dapfl.engines.local import WorkerPool
from dapfl.federation.records import RoundRecord
from dapfl.runs.session import start

TASK = Path(__file__).with_name("tiny_task.py")
CONFIG = RunConfig(
    task=f"{TASK}:TASK",
    clients=5,
    rounds=3,
    mean_samples=60,
    std_samples=10,
    workers=1,
    crypto=CryptoConfig(codec="compact", encryption="none"),
)


COMMITTEE = {
    "crypto.encryption": "paillier",
    "crypto.decryption": "committee",
    "crypto.key_bits": 512,
    "crypto.allow_insecure_small_keys": True,
}


def played(path: Path, *, inline: bool, config: RunConfig = CONFIG) -> tuple[list[RoundRecord], bytes]:
    """The lines of a run without what a clock decides, and its last model."""
    with start(config, path, inline=inline) as session:
        records = [msgspec.structs.replace(record, seconds={}) for record in session]
    return records, (path / "model.npz").read_bytes()


@pytest.mark.processes
def test_a_run_whose_worker_dies_gives_the_bits_of_one_whose_workers_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the codec `compact` a client that went on from anything but its last state would show."""
    expected = played(tmp_path / "lived", inline=True)
    take, taken = WorkerPool._take, 0

    def take_and_kill(self: WorkerPool, worker, *rest):  # type: ignore[no-untyped-def]
        nonlocal taken
        result = take(self, worker, *rest)
        taken += 1
        if taken == 10 + 3:  # amid the uploads of round 1; a round has five, and five answers about W(t+1)
            assert worker.current.clients == (4, 5)
            os.kill(worker.process.pid, signal.SIGKILL)
        return result

    monkeypatch.setattr(WorkerPool, "_take", take_and_kill)
    died = played(tmp_path / "died", inline=False)
    assert taken == 3 * 10
    assert died == expected


@pytest.mark.processes
def test_a_committee_gives_the_model_of_an_open_run_whatever_attacks_it(tmp_path: Path) -> None:
    """CS itself and a client that works with it break the protocol."""
    names = ("substituted-aggregate", "second-proposal", "inverse")
    config = override(CONFIG, {**COMMITTEE, "adversaries": names})
    _, expected = played(tmp_path / "open", inline=True)
    records, model = played(tmp_path / "attacked", inline=False, config=config)
    assert model == expected
    assert [record.decrypted_by for record in records] == [(1, 2, 3, 4)] * 3
    refused = {(each.at, each.reason) for record in records for each in record.rejections}
    assert refused == {
        ("client", "below-min-cohort"),
        ("client", "bad-proposal"),
        ("client", "replayed"),
        ("server", "unproved"),
    }


def test_who_decrypts_changes_no_bit_of_the_model(tmp_path: Path) -> None:
    _, expected = played(tmp_path / "open", inline=True)
    for decryption in ("shared", "committee"):
        config = override(CONFIG, {**COMMITTEE, "crypto.decryption": decryption})
        assert played(tmp_path / decryption, inline=True, config=config)[1] == expected
