"""Who is who where nodes have no keys: they are asked. For simulations; see `transport.nodes_by_key`."""

import time
from collections.abc import Callable

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dapfl.federation.transport import ClientId

_RECORD = "dapfl-client"


def pack_name(client: ClientId) -> RecordDict:
    """What a node says about itself."""
    return RecordDict({_RECORD: ConfigRecord({"client": client})})


def ask_for_name() -> RecordDict:
    """The question."""
    return RecordDict({_RECORD: ConfigRecord()})


class Roll:
    """A `Directory` by asking each new node once.

    What a node says is not proved by this; what it sends later is, by its signature.
    """

    def __init__(
        self,
        clients: int,
        *,
        timeout: float = 60.0,
        poll: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._members = range(1, clients + 1)
        self._timeout = timeout
        self._poll = poll
        self._clock = clock
        self._sleep = sleep
        self._known: dict[int, ClientId | None] = {}

    def __call__(self, grid: Grid) -> dict[ClientId, int]:
        """Under which node id each client can be reached now."""
        online = set(grid.get_node_ids())
        strangers = online - self._known.keys()
        if strangers:
            self._ask(grid, strangers)
        return {client: node for node, client in self._known.items() if client is not None and node in online}

    def _ask(self, grid: Grid, nodes: set[int]) -> None:
        content = ask_for_name()
        batch = [Message(content, node, MessageType.QUERY, ttl=self._timeout) for node in sorted(nodes)]
        waiting = dict(zip(grid.push_messages(batch), sorted(nodes), strict=True))
        deadline = self._clock() + self._timeout
        while waiting and self._clock() < deadline:
            for reply in grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    self._known[node] = self._read(reply)
            if waiting:
                self._sleep(self._poll)

    def _read(self, reply: Message) -> ClientId | None:
        if not reply.has_content():
            return None
        name = reply.content.config_records.get(_RECORD, ConfigRecord()).get("client")
        return name if isinstance(name, int) and name in self._members else None
