"""Programs that we start on this machine, and stop together with every process that they have started."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import psutil

from dapfl.errors import TransportError

_GRACE_PERIOD = 8.0  # seconds between SIGTERM and SIGKILL


class Program:
    """One program in a session of its own, with its output in a log file.

    It never outlives us: `stop` ends it, and if we are killed, Linux does.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self._folder = folder
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Starts it, or starts it again."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only us, and `stop` finds its group
                preexec_fn=partial(_die_with_parent, os.getpid()),
            )
        return self

    @property
    def process_id(self) -> int | None:
        """Its process id, while it is running."""
        return None if self.ended else self._process.pid  # type: ignore[union-attr]

    @property
    def ended(self) -> bool:
        """Whether it is not running."""
        return self._process is None or self._process.poll() is not None

    def wait(self) -> None:
        """Waits until it has ended."""
        if self._process is not None:
            self._process.wait()

    def last_log_line(self) -> str:
        """The last line of its log that is not empty, for an error message."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text("utf-8", "replace").splitlines()
            return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
        return ""

    def check(self) -> None:
        """TransportError if it is not running."""
        if self.ended:
            raise TransportError(
                f"Flower's {self.name} has ended. Its log, {self.log}, ends with: {self.last_log_line()}"
            )


def stop(programs: Sequence[Program]) -> None:
    """Ends programs and every process that they have started: by SIGTERM and, if need be, by SIGKILL."""
    leaders = {program.process_id for program in programs} - {None}
    deadline = time.monotonic() + _GRACE_PERIOD
    # More than once, since a process may have started another one just before it ended.
    while members := [process for process in psutil.process_iter() if _belongs(process, leaders)]:
        graceful = time.monotonic() < deadline
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.terminate() if graceful else member.kill()
        psutil.wait_procs(members, timeout=max(0.5, deadline - time.monotonic()))
    for program in programs:
        program.wait()


def _belongs(process: psutil.Process, leaders: set[int | None]) -> bool:
    """Whether a process is in the process group of one of these, or is a descendant of one.

    Both matter: a process that outlives its parent is still in the group, and one that has left the group
    still has its parent.
    """
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        in_group = os.getpgid(process.pid) in leaders
        return in_group or any(parent.pid in leaders for parent in process.parents())
    return False


def free_ports(count: int) -> list[int]:
    """Ports on loopback that are not in use now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def wait_until(
    ready: Callable[[], bool], what: str, timeout: float, check: Callable[[], None] = lambda: None
) -> None:
    """Waits until `ready()` is true; TransportError, which names `what`, if that takes too long.

    `check` is called while waiting, and may raise an error to end it.
    """
    deadline = time.monotonic() + timeout
    while not ready():
        check()
        if time.monotonic() >= deadline:
            raise TransportError(
                f"Gave up waiting for {what} after {timeout:.0f} s. Try again when the machine is less busy; "
                "if that does not help, the logs of Flower's processes in the run directory may say why."
            )
        time.sleep(0.1)


def accepts_connections(address: str) -> bool:
    """Whether a server listens at host:port."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=1):
        return True
    return False


def _die_with_parent(parent: int) -> None:
    """Asks Linux to end this process when its parent is killed. Other systems offer no such thing."""
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
        if os.getppid() != parent:  # which is 1 in a container that runs nothing else
            os._exit(1)  # the parent died before we could ask
