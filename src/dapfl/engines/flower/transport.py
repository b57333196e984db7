"""The protocol's messages carried by Flower's `Grid`: bytes in an `Array`, one exchange a round."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dapfl.errors import TransportError
from dapfl.federation.transport import ClientId, Exchange

_RECORD = "dapfl"
_FAILURE = "dapfl-failure"
_CODE = re.compile(r"[a-z][a-z-]{0,39}")
_TTL_MARGIN = 60.0  # Flower drops a message whose time is over; ours must outlive the round's deadline

# `Error.code` of a reply that Flower makes itself. Its `reason` may quote a client: it goes no further.
_FLOWER_FAILURES = {
    1: "client-app-not-loaded",
    2: "client-app-failed",
    3: "message-lost",
    4: "message-lost",
    5: "node-lost",
    7: "app-refused",
    8: "client-app-crashed",
}

Directory = Callable[[Grid], Mapping[ClientId, int]]
"""Says under which Flower node id each client can be reached now."""


def pack(data: bytes) -> RecordDict:
    """A protocol message as the content of a Flower message."""
    return RecordDict({_RECORD: ArrayRecord({"bytes": Array("bytes", (len(data),), "bytes", data)})})


def pack_failure(code: str) -> RecordDict:
    """What leaves a device that could not answer: a name, nothing of the exception."""
    return RecordDict({_FAILURE: ConfigRecord({"code": code})})


def unpack(content: RecordDict) -> bytes:
    """The protocol message in a Flower message; TransportError when there is none."""
    try:
        return bytes(content.array_records[_RECORD]["bytes"].data)
    except (KeyError, AttributeError):
        raise TransportError("A Flower message came without a Dap-FL message in it.") from None


def on_the_way(message: Message) -> float:
    """Seconds since the server made this message, by the clocks of both, which Flower keeps close."""
    return max(0.0, time.time() - message.metadata.created_at)


def nodes_by_key(keys: Mapping[bytes, ClientId]) -> Directory:
    """Tells clients apart by the node keys that the SuperLink has authenticated."""

    def directory(grid: Grid) -> dict[ClientId, int]:
        nodes = ((keys.get(node.public_key), node.node_id) for node in grid.get_nodes())
        return {client: node for client, node in nodes if client is not None}

    return directory


@dataclass
class _Pending:
    """A message on its way."""

    client: ClientId
    node: int
    resent: bool = False


class FlowerTransport:
    """A `Transport` over a Flower `Grid`.

    A client that is offline when a round begins is not waited for. One whose node is lost during the
    round is sent its message again if it comes back within `rejoin` seconds: clients answer the
    same message only once, so that is safe.
    """

    def __init__(
        self,
        grid: Grid,
        directory: Directory,
        *,
        rejoin: float = 30.0,
        poll: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid = grid
        self._directory = directory
        self._rejoin = rejoin
        self._poll = poll
        self._clock = clock
        self._sleep = sleep
        self._exchanges = 0

    def online(self) -> set[ClientId]:
        """The clients that can be reached now."""
        return set(self._directory(self._grid))

    def wait_for(self, clients: set[ClientId], timeout: float) -> set[ClientId]:
        """Waits until these clients are online, or the time is over; returns those still missing."""
        deadline = self._clock() + timeout
        while missing := clients - self.online():
            if self._clock() >= deadline:
                break
            self._sleep(max(self._poll, 0.5))
        return missing

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float) -> Exchange:
        """Sends each client its message and collects the replies that come in time."""
        self._exchanges += 1
        deadline = self._clock() + timeout
        nodes = self._directory(self._grid)
        replies: dict[ClientId, bytes] = {}
        failures: dict[ClientId, str] = {client: "offline" for client in messages if client not in nodes}
        pending = self._send(messages, {c: nodes[c] for c in messages if c in nodes}, timeout)
        lost: dict[ClientId, tuple[_Pending, float]] = {}  # and until when it may come back
        while pending or lost:
            for reply in self._grid.pull_messages(list(pending)) if pending else ():
                sent = pending.pop(reply.metadata.reply_to_message_id, None)
                if sent is None:
                    continue
                outcome = _read(reply)
                if isinstance(outcome, bytes):
                    replies[sent.client] = outcome
                elif outcome == "node-lost" and not sent.resent:
                    lost[sent.client] = sent, self._clock() + self._rejoin
                else:
                    failures[sent.client] = outcome
            now = self._clock()
            if lost:
                pending.update(self._resend(messages, lost, failures, deadline - now))
            if now >= deadline:
                late = [*(sent.client for sent in pending.values()), *lost]
                failures.update(dict.fromkeys(late, "late"))
                break
            if pending or lost:
                self._sleep(self._poll)
        return Exchange(replies, failures)

    def _send(
        self, messages: Mapping[ClientId, bytes], nodes: Mapping[ClientId, int], timeout: float
    ) -> dict[str, _Pending]:
        # Flower stores content by its hash: a broadcast of equal messages is uploaded once.
        contents = {data: pack(data) for data in {messages[client] for client in nodes}}
        group = str(self._exchanges)
        batch = [
            Message(contents[messages[c]], node, MessageType.TRAIN, group_id=group, ttl=timeout + _TTL_MARGIN)
            for c, node in nodes.items()
        ]
        identifiers = list(self._grid.push_messages(batch)) if batch else []
        if len(identifiers) != len(batch) or not all(identifiers):
            raise TransportError(
                "The SuperLink did not take the round's messages. Its log says why; "
                "messages too large for it are the usual reason."
            )
        return {
            identifier: _Pending(client, node)
            for identifier, (client, node) in zip(identifiers, nodes.items(), strict=True)
        }

    def _resend(
        self,
        messages: Mapping[ClientId, bytes],
        lost: dict[ClientId, tuple[_Pending, float]],
        failures: dict[ClientId, str],
        remaining: float,
    ) -> dict[str, _Pending]:
        """Sends again to lost clients that are back; gives up those that stay away."""
        nodes = self._directory(self._grid)
        back = {client: nodes[client] for client in lost if client in nodes}
        for client, (_, until) in list(lost.items()):
            if client not in back and self._clock() >= until:
                failures[client] = "node-lost"
                del lost[client]
        for client in back:
            del lost[client]
        again = self._send(messages, back, max(remaining, 1.0)) if back else {}
        for sent in again.values():
            sent.resent = True
        return again


def _read(reply: Message) -> bytes | str:
    """The client's answer, or the name of what went wrong."""
    if not reply.has_content():
        return _FLOWER_FAILURES.get(reply.error.code, "flower-error")
    content = reply.content
    if _FAILURE in content.config_records:
        code = content.config_records[_FAILURE].get("code")
        # A device sends what it likes: only a short plain name gets into our records.
        return code if isinstance(code, str) and _CODE.fullmatch(code) else "unnamed-failure"
    try:
        return unpack(content)
    except TransportError:
        return "malformed-reply"
