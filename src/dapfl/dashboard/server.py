"""Runs the live page's server until it is told to stop."""

import contextlib
import socket
from pathlib import Path

import uvicorn

from dapfl.dashboard.app import Hub, build_app


class LiveServer(uvicorn.Server):
    """A server that ends its open streams when it stops, instead of waiting for the pages to go away."""

    def __init__(
        self, directory: Path, address: str, interval: float = 0.25, *, metrics: bool = False
    ) -> None:
        hosts = frozenset({"127.0.0.1", "localhost", "::1", address})
        # On all addresses, it cannot be known by which names others will reach the server.
        app = build_app(directory, None if address in ("0.0.0.0", "::") else hosts, interval, metrics=metrics)
        self._hub: Hub = app.state.hub
        config = uvicorn.Config(app, log_level="critical", access_log=False, server_header=False, ws="none")
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the streams, then the server."""
        await self._hub.close()
        await super().shutdown(sockets)


def serve(directory: Path, listener: socket.socket, *, metrics: bool = False) -> None:
    """Serves the live page of a run on a socket that listens, until Ctrl-C."""
    server = LiveServer(directory, listener.getsockname()[0], metrics=metrics)
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        server.run(sockets=[listener])
