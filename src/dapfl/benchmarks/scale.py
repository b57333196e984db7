"""`dapfl bench scale`: seconds per round and peak memory on one machine, with 20 to 10,000 logistic clients.

Then with encryption, where a round costs more: logistic clients, CNN uploads, uploads of ResNet-18.

Every federation runs in a process of its own, so that none influences the next. Clients draw their samples
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
from dapfl.system.console import err

CLIENTS = (20, 200, 2_000, 10_000)
ENCRYPTED: tuple[tuple[str, int, str], ...] = (  # task, clients, who decrypts
    ("logistic-mnist", 20, "committee"),
    ("logistic-mnist", 200, "committee"),
    ("logistic-mnist", 1_000, "committee"),
    ("cnn-mnist", 20, "committee"),
    ("cnn-mnist", 20, "shared"),
    ("resnet18-mnist", 3, "shared"),
)


class ScaleReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of one federation reports."""

    start_seconds: float
    round_seconds: list[float]
    peak_bytes: int  # of all processes together
    server_bytes: int = 0  # of the process of CS
    worker_bytes: int = 0  # of the largest process with clients in it


def run(
    *,
    clients: tuple[int, ...] = CLIENTS,
    encrypted: tuple[tuple[str, int, str], ...] = ENCRYPTED,
    rounds: int = 3,
    workers: int = 0,
) -> BenchResult:
    """Measures open federations of these sizes, then encrypted ones of these tasks, sizes and decryptions."""
    ours: dict[str, Figures] = {}
    for count in clients:
        report = _measured("logistic-mnist", count, rounds, workers, "none")
        ours[f"{count:,} clients"] = _figures(report, count)
    for task, count, decryption in encrypted:
        report = _measured(task, count, rounds, workers, decryption)
        ours[f"encrypted, {decryption}, {task}, {count:,} clients"] = _figures(report, count)
    first, last = (ours[f"{count:,} clients"] for count in (clients[0], clients[-1]))
    return BenchResult(
        work={
            "what": "federated averaging, 1 epoch, all cores: logistic-mnist open, then encrypted runs",
            "rounds": rounds,
            "memory": "peak_megabytes: the sum of the resident sizes of all processes",
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


def _figures(report: ScaleReport, clients: int) -> Figures:
    seconds = statistics.median(report.round_seconds[1:] or report.round_seconds)
    return {
        "round_seconds": seconds,
        "milliseconds_a_client": 1000 * seconds / clients,
        "first_round_seconds": report.round_seconds[0],
        "peak_megabytes": report.peak_bytes / 1e6,
        "server_megabytes": report.server_bytes / 1e6,
        "worker_megabytes": report.worker_bytes / 1e6,
        "start_seconds": report.start_seconds,
    }


def _measured(task: str, clients: int, rounds: int, workers: int, decryption: str) -> ScaleReport:
    err.print(
        f"{task}, {clients:,} clients, {'open' if decryption == 'none' else f'encrypted, {decryption}'}"
    )
    arguments = [task, str(clients), str(rounds), str(workers), decryption]
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


def federation(task: str, clients: int, rounds: int, workers: int, decryption: str) -> ScaleReport:
    """Runs one federation in this process and its workers, and measures their time and memory.

    `decryption` is `shared` or `committee`, or `none` if nothing is encrypted.
    """
    from dapfl.runs.session import start

    encryption = {"crypto.encryption": "none"} if decryption == "none" else {"crypto.decryption": decryption}
    config = override(
        RunConfig(),
        {
            "task": task,
            "setting": "fixed-capped",
            "eta": 0.05,
            "alpha": 1,
            "clients": clients,
            "rounds": rounds,
            "workers": workers,
            "partition": "resampled",
            **encryption,
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
    return ScaleReport(
        start_seconds=ready - began,
        round_seconds=seconds,
        peak_bytes=memory.peak,
        server_bytes=memory.own,
        worker_bytes=memory.largest_child,
    )


class PeakMemory:
    """The largest resident sizes of this process, of a child, and of all, looked at ten times a second."""

    def __init__(self) -> None:
        self.peak = self.own = self.largest_child = 0
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
        own = total = me.memory_info().rss
        for process in me.children(recursive=True):
            try:
                size = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            total += size
            self.largest_child = max(self.largest_child, size)
        self.own, self.peak = max(self.own, own), max(self.peak, total)


if __name__ == "__main__":
    task, clients, rounds, workers, decryption = sys.argv[1:]
    report = federation(task, int(clients), int(rounds), int(workers), decryption)
    print(msgspec.json.encode(report).decode())
