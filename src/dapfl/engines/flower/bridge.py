"""Between the run and its ServerApp: the run decides, the ServerApp only carries.

Flower starts a ServerApp in a process of its own and gives it the `Grid`. The round loop, the server's
keys and the run directory stay with `dapfl run`; the ServerApp connects back to it over a local
socket and does the exchanges that it is told to do.
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
from dapfl.federation.transport import ClientId, Exchange
from dapfl.files import replacing


class Address(msgspec.Struct, frozen=True):
    """Where the run listens; kept in a file that only its owner can read."""

    socket: str
    secret: str


class Await(msgspec.Struct, frozen=True, tag="await"):
    """Wait until these clients are online."""

    clients: list[ClientId]
    timeout: float


class Missing(msgspec.Struct, frozen=True, tag="missing"):
    """The clients that did not come online in time."""

    clients: list[ClientId]


class Carry(msgspec.Struct, frozen=True, tag="carry"):
    """Carry these messages; equal ones travel once."""

    groups: list[tuple[bytes, list[ClientId]]]
    timeout: float


class Outcome(msgspec.Struct, frozen=True, tag="outcome"):
    """What came back."""

    replies: dict[ClientId, bytes]
    failures: dict[ClientId, str]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The ServerApp could not do what it was told; it is on the server's side, so it may say why."""

    why: str


_ORDERS = msgspec.msgpack.Decoder(Await | Carry)
_ANSWERS = msgspec.msgpack.Decoder(Missing | Outcome | Refused)
_ENCODER = msgspec.msgpack.Encoder()


class Carrier(Protocol):
    """What a ServerApp offers through the bridge: the FlowerTransport."""

    def wait_for(self, clients: set[ClientId], timeout: float) -> set[ClientId]:
        """Waits for clients to come online."""

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float) -> Exchange:
        """Carries messages and brings the replies."""


class Bridge:
    """The run's end: a `Transport` whose exchanges a ServerApp carries out.

    `check` is called while waiting, and raises when the processes that the answer depends on have died.
    """

    def __init__(self, address_file: Path, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._log = address_file.with_name("superexec.log")
        # The path of a socket may be no longer than some hundred characters, a run directory may be deeper.
        self._folder = tempfile.TemporaryDirectory(prefix="dapfl-")
        secret = secrets.token_hex(32)
        path = str(Path(self._folder.name) / "bridge")
        self._listener = Listener(path, family="AF_UNIX", authkey=secret.encode())
        self._connection: Connection[Any, Any] | None = None
        with replacing(address_file, mode=0o600) as file:
            file.write(msgspec.json.encode(Address(path, secret)))

    def accept(self, timeout: float) -> None:
        """Waits for the ServerApp."""
        listening: socket.socket = self._listener._listener._socket  # type: ignore[attr-defined]
        deadline = time.monotonic() + timeout
        listening.settimeout(0.5)  # `Listener.accept` itself knows no timeout
        while True:
            self._check()
            with suppress(TimeoutError):
                self._connection = self._listener.accept()
                return
            if time.monotonic() >= deadline:
                raise TransportError(
                    f"Flower did not start the ServerApp within {timeout:.0f} s. "
                    f"{self._log} may say why; so may the SuperLink's log."
                )

    def wait_for(self, clients: set[ClientId], timeout: float) -> set[ClientId]:
        """Waits until these clients are online, or the time is over; returns those still missing."""
        answer = self._ask(Await(sorted(clients), timeout))
        assert isinstance(answer, Missing)
        return set(answer.clients)

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float) -> Exchange:
        """Sends each client its message and collects the replies that come in time."""
        groups: dict[bytes, list[ClientId]] = {}
        for client, message in sorted(messages.items()):
            groups.setdefault(message, []).append(client)
        answer = self._ask(Carry(list(groups.items()), timeout))
        assert isinstance(answer, Outcome)
        return Exchange(answer.replies, answer.failures)

    def close(self) -> None:
        """Lets the ServerApp go; it ends when the connection does."""
        if self._connection is not None:
            self._connection.close()
        self._listener.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, order: Await | Carry) -> Missing | Outcome:
        if self._connection is None:
            raise TransportError("No ServerApp is connected.")
        try:
            self._connection.send_bytes(_ENCODER.encode(order))
            while not self._connection.poll(0.5):
                self._check()
            answer: Missing | Outcome | Refused = _ANSWERS.decode(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._check()
            raise TransportError(
                "The Flower ServerApp ended during an exchange. The run can be continued with --resume."
            ) from None
        if isinstance(answer, Refused):
            raise TransportError(answer.why)
        return answer


def serve(address_file: Path, carrier: Carrier) -> None:
    """The ServerApp's end: does what the run says until the run hangs up."""
    try:
        address = msgspec.json.decode(address_file.read_bytes(), type=Address)
        connection = Client(address.socket, family="AF_UNIX", authkey=address.secret.encode())
    except (OSError, msgspec.MsgspecError):
        raise TransportError(
            f"There is no run behind {address_file}. Start this app by `dapfl run --engine flower`, "
            "on the machine where its ServerApp runs."
        ) from None
    with connection, suppress(EOFError, ConnectionError):
        while True:
            order = _ORDERS.decode(connection.recv_bytes())
            connection.send_bytes(_ENCODER.encode(_obey(order, carrier)))


def _obey(order: Await | Carry, carrier: Carrier) -> Missing | Outcome | Refused:
    try:
        if isinstance(order, Await):
            return Missing(sorted(carrier.wait_for(set(order.clients), order.timeout)))
        messages = {client: message for message, clients in order.groups for client in clients}
        return Outcome(*carrier.exchange(messages, order.timeout))
    except TransportError as error:
        return Refused(str(error))
    except Exception as error:
        # Flower and HTTP raise what they like: the SuperLink is gone, or ended our run.
        return Refused(
            f"Flower could not carry the round's messages ({type(error).__name__}). "
            "If the SuperLink was restarted, continue the run with --resume."
        )
