"""Strangers that hold the gateway's connections, or send too much, or too slowly, shut out nobody else."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dapfl.engines.flower.deployment import folders
from dapfl.engines.flower.deployment.gateway import configured
from dapfl.engines.flower.deployment.gateway_limits import USUAL, Limits
from dapfl.engines.flower.host.processes import free_ports, wait_until

LIMITS = Limits(header_seconds=0.5, idle_seconds=0.5, body_bytes=2**16)


@contextmanager
def running(config: uvicorn.Config) -> Iterator[None]:
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server's start", 60)
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


class Gateway:
    """A gateway in front of a SuperLink that answers every request, and strangers from other addresses."""

    def __init__(self, stack: ExitStack, folder: folders.ServerFolder, limits: Limits) -> None:
        inside, self.port = free_ports(2)
        self.trust = ssl.create_default_context(cafile=str(folder.authority))

        async def superlink(request: Request) -> Response:
            return Response(b"%d bytes" % len(await request.body()))

        app = Starlette(routes=[Route("/{path:path}", superlink, methods=["POST"])])
        files = {"ssl_certfile": str(folder.certificate), "ssl_keyfile": str(folder.key)}
        stack.enter_context(running(uvicorn.Config(app, port=inside, log_level="error", ws="none", **files)))
        config = configured(folder, f"127.0.0.1:{inside}", "127.0.0.1", self.port, limits)
        stack.enter_context(running(config))
        self._stack = stack

    def ask(self, body: bytes = b"hello") -> httpx.Response:
        with httpx.Client(verify=self.trust, trust_env=False, timeout=60) as client:
            return client.post(f"https://127.0.0.1:{self.port}/v1/fleet/pull-messages", content=body)

    def stranger(self, sends: bytes = b"", address: str = "127.0.0.2") -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=60, source_address=(address, 0))
        wrapped = self.trust.wrap_socket(self._stack.enter_context(plain), server_hostname="localhost")
        self._stack.enter_context(wrapped)
        if sends:
            wrapped.sendall(sends)
        return wrapped


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> folders.ServerFolder:
    return folders.create(tmp_path_factory.mktemp("gateway"), [1], []).server


@pytest.fixture
def gateway(folder: folders.ServerFolder, request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with ExitStack() as stack:
        yield Gateway(stack, folder, getattr(request, "param", LIMITS))


HEAD = b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"


def closed(stranger: ssl.SSLSocket) -> bytes:
    """What a stranger hears until the gateway closes its connection."""
    heard = b""
    try:
        while data := stranger.recv(4096):
            heard += data
    except (ConnectionError, ssl.SSLError):
        pass
    return heard


@pytest.mark.parametrize("gateway", [replace(USUAL, superlink_connections=10)], indirect=True)
@pytest.mark.parametrize("sends", [b"", HEAD[:30], HEAD + b"x"], ids=["silent", "in-headers", "in-body"])
def test_a_hundred_idle_strangers_keep_nobody_out(gateway: Gateway, sends: bytes) -> None:
    for number in range(100):
        gateway.stranger(sends, address=f"127.0.0.{2 + number % 2}")
    assert gateway.ask().text == "5 bytes"


@pytest.mark.parametrize("gateway", [replace(USUAL, connections_per_address=5)], indirect=True)
def test_one_address_gets_only_so_many_connections(gateway: Gateway) -> None:
    for _ in range(5):
        gateway.stranger()
    assert closed(gateway.stranger()) == b""
    assert gateway.ask().status_code == 200
    assert gateway.stranger(address="127.0.0.3")


@pytest.mark.parametrize("gateway", [replace(LIMITS, connections=5)], indirect=True)
def test_strangers_that_take_all_connections_lose_them_soon(gateway: Gateway) -> None:
    strangers = [gateway.stranger(address=f"127.0.0.{i}") for i in range(2, 7)]
    for stranger in strangers:
        assert closed(stranger) == b""
    assert gateway.ask().status_code == 200


def test_a_body_that_does_not_come_is_given_up(gateway: Gateway) -> None:
    assert b" 408 " in closed(gateway.stranger(HEAD + b"x"))


def test_headers_that_do_not_end_are_given_up(gateway: Gateway) -> None:
    assert closed(gateway.stranger(HEAD[:-2])) == b""


def test_a_large_body_is_refused_whether_it_says_so_or_not(gateway: Gateway) -> None:
    assert gateway.ask(bytes(2**16)).text == f"{2**16} bytes"
    assert gateway.ask(bytes(2**16 + 1)).status_code == 413
    chunk = b"8000\r\n" + bytes(2**15) + b"\r\n"
    head = b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b" 413 " in closed(gateway.stranger(head + 3 * chunk))
