"""The socket between `dapfl run` and its ServerApp.

Flower starts the ServerApp in a process of its own and gives only that process a `Grid`. The round loop, the
server's keys and the run directory stay in the process of `dapfl run`. So the ServerApp connects back to it
over a local socket, and makes the exchanges that it is asked for.
"""

import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from dapfl.errors import TransportError
from dapfl.federation.transport import Arrival, ClientId, Exchange, Transport
from dapfl.system.files import replacing


class Address(msgspec.Struct, frozen=True):
    """Where `dapfl run` listens. It is kept in a file that only its owner can read."""

    socket: str
    secret: str


class WaitRequest(msgspec.Struct, frozen=True, tag="wait"):
    """Wait until these clients are online."""

    clients: list[ClientId]
    timeout: float


class WaitResult(msgspec.Struct, frozen=True, tag="waited"):
    """The clients that did not come online in time."""

    missing: list[ClientId]


class ExchangeRequest(msgspec.Struct, frozen=True, tag="exchange"):
    """Send these messages, each with the clients that it goes to, and collect the replies."""

    groups: list[tuple[bytes, list[ClientId]]]
    timeout: float


class Arrived(msgspec.Struct, frozen=True, tag="arrived"):
    """A reply has come; others are on their way."""

    client: ClientId
    reply: bytes


class ExchangeResult(msgspec.Struct, frozen=True, tag="exchanged"):
    """The exchange is over: clients that have not answered, and why."""

    failures: dict[ClientId, str]


class RequestFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The ServerApp could not do what it was asked for. The message is for the user of `dapfl run`."""

    message: str


_REQUESTS = msgspec.msgpack.Decoder(WaitRequest | ExchangeRequest)
_RESULTS = msgspec.msgpack.Decoder(WaitResult | Arrived | ExchangeResult | RequestFailed)
_ENCODER = msgspec.msgpack.Encoder()


class NodeTransport(Transport, Protocol):
    """A transport to Flower nodes, which may come online late: in a ServerApp, the `FlowerTransport`."""

    def wait_for(self, clients: set[ClientId], timeout: float) -> set[ClientId]:
        """Waits until these clients are online or the time is over; returns those still missing."""


class Bridge:
    """The end of `dapfl run`: a `NodeTransport` whose exchanges the ServerApp makes.

    `check` is called while waiting. It raises an error when a process that is needed for an answer has died.
    """

    def __init__(self, address_file: Path, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._log = address_file.with_name("superexec.log")
        # A socket's path is limited to about a hundred characters; that of a run directory is not.
        self._folder = tempfile.TemporaryDirectory(prefix="dapfl-")
        secret = secrets.token_hex(32)
        path = str(Path(self._folder.name) / "bridge")
        self._listener = Listener(path, family="AF_UNIX", authkey=secret.encode())
        self._connection: Connection[Any, Any] | None = None
        with replacing(address_file, mode=0o600) as file:
            file.write(msgspec.json.encode(Address(path, secret)))

    def accept(self, timeout: float) -> None:
        """Waits until the ServerApp has connected."""
        listening: socket.socket = self._listener._listener._socket  # type: ignore[attr-defined]
        deadline = time.monotonic() + timeout
        listening.settimeout(0.5)  # `Listener.accept` has no timeout of its own
        while True:
            self._check()
            with suppress(TimeoutError):
                self._connection = self._listener.accept()
                return
            if time.monotonic() >= deadline:
                raise TransportError(
                    f"Flower did not start the ServerApp within {timeout:.0f} s. "
                    f"{self._log} or the SuperLink's log may say why."
                )

    def wait_for(self, clients: set[ClientId], timeout: float) -> set[ClientId]:
        """Waits until these clients are online or the time is over; returns those still missing."""
        result = self._next(WaitRequest(sorted(clients), timeout))
        assert isinstance(result, WaitResult)
        return set(result.missing)

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        """Sends each client its message and hands over or collects the replies that come in time."""
        groups: dict[bytes, list[ClientId]] = {}  # a broadcast crosses the socket once
        for client, message in sorted(messages.items()):
            groups.setdefault(message, []).append(client)
        replies: dict[ClientId, bytes] = {}
        result = self._next(ExchangeRequest(list(groups.items()), timeout))
        while isinstance(result, Arrived):
            if arrived is not None:
                arrived(result.client, result.reply)
            else:
                replies[result.client] = result.reply
            result = self._next()
        assert isinstance(result, ExchangeResult)
        # In the order of the clients, not of arrival: nothing in a run may depend on which node was faster.
        return Exchange(dict(sorted(replies.items())), result.failures)

    def close(self) -> None:
        """Closes the connection, which ends the ServerApp."""
        if self._connection is not None:
            self._connection.close()
        self._listener.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(
        self, request: WaitRequest | ExchangeRequest | None = None
    ) -> WaitResult | Arrived | ExchangeResult:
        """The next thing that the ServerApp says, after a request if there is one."""
        if self._connection is None:
            raise TransportError("No ServerApp is connected: the run is closed. Continue it with --resume.")
        try:
            if request is not None:
                self._connection.send_bytes(_ENCODER.encode(request))
            while not self._connection.poll(0.5):
                self._check()
            result: WaitResult | Arrived | ExchangeResult | RequestFailed = _RESULTS.decode(
                self._connection.recv_bytes()
            )
        except (EOFError, OSError):
            self._check()
            raise TransportError(
                "The Flower ServerApp ended during an exchange. The run can be continued with --resume."
            ) from None
        if isinstance(result, RequestFailed):
            raise TransportError(result.message)
        return result


def serve(address_file: Path, transport: NodeTransport) -> None:
    """The ServerApp's end: does what `dapfl run` asks for until that closes the connection."""
    try:
        address = msgspec.json.decode(address_file.read_bytes(), type=Address)
        connection = Client(address.socket, family="AF_UNIX", authkey=address.secret.encode())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        raise TransportError(
            f"{address_file} does not lead to a run. `dapfl run --engine flower` starts this app itself, "
            "on the machine where its ServerApp runs."
        ) from None
    with connection, suppress(EOFError, ConnectionError):
        while True:
            request = _REQUESTS.decode(connection.recv_bytes())

            def arrived(client: ClientId, reply: bytes) -> None:
                connection.send_bytes(_ENCODER.encode(Arrived(client, reply)))

            connection.send_bytes(_ENCODER.encode(_handle(request, transport, arrived)))


def _handle(
    request: WaitRequest | ExchangeRequest, transport: NodeTransport, arrived: Arrival
) -> WaitResult | ExchangeResult | RequestFailed:
    try:
        if isinstance(request, WaitRequest):
            return WaitResult(sorted(transport.wait_for(set(request.clients), request.timeout)))
        messages = {client: message for message, clients in request.groups for client in clients}
        replies, failures = transport.exchange(messages, request.timeout, arrived)
        for client, reply in replies.items():
            arrived(client, reply)
        return ExchangeResult(failures)
    except TransportError as error:
        return RequestFailed(str(error))
    except Exception as error:
        # Flower and its HTTP library raise many kinds of errors when the SuperLink has gone.
        return RequestFailed(
            f"Flower could not deliver the round's messages ({type(error).__name__}). "
            "If the SuperLink was restarted, continue the run with --resume."
        )
