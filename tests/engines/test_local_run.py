"""Whole runs whose workers die: what the local engine promises to real clients."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from dapfl.config import CryptoConfig, RunConfig
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


def played(path: Path, *, inline: bool) -> tuple[list[RoundRecord], bytes]:
    """The lines of a run without what a clock decides, and its last model."""
    with start(CONFIG, path, inline=inline) as session:
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
