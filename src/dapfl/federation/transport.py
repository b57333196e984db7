"""The only seam between the protocol and what carries it.

An engine is a `Transport`: bytes out to clients, bytes back, nothing else. The protocol trusts
nothing that comes through it: a signature proves who sent a reply, not the number under which the
engine hands it over.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

ClientId = int
"""Clients are numbered 1..N."""

SERVER: ClientId = 0
"""The central server CS as a sender or recipient."""

EVERYONE: ClientId = -1
"""The recipient of a broadcast."""


class Exchange(NamedTuple):
    """What came of one exchange: every client asked is in one of the two, or its reply was handed over."""

    replies: dict[ClientId, bytes]
    failures: dict[ClientId, str]


Arrival = Callable[[ClientId, bytes], None]
"""Takes a reply as soon as it has come. Replies come in any order, and from one thread."""


class Transport(Protocol):
    """Carries one message to each of some clients and brings back what they answer."""

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> tuple[dict[ClientId, bytes], dict[ClientId, str]]:
        """Sends each message to its client, waits at most `timeout` seconds: (replies, failures).

        With `arrived`, a transport may hand a reply over as soon as it has it, and then does not return it.

        A client that is late, gone or broken appears in `failures` with a short reason (``timeout``,
        ``crashed``, ...); the failure of one client never raises. A broadcast is one bytes object for many
        clients, so an engine may send it once to each process.
        """


class Handler(Protocol):
    """Whatever answers messages: a `Client`, or an attacker in its place."""

    def handle(self, message: bytes) -> bytes:
        """The reply to one message. Never raises."""


class LocalTransport:
    """Every client in this process, called one after the other: for tests and for small studies.

    >>> class Echo:
    ...     def handle(self, message: bytes) -> bytes:
    ...         return message[::-1]
    >>> LocalTransport({1: Echo()}).exchange({1: b"abc", 2: b""}, timeout=1)
    Exchange(replies={1: b'cba'}, failures={2: 'unknown-client'})
    """

    def __init__(self, clients: Mapping[ClientId, Handler]) -> None:
        self.clients = dict(clients)

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        """Calls each client in turn; nothing is ever late."""
        replies: dict[ClientId, bytes] = {}
        failures: dict[ClientId, str] = {}
        for client, message in messages.items():
            if client in self.clients and arrived is not None:
                arrived(client, self.clients[client].handle(message))
            elif client in self.clients:
                replies[client] = self.clients[client].handle(message)
            else:
                failures[client] = "unknown-client"
        return Exchange(replies, failures)
