"""Runs the live page's server until it is told to stop."""

import contextlib
import socket
from pathlib import Path

import uvicorn

from dapfl.dashboard.app import Hub, build_app


class LiveServer(uvicorn.Server):
    """A server that ends its open streams when it stops, instead of waiting for the pages to go away."""

    def __init__(self, directory: Path, address: str, interval: float = 0.25) -> None:
        hosts = frozenset({"127.0.0.1", "localhost", "::1", address})
        # Who listens on all addresses cannot know the name by which others reach it.
        app = build_app(directory, None if address in ("0.0.0.0", "::") else hosts, interval)
        self._hub: Hub = app.state.hub
        config = uvicorn.Config(app, log_level="critical", access_log=False, server_header=False, ws="none")
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets the pages go, then the server."""
        await self._hub.close()
        await super().shutdown(sockets)


def serve(directory: Path, listener: socket.socket) -> None:
    """Serves the live page of a run on a socket that listens, until Ctrl-C."""
    server = LiveServer(directory, listener.getsockname()[0])
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        server.run(sockets=[listener])
