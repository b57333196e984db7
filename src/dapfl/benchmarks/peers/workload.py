"""The workload that our engine and its peers run in `dapfl bench round`, and how a peer is run.

A peer runs in a process of its own (`python -m dapfl.benchmarks.peers.flower WORKLOAD`) and prints
one `PeerReport` as its last line.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

import dapfl
from dapfl.config import RunConfig
from dapfl.resources import build_resources


class Workload(Struct, frozen=True, kw_only=True):
    """Federated averaging: every client scores the model on its data, trains, and the server scores the mean.

    `trainer` says how a peer's clients train: `plain` is PyTorch as its tutorials show it (autograd and
    torch.optim.SGD on tensors in memory), `dapfl` is our own local training inside the peer's engine, so
    that only the engines differ.
    """

    task: str
    clients: int = 20
    rounds: int = 6
    epochs: int = 1
    batch_size: int = 32
    eta: float = 0.05
    seed: int = 0
    trainer: str = "plain"
    momentum: float = 0.0
    target: float | None = None  # the test accuracy at which the run may stop
    budgets: bool = False  # whether clients have the resources of a default run, and lose what exceeds them

    def indices(self) -> list[NDArray[np.int32]]:
        """Each client's samples: the same for everyone."""
        from dapfl.learning.partition import partition
        from dapfl.learning.tasks import get_task

        labels = get_task(self.task).load_data().train_labels
        return partition(labels, self.clients, self.seed, minimum=self.batch_size)

    def affordable(self, client: int, round_: int, samples: int) -> bool:
        """Whether this client (from 0) can finish its epochs within its budget of this round (from 0)."""
        if not self.budgets:
            return True
        resources = build_resources(RunConfig().resources, client + 1, self.clients, samples, self.seed)
        now = resources.at(round_)
        return now.cost(self.epochs) <= now.budget


class PeerReport(Struct, frozen=True, kw_only=True):
    """What a peer's process reports: the seconds of every round, and the accuracy of the final model."""

    start_seconds: float
    round_seconds: list[float]
    accuracy: float
    processes: int
    accuracies: list[float] = []  # after every round
    reached: float | None = None  # when the target was reached, in seconds since 1970

    def say(self) -> None:
        """Prints the report as the last line of this process."""
        sys.stdout.flush()
        print(msgspec.json.encode(self).decode(), flush=True)


class PeerFailed(Exception):
    """A peer's process ended without a report; the message is the last line that it printed."""


def run_peer(
    module: str, workload: Workload, python: str, timeout: float, launcher: tuple[str, ...] = ()
) -> PeerReport:
    """Runs a peer in its own process, started by `launcher` if it needs one."""
    source = str(Path(dapfl.__file__).parent.parent)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command: list[Any] = [python, *launcher, "-m", f"dapfl.benchmarks.peers.{module}"]
    command.append(msgspec.json.encode(workload).decode())
    # A session of its own, so that whatever the peer started ends with it.
    with subprocess.Popen(
        command, stdout=PIPE, stderr=PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            output, complaints = process.communicate(timeout=timeout)
        except BaseException as reason:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(reason, subprocess.TimeoutExpired):
                raise PeerFailed(f"gave no result within {timeout:.0f} s") from None
            raise
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            return msgspec.json.decode(line, type=PeerReport)
    raise PeerFailed(
        f"exit code {process.returncode}: {_last_words(complaints.strip() or output.strip())[:300]}"
    )


def _last_words(text: str) -> str:
    """The error that a process has ended with, which launchers follow with frames and advice of their own."""
    lines = text.splitlines() or ["no output"]
    return next((line for line in reversed(lines) if re.search(r"\b\w+(Error|Exception): ", line)), lines[-1])
