"""What a stranger may take from the gateway before anyone knows who it is: connections, time and memory.

The SuperLink knows a node by its signature, and only once it has the whole request. Until then every limit
here holds, so strangers that hold connections open, or send bodies drop by drop, shut out nobody else.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True)
class Limits:
    """Limits on strangers. Nodes stay far below them: their bodies are cut into parts of 5 MB."""

    connections: int = 1000
    connections_per_address: int = 64  # devices behind one router have one address
    header_seconds: float = 10.0  # from the connection, or the last response, to the end of the headers
    idle_seconds: float = 20.0  # between two pieces of a body
    body_bytes: int = 2**26
    body_rate: int = 2**13  # bytes per second, after the first `idle_seconds`
    superlink_connections: int = 256


USUAL = Limits()


class RefusedBody(Exception):
    """A body that is too large or too slow; `status` is the HTTP status that says so."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body of a request, which takes no connection to the SuperLink until it is complete."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limits.body_bytes:
        raise RefusedBody(413)
    parts: list[bytes] = []
    length = 0
    pieces = request.stream().__aiter__()
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        allowed = began + limits.idle_seconds + length / limits.body_rate - loop.time()
        try:
            piece = await asyncio.wait_for(anext(pieces), min(limits.idle_seconds, allowed))
        except StopAsyncIteration:
            return b"".join(parts)
        except (TimeoutError, ClientDisconnect):
            raise RefusedBody(408) from None
        length += len(piece)
        if length > limits.body_bytes:
            raise RefusedBody(413)
        parts.append(piece)


def limited_protocol(limits: Limits) -> type[H11Protocol]:
    """uvicorn's protocol with limits on connections, for each address too, and on the time for headers."""
    open_connections: Counter[str] = Counter()

    class LimitedProtocol(H11Protocol):
        _address: str | None = None
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            peer: Any = transport.get_extra_info("peername")
            address = str(peer[0]) if peer else ""
            if (
                open_connections.total() >= limits.connections
                or open_connections[address] >= limits.connections_per_address
            ):
                transport.abort()
                return
            self._address = address
            open_connections[address] += 1
            self._expect_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._cancel_deadline()
            if self._address is not None:
                open_connections[self._address] -= 1
                if not open_connections[self._address]:
                    del open_connections[self._address]
                self._address = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._cancel_deadline()
            elif self._deadline is None:
                self._expect_headers()

        def _expect_headers(self) -> None:
            self._deadline = self.loop.call_later(limits.header_seconds, self.transport.abort)

        def _cancel_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return LimitedProtocol
