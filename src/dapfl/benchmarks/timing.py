"""A fair clock for work on one core.

It counts the CPU seconds of this process, all threads together. On an idle machine that is the wall-clock
time; on a busy one it leaves out the time that other processes took. Jobs take turns on the same core, so
that the remaining noise affects all of them alike.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psutil

Job = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)
clock = time.process_time
CLOCK = "CPU seconds of one process on one core, all its threads together"


def seconds_of(work: Job) -> float:
    """The CPU seconds of one call."""
    start = clock()
    work()
    return clock() - start


def medians(jobs: Mapping[Name, Job], repeats: int) -> dict[Name, float]:
    """The median seconds of every job. The jobs take turns; the first turn warms up and is not counted."""
    times: dict[Name, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, work in jobs.items():
            seconds = seconds_of(work)
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(each) for name, each in times.items()}


def sized(prepare: Callable[[int], Job], seconds: float, most: int) -> tuple[int, Job]:
    """A job that takes about `seconds`, made of batches of at most `most`: its operations, and the job."""
    trial = prepare(8)
    trial()
    wanted = int(8 * seconds / max(seconds_of(trial), 1e-9))
    count = max(8, min(most, wanted // 8 * 8))
    batch = prepare(count)
    loops = max(1, int(seconds / max(seconds_of(batch), 1e-9)))

    def job() -> None:
        for _ in range(loops):
            batch()

    return count * loops, job


def spread_of(seconds: Sequence[float]) -> dict[str, object]:
    """The median of some measurements, their quartiles, and how many there are."""
    quartiles = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else [*seconds] * 3
    return {"median": quartiles[1], "quartiles": [quartiles[0], quartiles[2]], "counted": len(seconds)}


def cpu_seconds() -> float:
    """The CPU seconds of this process and of all that it has started, so far."""
    total = time.process_time()
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def others_load(seconds: float = 1.0) -> float:
    """How many cores are busy while this process only waits."""
    return psutil.cpu_percent(interval=seconds) / 100 * (psutil.cpu_count() or 1)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_core() -> Iterator[None]:
    """Inside, this process and whatever it starts have one core, where the system can say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def results_only_on_stdout() -> Iterator[None]:
    """Inside, what native libraries print on stdout goes to stderr: only the result goes to stdout."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
