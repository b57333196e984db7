"""Which Flower node is which client, found out by asking the nodes.

For simulations, where nodes have no keys. In a deployment `transport.lookup_by_key` is used instead.
"""

import time
from collections.abc import Callable

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dapfl.engines.flower.apps.transport import failure_in
from dapfl.federation.transport import ClientId

_RECORD = "dapfl-client"


def pack_identity(client: ClientId) -> RecordDict:
    """A node's answer: which client it is."""
    return RecordDict({_RECORD: ConfigRecord({"client": client})})


def identity_query() -> RecordDict:
    """The question that a node is asked."""
    return RecordDict({_RECORD: ConfigRecord()})


def is_identity_query(content: RecordDict) -> bool:
    """Whether a node is being asked which client it is."""
    return _RECORD in content.config_records


class LookupByQuery:
    """A `NodeLookup` that asks each new node once which client it is.

    The answer proves nothing. Whatever a node sends later is verified by its signature. `refusals` has the
    nodes that are no client, each with the code of the reason.
    """

    def __init__(
        self,
        clients: int,
        *,
        message_type: str = MessageType.QUERY,
        timeout: float = 60.0,
        poll: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.refusals: dict[int, str] = {}
        self._clients = range(1, clients + 1)
        self._message_type = message_type
        self._timeout = timeout
        self._poll = poll
        self._clock = clock
        self._sleep = sleep
        self._known: dict[int, ClientId | None] = {}

    def __call__(self, grid: Grid) -> dict[ClientId, int]:
        """The node id of each client that is online now."""
        online = set(grid.get_node_ids())
        if new := online - self._known.keys():
            self._ask(grid, new)
        return {client: node for node, client in self._known.items() if client is not None and node in online}

    def _ask(self, grid: Grid, nodes: set[int]) -> None:
        content = identity_query()
        batch = [Message(content, node, self._message_type, ttl=self._timeout) for node in sorted(nodes)]
        waiting = dict(zip(grid.push_messages(batch), sorted(nodes), strict=True))
        deadline = self._clock() + self._timeout
        while waiting and self._clock() < deadline:
            for reply in grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    self._known[node] = self._read(node, reply)
            if waiting:
                self._sleep(self._poll)

    def ask_again(self) -> None:
        """Nodes that were no client may have become one: they are asked again."""
        self._known = {node: client for node, client in self._known.items() if client is not None}
        self.refusals = {}

    def _read(self, node: int, reply: Message) -> ClientId | None:
        code = failure_in(reply)
        if code is not None:
            self.refusals[node] = code
            return None
        client = reply.content.config_records.get(_RECORD, ConfigRecord()).get("client")
        if isinstance(client, int) and client in self._clients:
            return client
        self.refusals[node] = "unknown-client"
        return None
