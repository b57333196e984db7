"""The worker of a device as a service of its own, under a user of its own.

Whoever reaches a SuperLink's control interface can run any code as the user of the SuperNode. Where the
worker that holds keys, data and agent runs as another user, such code cannot read them: it can only send
messages over a Unix socket, and gets the answers of the protocol, which are sealed for CS.

    python -m dapfl.engines.flower.apps.worker_service FOLDER SOCKET

FOLDER is the client's, and belongs to the worker's user. `worker-socket` in the node config names SOCKET.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path

from dapfl.engines.flower.apps.worker import (
    FAILURE,
    SECONDS,
    WorkerFailure,
    build,
    is_called,
    log_what_happens,
    prepare_while_idle,
    reply_of,
)
from dapfl.system.processes import forbid_core_files

_PATIENCE = 30.0  # seconds that a caller may take to say what it wants
_LARGEST = 2**31 - 1


def ask(path: Path, message: bytes, transfer_seconds: float) -> bytes:
    """Has the service at a socket answer a message that took `transfer_seconds` to arrive."""
    try:
        with Client(str(path), family="AF_UNIX") as connection:
            connection.send_bytes(SECONDS.pack(transfer_seconds) + message)
            reply = connection.recv_bytes()
    except (EOFError, OSError):
        raise WorkerFailure("no-worker") from None
    if reply[:1] == FAILURE:
        raise WorkerFailure(reply[1:].decode("ascii", "replace"))
    return reply[1:]


def listen(
    path: Path,
    answer: Callable[[bytes], bytes],
    idle: Callable[[Callable[[], bool]], None] = lambda called: None,
) -> None:
    """Answers one caller after the other, forever; in between, `idle` may work until it is called.

    The group of the socket's folder may connect. Only bytes are exchanged: nothing is ever unpickled.
    """
    forbid_core_files()
    path.unlink(missing_ok=True)
    with Listener(str(path), family="AF_UNIX") as listener:
        path.chmod(0o660)
        while True:
            with contextlib.suppress(EOFError, OSError), listener.accept() as caller:
                if caller.poll(_PATIENCE):
                    caller.send_bytes(answer(caller.recv_bytes(_LARGEST)))
            idle(lambda: is_called(listener))


def serve(folder: Path, path: Path) -> None:
    """What the service runs."""
    from dapfl.engines.flower.apps.persistent_client import FileStateStore, PersistentClient

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.umask(0o077)
    log_what_happens()
    client = PersistentClient(lambda: build(folder), FileStateStore(folder / "state"))
    listen(path, lambda message: reply_of(client, message), lambda called: prepare_while_idle(client, called))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
