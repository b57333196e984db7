"""The ClientApp of `dapfl run`: answers one message. Of a failure, only a short code leaves the device."""

import os
import traceback
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
    # Our parent is the SuperNode's executor. The worker ends when it does.
    return ask(Path(str(context.node_config["state-dir"])), message, seconds, executor=os.getppid())
