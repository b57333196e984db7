"""Which Flower node is which client, found out by asking the nodes.

For a Flower app of the user's own, whose nodes Flower may know by nothing but a number. A deployment of
`dapfl deploy` has `transport.lookup_by_key` instead.
"""

import secrets
import time
from collections.abc import Callable

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dapfl.engines.flower.apps.transport import failure_in
from dapfl.federation.transport import ClientId

_RECORD = "dapfl-client"
UNPROVED = "unproved-client"
_PASSING = ("no-answer", "client-twice")  # what may be otherwise when nodes are looked up again


Proved = Callable[[ClientId, bytes, bytes], bool]
"""Whether a client has signed a statement: (client, statement, signature)."""


def pack_identity(client: ClientId, signature: bytes = b"") -> RecordDict:
    """A node's answer: which client it is, and its signature of the `statement`, where clients have keys."""
    return RecordDict({_RECORD: ConfigRecord({"client": client, "signature": signature})})


def identity_query(challenge: bytes = b"") -> RecordDict:
    """The question that a node is asked."""
    return RecordDict({_RECORD: ConfigRecord({"challenge": challenge})})


def challenge_in(content: RecordDict) -> bytes:
    """The random bytes of a question."""
    challenge = content.config_records[_RECORD].get("challenge", b"")
    return challenge if isinstance(challenge, bytes) else b""


def statement(challenge: bytes, node: int, client: ClientId) -> bytes:
    """What a client signs to prove that it is behind a node.

    The number of the node is in it, so that no other node can use the answer. Bodies of the protocol begin
    otherwise, so that no signature of one is a signature of the other.
    """
    return b"dapfl-node %d %d " % (node, client) + challenge


def is_identity_query(content: RecordDict) -> bool:
    """Whether a node is being asked which client it is."""
    return _RECORD in content.config_records


class LookupByQuery:
    """A `NodeLookup` that asks each new node which client it is.

    Where clients have keys (`proved`), a node must prove by a signature that it has that client's: one
    without them holds nobody's place. Of several nodes that are the same client, or without keys say so, the
    first that is online is believed: one that comes later cannot take its place. A node that is new is waited
    for, since it may take a minute to load its app; after that, whoever has not answered holds nobody up.
    `refusals` has the nodes that are no client so far, each with the code of the reason.
    """

    def __init__(
        self,
        clients: int,
        *,
        proved: Proved | None = None,
        message_type: str = MessageType.QUERY,
        timeout: float = 60.0,
        poll: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.refusals: dict[int, str] = {}
        self._clients = range(1, clients + 1)
        self._proved = proved
        self._challenge = secrets.token_bytes(32)
        self._message_type = message_type
        self._timeout = timeout
        self._poll = poll
        self._clock = clock
        self._sleep = sleep
        self._known: dict[int, ClientId | None] = {}
        self._waited_for: set[int] = set()
        self._questions: dict[str, int] = {}  # that are not answered yet, by the name of the message

    def __call__(self, grid: Grid) -> dict[ClientId, int]:
        """The node id of each client that is online now."""
        online = set(grid.get_node_ids())
        self._ask(grid, online - self._known.keys() - set(self._questions.values()))
        self._collect(grid)
        deadline = self._clock() + self._timeout
        while self._clock() < deadline and set(self._questions.values()) & online - self._waited_for:
            self._sleep(self._poll)
            self._collect(grid)
        self._waited_for |= online
        found: dict[ClientId, int] = {}
        passing = dict.fromkeys(self._questions.values(), "no-answer")
        for node, client in self._known.items():
            if client is not None and node in online and found.setdefault(client, node) != node:
                passing[node] = "client-twice"
        lasting = {node: code for node, code in self.refusals.items() if code not in _PASSING}
        self.refusals = lasting | passing
        return found

    def _ask(self, grid: Grid, nodes: set[int]) -> None:
        if not nodes:
            return
        content = identity_query(self._challenge)
        batch = [Message(content, node, self._message_type, ttl=self._timeout) for node in sorted(nodes)]
        self._questions |= zip(grid.push_messages(batch), sorted(nodes), strict=True)

    def _collect(self, grid: Grid) -> None:
        for reply in grid.pull_messages(list(self._questions)) if self._questions else ():
            node = self._questions.pop(reply.metadata.reply_to_message_id, None)
            # An expired question says nothing of the node, which is asked again.
            if node is not None and failure_in(reply) != "message-lost":
                self._known[node] = self._read(node, reply)

    def ask_again(self) -> None:
        """Nodes that were no client may have become one: they are asked again."""
        self._known = {node: client for node, client in self._known.items() if client is not None}
        self.refusals = {}

    def _read(self, node: int, reply: Message) -> ClientId | None:
        code = failure_in(reply)
        if code is not None:
            self.refusals[node] = code
            return None
        answer = reply.content.config_records.get(_RECORD, ConfigRecord())
        client, signature = answer.get("client"), answer.get("signature")
        if not isinstance(client, int) or client not in self._clients:
            self.refusals[node] = "unknown-client"
            return None
        if self._proved is not None:
            said = statement(self._challenge, node, client)
            if not isinstance(signature, bytes) or not self._proved(client, said, signature):
                self.refusals[node] = UNPROVED
                return None
        return client
