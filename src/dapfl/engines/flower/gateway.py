"""A door to a SuperLink that lets SuperNodes in and nobody else.

A SuperLink serves three interfaces on one port: the nodes' (/v1/fleet), the ServerApp's (/v1/runtime) and
the operator's (/v1/control). The last asks for no password, and whoever may use it can run any code on
every node. So the SuperLink stays on loopback, and this gateway passes on the nodes' interface only.
"""

import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dapfl.engines.flower.folders import ServerFolder

_METHOD = re.compile(r"[a-z][a-z-]*")  # activate-node, pull-messages, ...
_HOP_BY_HOP = frozenset([b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"])


def gateway(superlink: str, trust: ssl.SSLContext | bool) -> Starlette:
    """The application that forwards POST /v1/fleet/... to the SuperLink at host:port, and nothing else."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # No time limit of ours: how long a request may take is between node and SuperLink.
        async with httpx.AsyncClient(timeout=None, verify=trust, trust_env=False) as client:
            app.state.client = client
            yield

    async def forward(request: Request) -> Response:
        client: httpx.AsyncClient = request.app.state.client
        method = request.path_params["method"]
        if not _METHOD.fullmatch(method):
            return Response(status_code=404)
        headers = [(name, value) for name, value in request.headers.raw if _passes(name)]
        url = f"https://{superlink}/v1/fleet/{method}"
        outgoing = client.build_request("POST", url, headers=headers, content=request.stream())
        try:
            answer = await client.send(outgoing, stream=True)
        except httpx.TransportError:
            return Response("The SuperLink is not running.", status_code=502)
        back = {name: value for name, value in answer.headers.items() if _passes(name.encode())}
        close = BackgroundTask(answer.aclose)
        return StreamingResponse(answer.aiter_raw(), answer.status_code, headers=back, background=close)

    return Starlette(routes=[Route("/v1/fleet/{method}", forward, methods=["POST"])], lifespan=lifespan)


def serve(folder: ServerFolder, superlink: str, host: str, port: int) -> None:
    """Runs the gateway with the SuperLink's own certificate until it is interrupted."""
    trust = ssl.create_default_context(cafile=str(folder.authority))
    uvicorn.run(
        gateway(superlink, trust),
        host=host,
        port=port,
        ssl_certfile=str(folder.certificate),
        ssl_keyfile=str(folder.key),
        log_level="warning",
        ws="none",
    )


def _passes(header: bytes) -> bool:
    return header.lower() not in _HOP_BY_HOP
