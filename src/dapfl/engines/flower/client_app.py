"""The ClientApp: a message in, an answer out; nothing of a failure leaves the device but its name."""

import os
import time
import traceback
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from dapfl.engines.flower.transport import pack, pack_failure, unpack
from dapfl.engines.flower.worker import ask, failure_code

_RECORD = "dapfl-state"

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
        traceback.print_exc()  # to the SuperNode's log, on this device
        content = pack_failure(failure_code(error))
    return Message(content, reply_to=message)


def on_the_way(message: Message) -> float:
    """Seconds since the server made this message, by the clocks of both, which Flower keeps close."""
    return max(0.0, time.time() - message.metadata.created_at)


class ContextMemory:
    """In Flower's `Context.state`: lasts as long as the node, which is enough for a simulation."""

    def __init__(self, context: Context) -> None:
        self._records = context.state

    def load(self) -> bytes | None:
        """The last state, or None."""
        record = self._records.config_records.get(_RECORD)
        state = record["state"] if record is not None else None
        return state if isinstance(state, bytes) else None

    def save(self, state: bytes) -> None:
        """Replaces the state."""
        self._records[_RECORD] = ConfigRecord({"state": state})
