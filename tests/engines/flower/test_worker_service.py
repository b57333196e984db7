"""Code that runs as the SuperNode's user gets answers of the protocol from the worker, and nothing else."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dapfl.engines.flower.apps.worker import WorkerFailure
from dapfl.engines.flower.apps.worker_service import ask
from dapfl.engines.flower.host.processes import wait_until

WORKER, NODE, STRANGER, GROUP = 61001, 61002, 61003, 61000
SERVICE = """
import os, sys
from pathlib import Path
from dapfl.engines.flower.apps import worker_service
if os.getuid() == 0:
    os.setgroups([]); os.setgid({group}); os.setuid({user})
secret = Path(sys.argv[1]).read_bytes()
worker_service.listen(Path(sys.argv[2]), lambda message: b"r" + message[8:][::-1])
"""
CALLER = """
import os, sys
from pathlib import Path
from dapfl.engines.flower.apps.worker_service import ask
os.setgroups([]); os.setgid({group}); os.setuid({user})
def attempt(what):
    try:
        return what()
    except Exception as error:
        return type(error).__name__
keys, socket, process = sys.argv[1:]
print(attempt(lambda: ask(Path(socket), b"call", 0.5)))
print(attempt(lambda: Path(keys).read_bytes()))
print(attempt(lambda: Path("/proc", process, "mem").open("rb").read(1)))
print(attempt(lambda: Path("/proc", process, "environ").read_bytes()))
print(attempt(lambda: os.kill(int(process), 9)))
print(attempt(lambda: Path(socket).unlink()))
"""
root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can become two other users")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Path, Path, int]]:
    """A worker under its own user, where we may become one: its keys, its socket and its process."""
    home, run = tmp_path / "client", tmp_path / "run"
    for folder, mode in ((home, 0o700), (run, 0o750)):
        folder.mkdir(mode=mode)
    keys, socket = home / "client-001.keys", run / "socket"
    keys.write_bytes(b"the secret of this device")
    keys.chmod(0o600)
    if os.getuid() == 0:
        for path in (home, keys, run):
            os.chown(path, WORKER, GROUP)
        for parent in tmp_path.parents:
            if parent.stat().st_mode & 0o001 == 0:
                parent.chmod(parent.stat().st_mode | 0o011)  # pytest's folders are for their owner only
        tmp_path.chmod(0o755)
    code = SERVICE.format(group=GROUP, user=WORKER)
    process = subprocess.Popen([sys.executable, "-c", code, str(keys), str(socket)])
    try:
        wait_until(socket.exists, "the worker's socket", 120)
        yield keys, socket, process.pid
    finally:
        process.kill()
        process.wait()


def heard(user: int, group: int, service: tuple[Path, Path, int]) -> list[str]:
    code = CALLER.format(user=user, group=group)
    command = [sys.executable, "-c", code, *map(str, service)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_service_answers_and_survives_callers_that_say_nothing(service: tuple[Path, Path, int]) -> None:
    import socket as sockets

    _, path, _ = service
    for junk in (b"", b"\xff\xff\xff\xff", b"\x00\x00\x00\x05ab"):
        with sockets.socket(sockets.AF_UNIX) as rude:
            rude.connect(str(path))
            rude.sendall(junk)
    assert ask(path, b"call", 0.5) == b"llac"


def test_where_nobody_listens_the_device_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailure, match="no-worker"):
        ask(tmp_path / "socket", b"call", 0.5)


@root_only
def test_the_supernodes_user_gets_answers_and_neither_keys_nor_memory(
    service: tuple[Path, Path, int],
) -> None:
    answer, *attempts = heard(NODE, GROUP, service)
    assert answer == "b'llac'"
    assert attempts == ["PermissionError"] * 5


@root_only
def test_another_user_gets_nothing(service: tuple[Path, Path, int]) -> None:
    assert heard(STRANGER, STRANGER, service) == ["WorkerFailure"] + ["PermissionError"] * 5


def test_the_service_says_in_its_log_what_it_refuses(tmp_path: Path) -> None:
    """It has two users and two services, and the log of a device is the worker's."""
    (tmp_path / "client").mkdir()
    code = (
        "import logging, sys\nfrom pathlib import Path\n"
        "from dapfl.engines.flower.apps import worker_service\n"
        "worker_service.listen = lambda *_: logging.getLogger('dapfl.client').info('refused a message')\n"
        "worker_service.serve(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "client"), str(tmp_path / "socket")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "INFO dapfl.client: refused a message" in done.stderr
