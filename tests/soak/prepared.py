"""`dapfl` commands in processes of their own that need not import anything: copies (fork) of this one.

A command imports torch, and so does each of its workers: 2 to 3 s of CPU in every process, hundreds of times
the work of a round of a task that takes no time. Here this process imports everything once. A command is a
copy of it, and so is the process from which the command's workers are copied, before there are any keys. What
the command does from then on is what `dapfl` does; what is not played is a kill while it imports.
"""

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import connection, forkserver, util
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import dapfl.engines.local
import dapfl.federation.assembly
import dapfl.runs.session  # noqa: F401
from dapfl import cli
from dapfl.crypto.engines.base import set_threads
from dapfl.system.processes import WorkerProcess


class Prepared:
    """A command at work; has the names of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                status = _serve(arguments, log)
            finally:
                os._exit(status)

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """The exit code, once it has ended."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("dapfl", timeout)
            time.sleep(min(0.02, max(0.001, deadline - time.monotonic())))
        return code

    def kill(self) -> None:
        """kill -9."""
        if self.poll() is None:
            os.kill(self.pid, 9)


def _serve(arguments: Sequence[str], log: Path) -> int:
    """In the copy: a process group, log and process for workers of its own; then the command."""
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    logging.disable(logging.NOTSET)  # what the soak has set for itself
    set_threads(None)
    _copy_workers()
    status = cli.main(list(arguments))
    util._exit_function()  # type: ignore[attr-defined]  # as at the end of any Python program
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _copy_workers() -> None:
    """Starts the process that workers are copied from, and has them copied from there."""
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    alive, ours = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        if (pid := os.fork()) == 0:
            os.close(ours)
            with suppress(BaseException):  # it leaves by SystemExit
                forkserver.main(listener.detach(), alive, [])
            os._exit(0)
    os.close(alive)
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, ours, pid
    WorkerProcess._Popen = staticmethod(ForkServerProcess._Popen)  # type: ignore[attr-defined, assignment]
