"""The gateway lets nodes reach a SuperLink, and nobody else."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dapfl.engines.flower.deployment import folders
from dapfl.engines.flower.deployment.gateway import gateway
from dapfl.engines.flower.host.processes import free_ports, wait_until


@contextmanager
def serving(app: Starlette, folder: folders.ServerFolder) -> Iterator[str]:
    (port,) = free_ports(1)
    config = uvicorn.Config(
        app,
        port=port,
        ssl_certfile=str(folder.certificate),
        ssl_keyfile=str(folder.key),
        log_level="error",
        ws="none",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server's start", 20)
        yield f"127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> folders.ServerFolder:
    return folders.create(tmp_path_factory.mktemp("gateway"), [1], []).server


@pytest.fixture(scope="module")
def connected(folder: folders.ServerFolder) -> Iterator[tuple[httpx.Client, list[str]]]:
    """A client outside the gateway, and the paths of its requests that have reached the SuperLink inside."""
    reached: list[str] = []

    async def superlink(request: Request) -> Response:
        reached.append(request.url.path)
        body = await request.body()
        return Response(body[::-1], headers={"x-node": request.headers.get("x-node", "")}, status_code=201)

    trust = ssl.create_default_context(cafile=str(folder.authority))
    inside = Starlette(routes=[Route("/{path:path}", superlink, methods=["GET", "POST"])])
    with (
        serving(inside, folder) as address,
        serving(gateway(address, trust), folder) as address_outside,
        httpx.Client(base_url=f"https://{address_outside}", verify=trust, trust_env=False) as client,
    ):
        yield client, reached


def test_a_node_gets_through_with_its_headers_and_its_answer(
    connected: tuple[httpx.Client, list[str]],
) -> None:
    client, reached = connected
    body = bytes(range(256)) * 4096
    answer = client.post("/v1/fleet/pull-messages", content=body, headers={"x-node": "seven"})
    assert (answer.status_code, answer.content, answer.headers["x-node"]) == (201, body[::-1], "seven")
    assert reached[-1] == "/v1/fleet/pull-messages"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol%2fstart-run",
        "/v1/fleet//v1/control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/fleet/..",
        "/v1/fleet/",
        "/docs",
        "/",
    ],
)
def test_nothing_else_gets_through(connected: tuple[httpx.Client, list[str]], path: str) -> None:
    client, reached = connected
    before = len(reached)
    request = client.build_request("POST", "/v1/fleet/x", content=b"")
    request.url = request.url.copy_with(raw_path=path.encode())  # as an attacker writes it, not normalised
    assert client.send(request).status_code == 404
    assert len(reached) == before


def test_only_posts_get_through(connected: tuple[httpx.Client, list[str]]) -> None:
    client, reached = connected
    before = len(reached)
    assert client.get("/v1/fleet/pull-messages").status_code == 405
    assert len(reached) == before


def test_a_superlink_that_is_down_is_a_bad_gateway(folder: folders.ServerFolder) -> None:
    trust = ssl.create_default_context(cafile=str(folder.authority))
    (nobody,) = free_ports(1)
    with (
        serving(gateway(f"127.0.0.1:{nobody}", trust), folder) as address_outside,
        httpx.Client(verify=trust, trust_env=False) as client,
    ):
        assert client.post(f"https://{address_outside}/v1/fleet/activate-node").status_code == 502


def test_a_superlink_with_another_certificate_is_not_talked_to(
    folder: folders.ServerFolder, tmp_path: Path
) -> None:
    impostor = folders.create(tmp_path, [1], []).server
    trust = ssl.create_default_context(cafile=str(folder.authority))

    async def never(request: Request) -> Response:
        raise AssertionError("reached the impostor")

    app = Starlette(routes=[Route("/{path:path}", never, methods=["POST"])])
    with (
        serving(app, impostor) as address,
        serving(gateway(address, trust), folder) as address_outside,
        httpx.Client(verify=trust, trust_env=False) as client,
    ):
        assert client.post(f"https://{address_outside}/v1/fleet/activate-node").status_code == 502
