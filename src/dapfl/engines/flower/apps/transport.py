"""A transport over Flower's `Grid`: a message of the protocol is the bytes of an `Array`."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dapfl.errors import TransportError
from dapfl.federation.transport import Arrival, ClientId, Exchange

_RECORD = "dapfl"
_FAILURE = "dapfl-failure"
_CODE = re.compile(r"[a-z][a-z-]{0,39}")
_TTL_MARGIN = 60.0  # seconds: Flower drops expired messages, and ours must outlive the round's deadline

# By `Error.code` of a reply that Flower makes itself. Its `reason` may quote a client, so it is dropped.
_FLOWER_FAILURES = {
    1: "client-app-not-loaded",
    2: "client-app-failed",
    3: "message-lost",
    4: "message-lost",
    5: "node-lost",
    7: "app-refused",
    8: "client-app-crashed",
}

# After these, a client is sent its message once more: its node or its ClientApp has died, perhaps before the
# client was reached, or while its reply was uploaded (Flower then says that the message is unavailable).
_SENT_AGAIN = ("node-lost", "client-app-crashed", "message-lost")

NodeLookup = Callable[[Grid], Mapping[ClientId, int]]
"""Finds the Flower node id of each client that is online now."""


def pack(data: bytes) -> RecordDict:
    """A protocol message as the content of a Flower message."""
    return RecordDict({_RECORD: ArrayRecord({"bytes": Array("bytes", (len(data),), "bytes", data)})})


def pack_failure(code: str) -> RecordDict:
    """The reply of a device that could not answer: a short code, and nothing of the exception."""
    return RecordDict({_FAILURE: ConfigRecord({"code": code})})


def unpack(content: RecordDict) -> bytes:
    """The protocol message in the content of a Flower message; TransportError if there is none."""
    try:
        return bytes(content.array_records[_RECORD]["bytes"].data)
    except (KeyError, AttributeError):
        raise TransportError("A Flower message has no Dap-FL message in it.") from None


def transfer_seconds(message: Message) -> float:
    """How long this message took to arrive, by the two machines' clocks, which Flower requires to agree."""
    return max(0.0, time.time() - message.metadata.created_at)


def lookup_by_key(keys: Callable[[], Mapping[bytes, ClientId]]) -> NodeLookup:
    """Tells clients apart by the node keys that the SuperLink has authenticated, as they are now."""

    def lookup(grid: Grid) -> dict[ClientId, int]:
        known = keys()
        nodes = ((known.get(node.public_key), node.node_id) for node in grid.get_nodes())
        return {client: node for client, node in nodes if client is not None}

    return lookup


@dataclass
class _Pending:
    """A message that has not been answered yet."""

    client: ClientId
    node: int
    resent: bool = False


class FlowerTransport:
    """A `Transport` over a Flower `Grid`.

    A client that is offline at the start of an exchange is not waited for. A client whose node is lost during
    the exchange, or whose ClientApp dies, or whose reply is lost on the way, is sent its message again if its
    node is there within `rejoin` seconds. That is safe: a client recognises a message that it has answered,
    and gives the same answer.
    """

    def __init__(
        self,
        grid: Grid,
        lookup: NodeLookup,
        *,
        pack: Callable[[bytes], RecordDict] = pack,
        rejoin: float = 30.0,
        poll: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid = grid
        self._lookup = lookup
        self._pack = pack
        self._rejoin = rejoin
        self._poll = poll
        self._clock = clock
        self._sleep = sleep
        self._exchanges = 0

    def online(self) -> set[ClientId]:
        """The clients that are online now."""
        return set(self._lookup(self._grid))

    def wait_for(
        self,
        clients: set[ClientId],
        timeout: float,
        in_vain: Callable[[set[ClientId]], bool] = lambda missing: False,
    ) -> set[ClientId]:
        """Waits until these clients are online or the time is over; returns those still missing.

        `in_vain` says of those missing that none of them will come.
        """
        deadline = self._clock() + timeout
        while missing := clients - self.online():
            if self._clock() >= deadline or in_vain(missing):
                break
            self._sleep(max(self._poll, 0.5))
        return missing

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        """Sends each client its message and hands over or collects the replies that come in time."""
        self._exchanges += 1
        deadline = self._clock() + timeout
        nodes = self._lookup(self._grid)
        replies: dict[ClientId, bytes] = {}
        failures: dict[ClientId, str] = {client: "offline" for client in messages if client not in nodes}
        pending = self._send(messages, {c: nodes[c] for c in messages if c in nodes}, timeout)
        lost: dict[ClientId, tuple[_Pending, float]] = {}  # with the time until which it may come back
        while pending or lost:
            for reply in self._grid.pull_messages(list(pending)) if pending else ():
                sent = pending.pop(reply.metadata.reply_to_message_id, None)
                if sent is None:
                    continue
                outcome = _read(reply)
                if isinstance(outcome, bytes) and arrived is not None:
                    arrived(sent.client, outcome)
                elif isinstance(outcome, bytes):
                    replies[sent.client] = outcome
                elif outcome in _SENT_AGAIN and not sent.resent:
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
        # Flower stores content by its hash, so equal messages are uploaded once.
        contents = {data: self._pack(data) for data in {messages[client] for client in nodes}}
        group = str(self._exchanges)
        batch = [
            Message(contents[messages[c]], node, MessageType.TRAIN, group_id=group, ttl=timeout + _TTL_MARGIN)
            for c, node in nodes.items()
        ]
        identifiers = list(self._grid.push_messages(batch)) if batch else []
        if len(identifiers) != len(batch) or not all(identifiers):
            raise TransportError(
                "The SuperLink did not accept the round's messages. Its log says why; "
                "usually they are too large."
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
        """Sends again to lost clients that are back; gives up those whose time is over."""
        nodes = self._lookup(self._grid)
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


def failure_in(reply: Message) -> str | None:
    """The code of what went wrong, if a reply says that something did."""
    if not reply.has_content():
        return _FLOWER_FAILURES.get(reply.error.code, "flower-error")
    if _FAILURE not in reply.content.config_records:
        return None
    code = reply.content.config_records[_FAILURE].get("code")
    # A device can send anything. Only a short plain code may enter the run's records.
    return code if isinstance(code, str) and _CODE.fullmatch(code) else "unnamed-failure"


def _read(reply: Message) -> bytes | str:
    """The client's reply, or the code of what went wrong."""
    failure = failure_in(reply)
    if failure is not None:
        return failure
    try:
        return unpack(reply.content)
    except TransportError:
        return "malformed-reply"
