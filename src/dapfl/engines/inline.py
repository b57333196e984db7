"""The inline engine: every client in this process, for comparisons that fill the cores with many runs."""

from collections.abc import Mapping

from dapfl.engines.base import HostedClient
from dapfl.federation.transport import ClientId, LocalTransport


class InlineEngine(LocalTransport):
    """An `Engine` that calls its clients one after the other.

    `states` are the saved states of clients that continue an earlier run.
    """

    def __init__(
        self, clients: Mapping[ClientId, HostedClient], states: Mapping[ClientId, bytes] | None = None
    ) -> None:
        super().__init__(clients)
        self._hosted = dict(clients)
        for client, state in (states or {}).items():
            self._hosted[client].restore(state)

    def states(self) -> dict[ClientId, bytes]:
        """The state of every client."""
        return {client: hosted.saved_state() for client, hosted in self._hosted.items()}

    def close(self) -> None:
        """Does nothing: no process was started."""
