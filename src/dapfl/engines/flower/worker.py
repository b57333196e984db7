"""A process beside a SuperNode in which its client stays awake from round to round.

Flower starts a new ClientApp process for every message. Importing torch, loading the data and preparing
the keys there would cost seconds a round; so the ClientApp hands the message to this worker, which it
starts when there is none. The worker ends when the SuperNode's executor does.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dapfl.errors import ConfigError, DataError, KeyFileError, RunDirectoryError, TaskError, TransportError

if TYPE_CHECKING:
    from dapfl.engines.flower.participant import Client as ProtocolClient
    from dapfl.engines.flower.participant import Participant

_ADDRESS_FILE = "worker.json"
_LOCK_FILE = "worker.lock"
_PREFIX = "dapfl-worker-"
_ANSWER, _FAILURE = b"a", b"f"  # the first byte of what a worker sends back
_STARTED: list[subprocess.Popen[bytes]] = []  # they outlive us: nobody waits for them
_SECONDS = struct.Struct("<d")
_CODES: dict[type[Exception], str] = {
    KeyFileError: "no-usable-keys",
    DataError: "no-data",
    TaskError: "no-task",
    ConfigError: "bad-configuration",
    RunDirectoryError: "bad-state",
    MemoryError: "out-of-memory",
}


class WorkerAddress(msgspec.Struct, frozen=True):
    """Where a worker listens; kept in a file that only its owner can read."""

    socket: str
    secret: str


class WorkerFailure(TransportError):
    """The worker has no answer; `code` names why and may leave the device."""

    def __init__(self, code: str) -> None:
        super().__init__(f"This client could not answer ({code}). The SuperNode's log says why.")
        self.code = code


def ask(folder: Path, message: bytes, seconds: float, guardian: int) -> bytes:
    """Has the folder's worker answer a message that was `seconds` on its way.

    Starts a worker if there is none; it lives as long as the process `guardian`.
    """
    for attempt in range(2):
        try:
            with _connect(folder, guardian) as connection:
                connection.send_bytes(_SECONDS.pack(seconds) + message)
                reply = connection.recv_bytes()
        except (EOFError, OSError, AuthenticationError):
            # It died under our hands, or an old one is just going: a fresh one takes the message again.
            if attempt:
                raise WorkerFailure("worker-died") from None
            continue
        if reply[:1] == _FAILURE:
            raise WorkerFailure(reply[1:].decode("ascii", "replace"))
        return reply[1:]
    raise AssertionError("unreachable")


def _connect(folder: Path, guardian: int) -> "Connection[Any, Any]":
    with contextlib.suppress(OSError, msgspec.MsgspecError, AuthenticationError, EOFError):
        return _dial(folder)
    _start(folder, guardian)
    return _dial(folder)


def _dial(folder: Path) -> "Connection[Any, Any]":
    address = msgspec.json.decode((folder / _ADDRESS_FILE).read_bytes(), type=WorkerAddress)
    return Client(address.socket, family="AF_UNIX", authkey=address.secret.encode())


def _start(folder: Path, guardian: int) -> None:
    """Starts a worker and waits until it listens."""
    command = [sys.executable, "-m", "dapfl.engines.flower.worker", str(folder.resolve()), str(guardian)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    _STARTED.append(process)
    assert process.stdout is not None
    with process.stdout as ready:
        if ready.read() != b"ready":  # ends when the worker has closed its end, whatever it wrote
            raise WorkerFailure("worker-not-started")


def serve(folder: Path, guardian: int) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=_end_with, args=(guardian,), daemon=True).start()
    from dapfl.engines.flower.folders import write
    from dapfl.engines.flower.participant import FolderMemory, Participant

    with (folder / _LOCK_FILE).open("w") as lock, tempfile.TemporaryDirectory(prefix=_PREFIX) as private:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an old worker of this folder may still be ending
        _tidy(folder)
        secret = secrets.token_hex(32)
        path = str(Path(private) / "worker")
        with Listener(path, family="AF_UNIX", authkey=secret.encode()) as listener:
            content = msgspec.json.encode(WorkerAddress(path, secret))
            write(folder / _ADDRESS_FILE, content, private=True)
            os.write(1, b"ready")
            os.dup2(2, 1)
            participant = Participant(lambda: build(folder), FolderMemory(folder / "state"))
            while True:
                with contextlib.suppress(EOFError, OSError, AuthenticationError), listener.accept() as caller:
                    caller.send_bytes(_reply(participant, caller.recv_bytes()))


def build(folder: Path) -> "ProtocolClient":
    """The protocol's client that the folder describes."""
    from dapfl.engines.flower.bundles import client_bundle
    from dapfl.engines.flower.folders import ClientFolder

    settings = ClientFolder(folder).settings()
    config, client = settings.run, settings.client
    bundle = client_bundle(folder, client, config.crypto)

    from dapfl.crypto.engine import set_threads
    from dapfl.federation.assembly import Shared, build_client  # torch: seconds

    if settings.threads:
        set_threads(settings.threads)
    return build_client(config, settings.policy, client, bundle, Shared(config), standalone=True)


def _tidy(folder: Path) -> None:
    """Removes the socket of a worker that was killed before it could."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        old = msgspec.json.decode((folder / _ADDRESS_FILE).read_bytes(), type=WorkerAddress)
        left = Path(old.socket).parent
        if left.name.startswith(_PREFIX) and left.parent == Path(tempfile.gettempdir()):
            shutil.rmtree(left, ignore_errors=True)


def _reply(participant: "Participant", message: bytes) -> bytes:
    """What goes back to the ClientApp: an answer or a code, never an exception's text."""
    try:
        (seconds,) = _SECONDS.unpack_from(message)
        return _ANSWER + participant.answer(message[_SECONDS.size :], seconds)
    except Exception as error:
        traceback.print_exc()  # to the SuperNode's log, on this device
        return _FAILURE + failure_code(error).encode()


def failure_code(error: Exception) -> str:
    """The name under which a failure may leave the device."""
    if isinstance(error, WorkerFailure):
        return error.code
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), "client-error")


def _end_with(guardian: int) -> None:
    """Ends this process when the guardian has ended, if need be in the middle of something.

    What is half done is done again by the next worker, from the last saved state.
    """
    while _exists(guardian):
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
    serve(Path(sys.argv[1]), int(sys.argv[2]))
