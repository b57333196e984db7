"""`dapfl bench scale`: seconds a round and peak memory of one machine, from 20 to 10,000 logistic clients.

Every federation runs in a process of its own, so that no size pays for another. Clients draw their samples
from the whole training set (partition `resampled`), since 10,000 clients of 600 samples exceed it.
"""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import psutil

from dapfl.benchmarks.result import BenchResult, Figures, host
from dapfl.config import RunConfig, override
from dapfl.errors import DapflError

CLIENTS = (20, 200, 2_000, 10_000)


class ScaleReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of one federation says."""

    start_seconds: float
    round_seconds: list[float]
    peak_bytes: int


def run(*, clients: tuple[int, ...] = CLIENTS, rounds: int = 3, workers: int = 0) -> BenchResult:
    """Measures federations of these sizes, one after the other."""
    ours: dict[str, Figures] = {}
    for count in clients:
        report = _measured(count, rounds, workers)
        seconds = statistics.median(report.round_seconds[1:] or report.round_seconds)
        ours[f"{count:,} clients"] = {
            "round_seconds": seconds,
            "milliseconds_a_client": 1000 * seconds / count,
            "peak_megabytes": report.peak_bytes / 1e6,
            "start_seconds": report.start_seconds,
        }
    first, last = (ours[f"{count:,} clients"] for count in (clients[0], clients[-1]))
    return BenchResult(
        work={
            "what": "federated averaging of logistic-mnist, 1 epoch, no encryption, all cores",
            "rounds": rounds,
            "memory": "the sum of the resident sizes of all processes",
            **host(),
        },
        ours=ours,
        ratios={
            "clients, largest / smallest": clients[-1] / clients[0],
            "seconds, largest / smallest": float(str(last["round_seconds"]))
            / float(str(first["round_seconds"])),
            "memory, largest / smallest": float(str(last["peak_megabytes"]))
            / float(str(first["peak_megabytes"])),
        },
    )


def _measured(clients: int, rounds: int, workers: int) -> ScaleReport:
    arguments = [str(clients), str(rounds), str(workers)]
    done = subprocess.run(
        [sys.executable, "-m", "dapfl.benchmarks.scale", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = (done.stderr.strip() or "no output").splitlines()[-1]
        raise DapflError(f"The federation of {clients:,} clients failed: {words}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=ScaleReport)


def federation(clients: int, rounds: int, workers: int) -> ScaleReport:
    """Runs one federation in this process and its workers, and watches what they take."""
    from dapfl.experiments.runner import start

    config = override(
        RunConfig(),
        {
            "task": "logistic-mnist",
            "setting": "fixed-capped",
            "eta": 0.05,
            "alpha": 1,
            "clients": clients,
            "rounds": rounds,
            "workers": workers,
            "partition": "resampled",
            "crypto.encryption": "none",
        },
    )
    seconds: list[float] = []
    with PeakMemory() as memory, tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with start(config, Path(folder) / "run") as session:
            ready = time.perf_counter()
            last = ready
            for _ in session:
                now = time.perf_counter()
                seconds.append(now - last)
                last = now
    return ScaleReport(start_seconds=ready - began, round_seconds=seconds, peak_bytes=memory.peak)


class PeakMemory:
    """The largest sum of resident sizes of this process and its children, looked at ten times a second."""

    def __init__(self) -> None:
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            self._look()

    def _look(self) -> None:
        me = psutil.Process()
        total = 0
        for process in (me, *me.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        self.peak = max(self.peak, total)


if __name__ == "__main__":
    print(msgspec.json.encode(federation(*map(int, sys.argv[1:]))).decode())
