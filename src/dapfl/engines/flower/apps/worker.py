"""A process beside a SuperNode that keeps its client in memory from round to round.

Flower starts a new ClientApp process for every message. Importing torch, loading the data and preparing
the keys there would take seconds each time. So the ClientApp passes the message on to this worker, which it
starts if there is none. The worker ends when the SuperNode's executor does.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dapfl.errors import (
    ConfigError,
    DamagedFile,
    DataError,
    KeyFileError,
    RunDirectoryError,
    StorageError,
    TaskError,
    TransportError,
)

if TYPE_CHECKING:
    from dapfl.engines.flower.apps.persistent_client import DeviceClient, PersistentClient

_ADDRESS_FILE = "worker.json"
_LOCK_FILE = "worker.lock"
_PREFIX = "dapfl-worker-"
_STARTS = 2  # a worker that is killed while it starts is started once more
_REPLY, FAILURE = b"r", b"f"  # the first byte of what a worker sends back
SECONDS = struct.Struct("<d")
_CODES: dict[type[Exception], str] = {
    KeyFileError: "no-usable-keys",
    DataError: "no-data",
    TaskError: "no-task",
    ConfigError: "bad-configuration",
    RunDirectoryError: "bad-state",
    DamagedFile: "bad-state",
    StorageError: "disk-full",
    MemoryError: "out-of-memory",
}


class WorkerAddress(msgspec.Struct, frozen=True):
    """Where a worker listens. It is kept in a file that only its owner can read."""

    socket: str
    secret: str


class WorkerFailure(TransportError):
    """The worker could not answer. `code` says why, and may leave the device."""

    def __init__(self, code: str) -> None:
        super().__init__(f"This client could not answer ({code}). The SuperNode's log says why.")
        self.code = code


def ask(folder: Path, message: bytes, transfer_seconds: float, executor: int) -> bytes:
    """Has the worker of a client's folder answer a message that took `transfer_seconds` to arrive.

    Starts a worker if there is none. It ends when the process with the id `executor` does.
    """
    for attempt in range(2):
        try:
            with _connect(folder, executor) as connection:
                connection.send_bytes(SECONDS.pack(transfer_seconds) + message)
                reply = connection.recv_bytes()
        except (EOFError, OSError, AuthenticationError):
            # The worker died, or was about to end: a new one gets the message again.
            if attempt:
                raise WorkerFailure("worker-died") from None
            continue
        if reply[:1] == FAILURE:
            raise WorkerFailure(reply[1:].decode("ascii", "replace"))
        return reply[1:]
    raise AssertionError("unreachable")


def _connect(folder: Path, executor: int) -> "Connection[Any, Any]":
    with contextlib.suppress(
        OSError, msgspec.MsgspecError, UnicodeDecodeError, AuthenticationError, EOFError
    ):
        return _connect_to_running(folder)
    _start(folder, executor)
    return _connect_to_running(folder)


def _connect_to_running(folder: Path) -> "Connection[Any, Any]":
    address = msgspec.json.decode((folder / _ADDRESS_FILE).read_bytes(), type=WorkerAddress)
    return Client(address.socket, family="AF_UNIX", authkey=address.secret.encode())


def _start(folder: Path, executor: int) -> None:
    """Starts a worker and waits until it listens."""
    command = [sys.executable, "-m", "dapfl.engines.flower.apps.worker", str(folder.resolve()), str(executor)]
    for _ in range(_STARTS):
        # The output ends when the worker closes its end of the pipe: once it listens, or when it fails.
        started = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
        if started.stdout == b"ready":
            return
    raise WorkerFailure("worker-not-started")


def detach() -> None:
    """Continues in a child process, so that whoever has started this one need not wait for its end."""
    if os.fork():
        os._exit(0)


def serve(folder: Path, executor: int) -> None:
    """What a worker runs: answers messages until the executor has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=_end_with, args=(executor,), daemon=True).start()
    log_what_happens()  # to the SuperNode's log
    from dapfl.engines.flower.apps.persistent_client import FileStateStore, PersistentClient
    from dapfl.engines.flower.deployment.folders import write

    with (folder / _LOCK_FILE).open("w") as lock, tempfile.TemporaryDirectory(prefix=_PREFIX) as private:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an old worker of this folder may still be ending
        _tidy(folder)
        secret = secrets.token_hex(32)
        path = str(Path(private) / "worker")
        with Listener(path, family="AF_UNIX", authkey=secret.encode()) as listener:
            content = msgspec.json.encode(WorkerAddress(path, secret))
            write(folder / _ADDRESS_FILE, content, private=True)
            os.write(1, b"ready")
            os.dup2(2, 1)  # closes the pipe to `_start`; what is printed from now on goes to the log
            client = PersistentClient(lambda: build(folder), FileStateStore(folder / "state"))
            while True:
                with contextlib.suppress(EOFError, OSError, AuthenticationError), listener.accept() as caller:
                    caller.send_bytes(reply_of(client, caller.recv_bytes()))
                prepare_while_idle(client, lambda: is_called(listener))


