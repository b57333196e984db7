"""A reverse proxy that lets SuperNodes reach a SuperLink, and nobody else.

A SuperLink serves three interfaces on one port: the nodes' (/v1/fleet), the ServerApp's (/v1/runtime) and
the operator's (/v1/control). The last has no authentication, and anyone who can reach it can run any code on
every node. So the SuperLink listens on loopback, and this gateway forwards the nodes' interface only, and
within limits (see `gateway_limits.py`).
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

from dapfl.engines.flower.deployment.folders import ServerFolder
from dapfl.engines.flower.deployment.gateway_limits import (
    USUAL,
    Limits,
    RefusedBody,
    limited_protocol,
    read_body,
)

_METHOD = re.compile(r"[a-z][a-z-]*")  # activate-node, pull-messages, ...
_HOP_BY_HOP = frozenset([b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"])


def gateway(superlink: str, trust: ssl.SSLContext | bool, limits: Limits = USUAL) -> Starlette:
    """The application that forwards POST /v1/fleet/... to the SuperLink at host:port, and nothing else."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # A SuperLink may think for as long as it likes; there must only be a connection to it.
        times = httpx.Timeout(None, connect=10, pool=30)
        pool = httpx.Limits(max_connections=limits.superlink_connections)
        async with httpx.AsyncClient(timeout=times, limits=pool, verify=trust, trust_env=False) as client:
            app.state.client = client
            yield

    async def forward(request: Request) -> Response:
        client: httpx.AsyncClient = request.app.state.client
        method = request.path_params["method"]
        if not _METHOD.fullmatch(method):
            return Response(status_code=404)
        try:
            body = await read_body(request, limits)
        except RefusedBody as refused:
            return Response(status_code=refused.status, headers={"connection": "close"})
        headers = [(name, value) for name, value in request.headers.raw if _passes(name)]
        url = f"https://{superlink}/v1/fleet/{method}"
        outgoing = client.build_request("POST", url, headers=headers, content=body)
        try:
            answer = await client.send(outgoing, stream=True)
        except httpx.PoolTimeout:
            return Response("Too many requests at once.", status_code=503)
        except httpx.TransportError:
            return Response("The SuperLink is not running.", status_code=502)
        back = {name: value for name, value in answer.headers.items() if _passes(name.encode())}
        close = BackgroundTask(answer.aclose)
        return StreamingResponse(answer.aiter_raw(), answer.status_code, headers=back, background=close)

    return Starlette(routes=[Route("/v1/fleet/{method}", forward, methods=["POST"])], lifespan=lifespan)


def configured(
    folder: ServerFolder, superlink: str, host: str, port: int, limits: Limits = USUAL
) -> uvicorn.Config:
    """How the gateway is served: with the SuperLink's own certificate, and within limits."""
    trust = ssl.create_default_context(cafile=str(folder.authority))
    return uvicorn.Config(
        gateway(superlink, trust, limits),
        host=host,
        port=port,
        ssl_certfile=str(folder.certificate),
        ssl_keyfile=str(folder.key),
        log_level="warning",
        ws="none",
        http=limited_protocol(limits),
        timeout_keep_alive=30,  # a node asks every few seconds
    )


def serve(folder: ServerFolder, superlink: str, host: str, port: int) -> None:
    """Runs the gateway until it is interrupted."""
    uvicorn.Server(configured(folder, superlink, host, port)).run()


def _passes(header: bytes) -> bool:
    return header.lower() not in _HOP_BY_HOP
