"""Batches that the processes of one machine compute together.

The workers of a run all need the same decrypted aggregate. Each takes the next part that nobody has taken,
until all parts are done, and all of them read the result: it is computed once, on all cores. A process that
comes late finds it finished. Nobody waits long for another: a part that does not come is computed again.

The result is what one process alone would have computed. A process that is in no team computes alone.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from dapfl.arrays import Rows
from dapfl.system.processes import WORKERS

_NAME = 32
_PARTS = 64  # at most, of one batch
_LEAST = 8  # rows of a part: the lanes of the widest engine
_MEMORY = 2**25  # bytes; they take up room only once they are used
_LOCK_SECONDS = 5.0
_FREE, _TAKEN, _DONE = 0, 1, 2

Work = Callable[[slice], Rows]


class _Alone(Exception):
    """The team has gone on to another batch, or a member died with the lock: each process computes alone."""


class Team:
    """What the members share. It is handed to a process when that is started."""

    def __init__(self) -> None:
        self._lock = WORKERS.Lock()
        self._memory = WORKERS.RawArray(ctypes.c_uint8, _NAME + _PARTS + _MEMORY)

    def compute(self, name: bytes, count: int, width: int, work: Work) -> Rows:
        """`work` on all of `count` rows of `width` bytes, under a hash that says what is computed."""
        step = max(_LEAST, -(-count // (_PARTS * _LEAST)) * _LEAST)
        parts = [slice(start, min(start + step, count)) for start in range(0, count, step)]
        if len(parts) < 2 or count * width > _MEMORY:
            return work(slice(0, count))
        batch = _Batch(self, name, count, width)
        try:
            longest = 0.0
            with batch.locked(begin=True):
                pass
            while (index := batch.take(len(parts))) is not None:
                began = time.monotonic()
                batch.put(index, parts[index], work)
                longest = max(longest, time.monotonic() - began)
            return batch.collect(parts, work, patience=2 * longest + 0.01)
        except _Alone:
            return work(slice(0, count))


@dataclass
class _Batch:
    """One batch as one member sees it."""

    team: Team
    name: bytes
    count: int
    width: int

    def __post_init__(self) -> None:
        memory: Rows = np.frombuffer(memoryview(self.team._memory).cast("B"), np.uint8)
        self._name = memory[:_NAME]
        self._states = memory[_NAME : _NAME + _PARTS]
        rows = memory[_NAME + _PARTS :][: self.count * self.width]
        self._rows = rows.reshape(self.count, self.width)

    @contextmanager
    def locked(self, begin: bool = False) -> Iterator[None]:
        """Inside, nobody else touches the memory, and it is about this batch."""
        if not self.team._lock.acquire(timeout=_LOCK_SECONDS):
            raise _Alone
        try:
            if self._name.tobytes() != self.name:
                if not begin:
                    raise _Alone
                self._name[:] = np.frombuffer(self.name, np.uint8)
                self._states[:] = _FREE
            yield
        finally:
            self.team._lock.release()

    def take(self, parts: int) -> int | None:
        """A part that nobody has taken."""
        with self.locked():
            free = np.flatnonzero(self._states[:parts] == _FREE)
            if not len(free):
                return None
            self._states[free[0]] = _TAKEN
            return int(free[0])

    def put(self, index: int, rows: slice, work: Work) -> None:
        """Computes a part; if that fails, others may fail at it, too."""
        try:
            result = work(rows)
        except BaseException:
            with self.locked():
                self._states[index] = _FREE
            raise
        with self.locked():
            self._rows[rows] = result
            self._states[index] = _DONE

    def collect(self, parts: list[slice], work: Work, patience: float) -> Rows:
        """All rows, once the parts that others have taken are done, or after `patience` seconds without."""
        deadline = time.monotonic() + patience
        while True:
            with self.locked():
                missing = np.flatnonzero(self._states[: len(parts)] != _DONE)
                if not len(missing):
                    return self._rows.copy()
            if time.monotonic() < deadline:
                time.sleep(0.001)
            else:
                self.put(int(missing[-1]), parts[missing[-1]], work)


_team: Team | None = None


def join(team: Team | None) -> None:
    """From now on, this process computes with these others."""
    global _team
    _team = team


def together(name: bytes, count: int, width: int, work: Work) -> Rows:
    """`work` on all of `count` rows of `width` bytes, with the team of this process if it has one."""
    return work(slice(0, count)) if _team is None else _team.compute(name, count, width, work)
