"""No process that we have started outlives us."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from dapfl.engines.flower.host.processes import Program, accepts_connections, free_ports, stop, wait_until
from dapfl.errors import TransportError

FAMILY = """
import subprocess, sys, time
child = [sys.executable, "-c", "import time; time.sleep(600)"]
ignores = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
           "print('deaf', flush=True); time.sleep(600)"]
own_session = subprocess.Popen(child, start_new_session=True)
deaf = subprocess.Popen(ignores, stdout=subprocess.PIPE)
deaf.stdout.readline()
orphan = subprocess.check_output([sys.executable, "-c", '''
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL).pid)
'''], text=True).strip()
print(own_session.pid, deaf.pid, orphan, flush=True)
time.sleep(600)
"""


def program(folder: Path, code: str) -> Program:
    return Program("program", [sys.executable, "-c", code], folder, dict(os.environ))


@pytest.mark.processes
def test_a_program_is_ended_with_all_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapfl.engines.flower.host.processes._GRACE_PERIOD", 1.0)
    family = program(tmp_path, FAMILY).start()
    wait_until(lambda: b"\n" in family.log.read_bytes(), "the family's start", 30, family.check)
    members = [int(word) for word in family.log.read_text().split()]
    assert len(members) == 3 and all(psutil.pid_exists(member) for member in members)
    stop([family])
    assert family.ended
    assert not [m for m in members if psutil.pid_exists(m) and psutil.Process(m).status() != "zombie"]


@pytest.mark.processes
def test_a_program_that_has_ended_is_reported_with_the_last_line_of_its_log(tmp_path: Path) -> None:
    crashing = program(tmp_path, "import sys; print('starting'); sys.exit('no such certificate')").start()
    wait_until(lambda: crashing.ended, "the crash", 30)
    with pytest.raises(TransportError, match=r"program has ended.*no such certificate"):
        crashing.check()


@pytest.mark.processes
def test_a_program_can_be_started_again(tmp_path: Path) -> None:
    short = program(tmp_path, "print('here')").start()
    wait_until(lambda: short.ended, "the end", 30)
    short.start()
    wait_until(lambda: short.ended, "the end", 30)
    assert short.log.read_text() == "here\nhere\n"


@pytest.mark.processes
@pytest.mark.parametrize(("us", "output"), [(1, "here\n"), (4711, "")])
def test_the_first_process_of_a_container_may_start_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, us: int, output: str
) -> None:
    """Elsewhere, a parent with the number 1 means that ours has died."""
    monkeypatch.setattr(os, "getpid", lambda: us)
    monkeypatch.setattr(os, "getppid", lambda: 1)  # as the program sees it
    short = program(tmp_path, "print('here')").start()
    short.wait()
    assert short.log.read_text() == output


def test_a_program_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    stop([program(tmp_path, "")])


def test_free_ports_are_distinct_and_not_in_use() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert not any(accepts_connections(f"127.0.0.1:{port}") for port in ports)


def test_waiting_ends_after_its_timeout() -> None:
    with pytest.raises(TransportError, match="Gave up waiting for a miracle after 0 s"):
        wait_until(lambda: False, "a miracle", 0)
