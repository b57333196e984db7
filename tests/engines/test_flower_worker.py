"""Clients with a memory, and the names under which failures leave a device."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dapfl.engines.flower.participant import FolderMemory, Participant
from dapfl.engines.flower.processes import wait_until
from dapfl.engines.flower.worker import WorkerAddress, WorkerFailure, ask, failure_code
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

    def state(self) -> bytes:
        return str(self.count).encode()

    def restore(self, state: bytes) -> None:
        if not state.isdigit():
            raise ProtocolError("bad-state", "damaged")
        self.count = int(state)


def test_a_client_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    first = Participant(Counter, FolderMemory(tmp_path))
    assert [first.answer(b"a"), first.answer(b"b")] == [b"1:a", b"2:b"]
    assert Participant(Counter, FolderMemory(tmp_path)).answer(b"c") == b"3:c"


def test_the_state_is_saved_before_the_answer_is_given(tmp_path: Path) -> None:
    class FullDisk(FolderMemory):
        def save(self, state: bytes) -> None:
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        Participant(Counter, FullDisk(tmp_path)).answer(b"a")


def test_a_client_that_could_not_save_begins_again_from_what_was_saved(tmp_path: Path) -> None:
    memory = FolderMemory(tmp_path)
    participant = Participant(Counter, memory)
    participant.answer(b"a")
    save, memory.save = memory.save, lambda state: 1 / 0  # type: ignore[assignment,return-value]
    with pytest.raises(ZeroDivisionError):
        participant.answer(b"b")
    memory.save = save  # type: ignore[method-assign]
    assert participant.answer(b"b") == b"2:b"


def test_a_client_learns_how_long_its_messages_travel(tmp_path: Path) -> None:
    client = Counter()
    Participant(lambda: client, FolderMemory(tmp_path)).answer(b"a", seconds=2.5)
    assert client.seconds == [2.5]


def test_a_damaged_state_says_what_to_do(tmp_path: Path) -> None:
    FolderMemory(tmp_path).save(b"not a number")
    with pytest.raises(RunDirectoryError, match=r"Remove client\.state"):
        Participant(Counter, FolderMemory(tmp_path)).answer(b"a")


def test_the_state_is_for_its_owner_only(tmp_path: Path) -> None:
    FolderMemory(tmp_path).save(b"1")
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
def test_nothing_of_a_failure_leaves_but_its_name(error: Exception, code: str) -> None:
    assert failure_code(error) == code


@pytest.fixture
def guardian() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the SuperNode's executor."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def socket_of(folder: Path) -> Path:
    address = msgspec.json.decode((folder / "worker.json").read_bytes(), type=WorkerAddress)
    return Path(address.socket)


@pytest.mark.processes
def test_a_worker_gives_a_name_for_what_it_lacks_and_ends_with_its_guardian(
    tmp_path: Path, guardian: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(WorkerFailure) as failure:
        ask(tmp_path, b"hello", 0.0, guardian.pid)
    assert failure.value.code == "bad-configuration"  # there is no client.toml
    first = socket_of(tmp_path)
    (tmp_path / "client.toml").write_text("client = 'no number'")
    with pytest.raises(WorkerFailure, match="bad-configuration"):
        ask(tmp_path, b"hello", 0.0, guardian.pid)
    assert socket_of(tmp_path) == first  # one worker answers all messages
    guardian.send_signal(signal.SIGKILL)
    guardian.wait()
    wait_until(lambda: not first.exists(), "The worker's end", 30)


@pytest.mark.processes
def test_a_worker_that_has_died_is_replaced(tmp_path: Path, guardian: subprocess.Popen[bytes]) -> None:
    with pytest.raises(WorkerFailure):
        ask(tmp_path, b"hello", 0.0, guardian.pid)
    first = socket_of(tmp_path)
    (pid,) = (int(p.name) for p in Path("/proc").glob("[0-9]*") if str(tmp_path) in command_of(p))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerFailure, match="bad-configuration"):
        ask(tmp_path, b"hello", 0.0, guardian.pid)
    assert socket_of(tmp_path) != first
    assert not first.parent.exists()  # the next one tidies up


def command_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""
