"""Worker processes that load nothing of the program that started them.

A process that multiprocessing spawns runs the main program again, under another name, to be able to unpickle
what it defines. Our workers need nothing of it. So a plain script may start a run without the line
`if __name__ == "__main__":`, and is not executed once more in every worker.
"""

import sys
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType


class WorkerProcess(SpawnProcess):
    """A spawned process that knows no main program."""

    def start(self) -> None:
        """Starts it while an empty module stands in for the main program."""
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _WorkerContext(SpawnContext):
    Process = WorkerProcess


WORKERS = _WorkerContext()
"""For everything that starts workers, in place of `multiprocessing.get_context("spawn")`."""
