"""What an engine is: a transport to the clients of a run, wherever they run.

`registry` lists the engines. This module stays cheap to import, since Flower's processes pass through it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from dapfl.federation.transport import ClientId, Handler, Transport


class HostedClient(Handler, Protocol):
    """A client as an engine sees it: it answers messages, and its state can be saved and restored."""

    def saved_state(self) -> bytes:
        """Everything that must survive the process."""

    def restore(self, state: bytes) -> None:
        """Continues from a saved state."""


class Engine(Transport, Protocol):
    """The clients of one run, up and ready to be sent messages."""

    def states(self) -> dict[ClientId, bytes]:
        """The clients' states for the run's checkpoint; empty if the clients save their states themselves."""

    def close(self) -> None:
        """Ends whatever the engine has started."""


@runtime_checkable
class WaitingEngine(Protocol):
    """An engine whose clients come and go."""

    def await_clients(
        self,
        clients: Sequence[ClientId],
        least: int,
        limit: float,
        seen: Callable[[set[ClientId]], object] = lambda _: None,
    ) -> None:
        """Returns once at least so many of these clients are online, or others have taken their places;
        TransportError after `limit` seconds. `seen` is told who is missing, at every look."""


class Deployed(Struct, frozen=True):
    """A deployment that is already running: its SuperLink's host:port, and the server's folder."""

    superlink: str
    folder: str
