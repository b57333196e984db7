"""Processes: workers that load nothing of the program that started them, and no core files of secrets.

A process that multiprocessing spawns runs the main program again, under another name, to be able to unpickle
what it defines. Our workers need nothing of it. So a plain script may start a run without the line
`if __name__ == "__main__":`, and is not executed once more in every worker.
"""

import resource
import signal
import sys
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType


class WorkerProcess(SpawnProcess):
    """A spawned process that knows no main program."""

    def start(self) -> None:
        """Starts it while an empty module stands in for the main program.

        Ctrl-C reaches every process of a terminal. It is the parent's to handle, and a worker that is still
        importing would answer with a traceback: so workers are born with it blocked.
        """
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            sys.modules["__main__"] = main


class _WorkerContext(SpawnContext):
    Process = WorkerProcess


WORKERS = _WorkerContext()
"""For everything that starts workers, in place of `multiprocessing.get_context("spawn")`."""


def forbid_core_files() -> None:
    """If this process crashes, or one that it starts, the system writes no image of its memory to a file.

    For every process that holds keys or what is encrypted under them.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
