"""The ClientApp of `dapfl run`: answers one message. Of a failure, only a short code leaves the device."""

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from dapfl.engines.flower.apps import worker_service
from dapfl.engines.flower.apps.transport import pack, pack_failure, transfer_seconds, unpack
from dapfl.engines.flower.apps.worker import WorkerFailure, ask, failure_code

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answers one message of the protocol."""
    try:
        content = pack(_answer(unpack(message.content), transfer_seconds(message), context))
    except Exception as error:
        if not isinstance(error, WorkerFailure):  # which the worker has logged itself
            traceback.print_exc()  # to the SuperNode's log, on this device
        content = pack_failure(failure_code(error))
    return Message(content, reply_to=message)


def _answer(message: bytes, seconds: float, context: Context) -> bytes:
    if service := context.node_config.get("worker-socket"):
        return worker_service.ask(Path(str(service)), message, seconds)
    return ask(Path(str(context.node_config["state-dir"])), message, seconds, _executor())


def _executor() -> int:
    """The SuperNode's executor, which has started this process: the worker ends when it does.

    If it has died meanwhile, the parent of this process is another, which may never end. A worker that waits
    for that would outlive the run, with all its keys.
    """
    with suppress(ValueError, IndexError):
        return int(sys.argv[sys.argv.index("--parent-pid") + 1])
    return os.getppid()