def log_what_happens() -> None:
    """Has a device say in its log what it refuses, and which of its work was refused."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("dapfl").setLevel(logging.INFO)


def prepare_while_idle(client: "PersistentClient", called: Callable[[], bool]) -> None:
    """Lets the client prepare its next work, piece by piece, until it is called or there is nothing left."""
    try:
        while not called() and client.prepare():
            pass
    except Exception:
        traceback.print_exc()  # to the SuperNode's log: whatever it was, the next message can be answered


def is_called(listener: Listener) -> bool:
    """Whether somebody waits for an answer."""
    waiting: socket.socket = listener._listener._socket  # type: ignore[attr-defined]
    return bool(select.select([waiting], [], [], 0)[0])


def build(folder: Path) -> "DeviceClient":
    """The client whose folder this is."""
    from dapfl.engines.flower.deployment.bundles import client_bundle
    from dapfl.engines.flower.deployment.folders import ClientFolder

    settings = ClientFolder(folder).settings()
    config, client = settings.run, settings.client
    bundle = client_bundle(folder, client, config.crypto)

    from dapfl.crypto.engines.base import set_threads
    from dapfl.federation.assembly import build_client  # imports torch: seconds
    from dapfl.federation.run_terms import Shared

    if settings.threads:
        set_threads(settings.threads)
    shared = Shared(config, settings.policy)
    return build_client(config, settings.policy, client, bundle, shared, standalone=True)


def _tidy(folder: Path) -> None:
    """Removes the socket of a worker that was killed before it could do so itself."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        old = msgspec.json.decode((folder / _ADDRESS_FILE).read_bytes(), type=WorkerAddress)
        left = Path(old.socket).parent
        if left.name.startswith(_PREFIX) and left.parent == Path(tempfile.gettempdir()):
            shutil.rmtree(left, ignore_errors=True)


def reply_of(client: "PersistentClient", message: bytes) -> bytes:
    """What goes back to the ClientApp: a reply or a code, never the text of an exception."""
    try:
        (transfer_seconds,) = SECONDS.unpack_from(message)
        return _REPLY + client.answer(message[SECONDS.size :], transfer_seconds)
    except Exception as error:
        traceback.print_exc()  # to the SuperNode's log, on this device
        return FAILURE + failure_code(error).encode()


def failure_code(error: Exception) -> str:
    """The code of a failure, which may leave the device."""
    if isinstance(error, WorkerFailure):
        return error.code
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), "client-error")


def _end_with(executor: int) -> None:
    """Ends this process when the executor has ended, even in the middle of a message.

    The next worker answers that message, from the last saved state.
    """
    while _exists(executor):
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(0)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    detach()
    serve(Path(sys.argv[1]), int(sys.argv[2]))
