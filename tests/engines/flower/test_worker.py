"""Clients that save their states, their worker processes, and the codes of their failures."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from dapfl.engines.flower.apps.persistent_client import FileStateStore, PersistentClient
from dapfl.engines.flower.apps.worker import (
    WorkerAddress,
    WorkerFailure,
    ask,
    failure_code,
    prepare_while_idle,
)
from dapfl.engines.flower.host.processes import wait_until
from dapfl.errors import DataError, KeyFileError, ProtocolError, RunDirectoryError


class Counter:
    """Counts the messages that it has answered."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds: list[float] = []

    def handle(self, message: bytes) -> bytes:
        self.count += 1
        return b"%d:%s" % (self.count, message)

    def record_transfer(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def saved_state(self) -> bytes:
        return str(self.count).encode()

    def restore(self, state: bytes) -> None:
        if not state.isdigit():
            raise ProtocolError("bad-state", "damaged")
        self.count = int(state)


def test_a_client_continues_where_it_was_after_a_restart(tmp_path: Path) -> None:
    first = PersistentClient(Counter, FileStateStore(tmp_path))
    assert [first.answer(b"a"), first.answer(b"b")] == [b"1:a", b"2:b"]
    assert PersistentClient(Counter, FileStateStore(tmp_path)).answer(b"c") == b"3:c"


def test_the_state_is_saved_before_the_answer_is_given(tmp_path: Path) -> None:
    class FullDisk(FileStateStore):
        def save(self, state: bytes) -> None:
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        PersistentClient(Counter, FullDisk(tmp_path)).answer(b"a")


def test_a_client_that_could_not_be_saved_continues_from_its_last_saved_state(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path)
    client = PersistentClient(Counter, store)
    client.answer(b"a")
    save, store.save = store.save, lambda state: 1 / 0  # type: ignore[assignment,return-value]
    with pytest.raises(ZeroDivisionError):
        client.answer(b"b")
    store.save = save  # type: ignore[method-assign]
    assert client.answer(b"b") == b"2:b"


def test_a_client_learns_how_long_its_messages_take_to_arrive(tmp_path: Path) -> None:
    client = Counter()
    PersistentClient(lambda: client, FileStateStore(tmp_path)).answer(b"a", transfer_seconds=2.5)
    assert client.seconds == [2.5]


def test_a_damaged_state_says_what_to_do(tmp_path: Path) -> None:
    FileStateStore(tmp_path).save(b"not a number")
    with pytest.raises(RunDirectoryError, match=r"Remove client\.state"):
        PersistentClient(Counter, FileStateStore(tmp_path)).answer(b"a")


def test_only_its_owner_can_read_the_state(tmp_path: Path) -> None:
    FileStateStore(tmp_path).save(b"1")
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyFileError("/home/me/keys"), "no-usable-keys"),
        (DataError("/home/me/data"), "no-data"),
        (RunDirectoryError("/home/me/state"), "bad-state"),
        (WorkerFailure("worker-died"), "worker-died"),
        (ZeroDivisionError("secret"), "client-error"),
    ],
)
def test_a_failure_is_reported_by_a_code_only(error: Exception, code: str) -> None:
    assert failure_code(error) == code


@pytest.fixture
def executor() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the SuperNode's executor."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def socket_of(folder: Path) -> Path:
    address = msgspec.json.decode((folder / "worker.json").read_bytes(), type=WorkerAddress)
    return Path(address.socket)


@pytest.mark.processes
def test_a_worker_reports_what_it_lacks_by_a_code_and_ends_with_its_executor(
    tmp_path: Path, executor: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(WorkerFailure) as failure:
        ask(tmp_path, b"hello", 0.0, executor.pid)
    assert failure.value.code == "bad-configuration"  # there is no client.toml
    first = socket_of(tmp_path)
    (tmp_path / "client.toml").write_text("client = 'no number'")
    with pytest.raises(WorkerFailure, match="bad-configuration"):
        ask(tmp_path, b"hello", 0.0, executor.pid)
    assert socket_of(tmp_path) == first  # one worker answers all messages
    executor.send_signal(signal.SIGKILL)
    executor.wait()
    wait_until(lambda: not first.exists(), "the worker's end", 30)


@pytest.mark.processes
def test_a_worker_that_has_died_is_replaced(tmp_path: Path, executor: subprocess.Popen[bytes]) -> None:
    with pytest.raises(WorkerFailure):
        ask(tmp_path, b"hello", 0.0, executor.pid)
    first = socket_of(tmp_path)
    (pid,) = (int(p.name) for p in Path("/proc").glob("[0-9]*") if str(tmp_path) in command_of(p))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerFailure, match="bad-configuration"):
        ask(tmp_path, b"hello", 0.0, executor.pid)
    assert socket_of(tmp_path) != first
    assert not first.parent.exists()  # the next worker removes it


@pytest.mark.processes
def test_a_worker_that_is_killed_while_it_starts_is_started_once_more(
    tmp_path: Path, executor: subprocess.Popen[bytes]
) -> None:
    """Otherwise one kill would cost the client its round."""
    with ThreadPoolExecutor() as asking, (tmp_path / "worker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a worker that starts waits for this
        asked = asking.submit(ask, tmp_path, b"hello", 0.0, executor.pid)
        wait_until(lambda: starting_workers(tmp_path) != [], "a worker", 60)
        (worker,) = starting_workers(tmp_path)
        worker.kill()
        fcntl.flock(lock, fcntl.LOCK_UN)
        with pytest.raises(WorkerFailure, match="bad-configuration"):  # which the next worker says
            asked.result()


def starting_workers(folder: Path) -> list[psutil.Process]:
    """The processes that have opened the folder's lock, other than this one."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            paths = [] if process.pid == os.getpid() else [file.path for file in process.open_files()]
            found += [process] if str(folder / "worker.lock") in paths else []
    return found


def command_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def test_a_client_prepares_its_next_work_until_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    class Waiting:
        pieces = 5

        def prepare(self) -> bool:
            self.pieces -= 1
            if self.pieces == 2:
                raise MemoryError
            return self.pieces >= 0

    client = Waiting()
    calls = iter([False, False, True])
    prepare_while_idle(client, lambda: next(calls))  # type: ignore[arg-type]
    assert client.pieces == 3
    prepare_while_idle(client, lambda: False)  # type: ignore[arg-type]
    assert client.pieces == 2  # what goes wrong is logged, and messages are answered all the same
    assert "MemoryError" in capsys.readouterr().err
    prepare_while_idle(client, lambda: False)  # type: ignore[arg-type]
    assert client.pieces == -1


def test_nothing_is_prepared_before_the_first_message(tmp_path: Path) -> None:
    assert not PersistentClient(lambda: pytest.fail("too early"), FileStateStore(tmp_path)).prepare()
