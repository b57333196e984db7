"""Flower's processes on this machine: started, watched, restarted, and taken down with all they started."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import psutil

from dapfl.errors import TransportError

_PATIENCE = 8.0  # seconds between the request to end and the end


class Program:
    """One Flower program in a session of its own, its output in a log file.

    Whatever happens to us, it does not stay behind: it is ended by `stop`, and by the system if we die.
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
                start_new_session=True,  # Ctrl-C is ours to handle; and a group that can be signalled whole
                preexec_fn=_die_with_parent,
            )
        return self

    @property
    def process_id(self) -> int | None:
        """Its process id while it runs."""
        return None if self.ended else self._process.pid  # type: ignore[union-attr]

    @property
    def ended(self) -> bool:
        """Whether it is not running."""
        return self._process is None or self._process.poll() is not None

    def wait(self) -> None:
        """Waits for its end."""
        if self._process is not None:
            self._process.wait()

    def last_words(self) -> str:
        """The last line of its log that says something, for an error message."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text("utf-8", "replace").splitlines()
            return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
        return ""

    def check(self) -> None:
        """TransportError if it is not running."""
        if self.ended:
            raise TransportError(
                f"Flower's {self.name} has ended. Its log, {self.log}, ends with: {self.last_words()}"
            )


def stop(programs: Sequence[Program]) -> None:
    """Ends programs and everything that they have started: first by request, then by force."""
    heads = {program.process_id for program in programs} - {None}
    deadline = time.monotonic() + _PATIENCE
    # More than once: one that is about to end may just have started another.
    while members := [process for process in psutil.process_iter() if _belongs(process, heads)]:
        patient = time.monotonic() < deadline
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.terminate() if patient else member.kill()
        psutil.wait_procs(members, timeout=max(0.5, deadline - time.monotonic()))
    for program in programs:
        program.wait()


def _belongs(process: psutil.Process, heads: set[int | None]) -> bool:
    """Whether a process is one of these, in the group of one, or a descendant of one.

    Both ways matter: what outlives its parent stays in the group, what leaves the group has a parent.
    """
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return os.getpgid(process.pid) in heads or any(parent.pid in heads for parent in process.parents())
    return False


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def wait_until(
    ready: Callable[[], bool], what: str, timeout: float, check: Callable[[], None] = lambda: None
) -> None:
    """Waits for something to become true while `check` raises nothing."""
    deadline = time.monotonic() + timeout
    while not ready():
        check()
        if time.monotonic() >= deadline:
            raise TransportError(f"{what} did not come within {timeout:.0f} s.")
        time.sleep(0.1)


def accepts_connections(address: str) -> bool:
    """Whether something listens at host:port."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=1):
        return True
    return False


def _die_with_parent() -> None:
    """Asks Linux to end a child when its parent is killed; elsewhere `stop` has to do."""
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
        if os.getppid() == 1:
            os._exit(1)  # the parent died before we could ask
