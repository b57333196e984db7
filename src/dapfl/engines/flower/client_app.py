"""The ClientApp: a message in, an answer out; nothing of a failure leaves the device but its name."""

import os
import traceback
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from dapfl.engines.flower.transport import on_the_way, pack, pack_failure, unpack
from dapfl.engines.flower.worker import WorkerFailure, ask, failure_code

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answers one message of the protocol."""
    try:
        folder = Path(str(context.node_config["state-dir"]))
        # Our parent is the SuperNode's executor; the worker lives as long as it does.
        answer = ask(folder, unpack(message.content), on_the_way(message), guardian=os.getppid())
        content = pack(answer)
    except Exception as error:
        if not isinstance(error, WorkerFailure):  # the worker has said why itself
            traceback.print_exc()  # to the SuperNode's log, on this device
        content = pack_failure(failure_code(error))
    return Message(content, reply_to=message)
