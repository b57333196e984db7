"""The replies of one exchange: CS works on those that have come while others are on their way."""

from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from dapfl.errors import ProtocolError
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.server.incoming import Opened
from dapfl.federation.transport import ClientId

# So many bytes are opened at once: all of them are held, and what messages share is a millisecond each.
_ENOUGH_BYTES = 2**22
# Of strangers no more is noted than this: records stay short.
_MOST_NOTED = 100


class Reception:
    """Opens and verifies replies as they arrive, a few in one go, and takes them in the order of the clients.

    The order of arrival decides when the work is done, never what comes of it. One thread does all of it, and
    whoever opened the reception leaves CS alone until it is finished.

    Opening a message takes milliseconds, and anybody can make one that has to be opened to be refused. So one
    is opened of each client that was asked, and what else comes is refused unopened. That shuts nobody out,
    since both engines know who speaks: a worker answers for its own clients, and the SuperLink takes a reply
    from the node only that was asked, and only once.
    """

    def __init__(self, server: CentralServer, clients: Iterable[ClientId]) -> None:
        self.received_bytes = 0
        self._server = server
        self._asked = frozenset(clients)
        self._order = deque(sorted(self._asked))
        self._seen: set[ClientId] = set()
        self._unopened: set[tuple[ClientId, str]] = set()  # what was refused, and why
        self._waiting: list[tuple[ClientId, bytes]] = []
        self._opened: dict[ClientId, Opened] = {}
        self._thread = ThreadPoolExecutor(1, "dapfl-server")
        self._work: list[Future[None]] = []

    def arrived(self, client: ClientId, data: bytes) -> None:
        """A reply has come. Only the first one of each client that was asked counts."""
        if client not in self._asked:
            if len(self._unopened) < _MOST_NOTED:
                self._unopened.add((client, "not-asked"))
            return
        if client in self._seen:
            self._unopened.add((client, "duplicate"))
            return
        self._seen.add(client)
        self.received_bytes += len(data)
        self._waiting.append((client, data))
        if len(self._waiting) >= self._server.batch or self._held >= _ENOUGH_BYTES:
            self._submit()

    def finish(self, replies: Mapping[ClientId, bytes]) -> None:
        """Takes the replies that are left, those that the transport has kept until now among them."""
        for client, data in replies.items():
            self.arrived(client, data)
        self._submit()
        for work in self._work:
            work.result()
        for client in sorted(self._opened):  # there is no reply of those before them in the order
            self._server.take(client, self._opened.pop(client))
        for client, reason in sorted(self._unopened):
            self._server.take(client, ProtocolError(reason, "it was not opened"))

    @property
    def _held(self) -> int:
        return sum(len(data) for _, data in self._waiting)

    def _submit(self) -> None:
        """Has the thread open what waits, and take what is next in the order."""
        batch, self._waiting = self._waiting, []
        if batch:
            self._work.append(self._thread.submit(self._open, batch))

    def _open(self, batch: list[tuple[ClientId, bytes]]) -> None:
        clients = [client for client, _ in batch]
        self._opened.update(zip(clients, self._server.open_each(batch), strict=True))
        batch.clear()  # large
        while self._order and self._order[0] in self._opened:
            client = self._order.popleft()
            self._server.take(client, self._opened.pop(client))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)
