"""The local engine: clients live in worker processes on this machine, one core each.

Client i always lives in worker i mod W, so its data pages and its agent stay warm there. After each
message the worker also hands back the client's state: that is what checkpoints are made of, and what
a client is rebuilt from when its worker dies. Nothing random happens here, so the number of workers
changes no result.
"""

import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Protocol, Self

from dapfl.crypto.engine import set_threads
from dapfl.errors import DapflError, WorkerError
from dapfl.federation.transport import ClientId, Exchange, Handler

_ATTEMPTS = 2  # a message whose client kills its worker twice is reported as failed
_STARTS = 3  # a worker that dies this often before it is ready will not come up


class Resident(Handler, Protocol):
    """A client that can live in a worker: it answers messages, and its state can be kept elsewhere."""

    def state(self) -> bytes:
        """Everything that must survive the process."""

    def restore(self, state: bytes) -> None:
        """Continues from a saved state."""


# Builds one client in its worker, given what the clients of that worker share.
Recipe = Callable[[object], Resident]


@dataclass(frozen=True)
class _Order:
    """A message for some clients of one worker; `exchange` tells late answers from current ones."""

    exchange: int
    message: bytes
    clients: tuple[ClientId, ...]


@dataclass(frozen=True)
class _Answer:
    exchange: int
    client: ClientId
    reply: bytes | None
    state: bytes | None


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    current: _Order | None = None  # what it is working on: the clients still to answer
    outbox: deque[_Order] = field(default_factory=deque)  # what it gets next; sent only while it is idle


def _serve(connection: Connection) -> None:
    """A worker's life: build the clients, answer orders until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    set_threads(1)  # the workers fill the cores; torch is kept to one thread by dapfl.learning
    try:
        recipes, shared, states = connection.recv()
        try:
            clients = {client: recipe(shared) for client, recipe in recipes.items()}
            for client, state in states.items():
                clients[client].restore(state)
        except DapflError as error:
            connection.send(error)
            return
        connection.send(None)
        while True:
            order = connection.recv()
            for client in order.clients:
                handler = clients[client]
                try:
                    reply = handler.handle(order.message)
                    answer = _Answer(order.exchange, client, reply, handler.state())
                except Exception:
                    # Clients turn their own failures into reports; what still gets here says nothing outside.
                    answer = _Answer(order.exchange, client, None, None)
                connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has gone: so do we


class WorkerPool:
    """A `Transport` whose clients live in worker processes.

    `recipes` builds each client inside its worker; `shared` makes, whenever a worker is started, what the
    clients of that worker share.
    """

    def __init__(
        self,
        recipes: Mapping[ClientId, Recipe],
        shared: Callable[[], object],
        *,
        workers: int = 0,
        states: Mapping[ClientId, bytes] | None = None,
    ) -> None:
        self._recipes = dict(recipes)
        self._shared = shared
        self._states: dict[ClientId, bytes] = dict(states or {})
        self._exchange = 0
        self._context = multiprocessing.get_context("spawn")
        count = min(workers or os.cpu_count() or 1, len(self._recipes))
        homes: list[list[ClientId]] = [sorted(self._recipes)[home::count] for home in range(count)]
        self._home = {client: home for home, clients in enumerate(homes) for client in clients}
        self._workers: list[_Worker] = []
        try:
            # All processes are started before any is waited for: importing torch takes them a second or two.
            self._workers = [self._spawn() for _ in homes]
            for home in range(count):
                self._prepare(home)
            for home in range(count):
                self._await_ready(home)
        except BaseException:
            self.close()
            raise

    def states(self) -> dict[ClientId, bytes]:
        """The state of every client that has answered so far."""
        return dict(self._states)

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float) -> Exchange:
        """Sends each client its message and collects the replies that come in time."""
        self._exchange += 1
        deadline = time.monotonic() + timeout
        replies: dict[ClientId, bytes] = {}
        failures: dict[ClientId, str] = {}
        deaths: Counter[ClientId] = Counter()
        for order in self._orders(messages):
            self._workers[self._home[order.clients[0]]].outbox.append(order)
        while len(replies) + len(failures) < len(messages):
            self._send_outboxes()
            remaining = deadline - time.monotonic()
            ready = wait([worker.connection for worker in self._workers], max(0.0, remaining))
            for home, worker in enumerate(self._workers):
                if worker.connection not in ready:
                    continue
                try:
                    self._take(worker, worker.connection.recv(), replies, failures)
                except (EOFError, ConnectionResetError):
                    self._revive(home, deaths, failures)
            if not ready and remaining <= 0:
                late = messages.keys() - replies.keys() - failures.keys()
                failures.update(dict.fromkeys(late, "late"))
                for worker in self._workers:
                    worker.outbox.clear()  # what was not begun by the deadline is not begun
        return Exchange(replies, failures)

    def close(self) -> None:
        """Ends the workers; those that are busy are not waited for."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            if worker.current is not None:
                worker.process.terminate()
            worker.process.join(timeout=5)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
        self._workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _orders(self, messages: Mapping[ClientId, bytes]) -> Iterable[_Order]:
        """One order for each worker and distinct message: a broadcast is carried once, not once a client."""
        groups: dict[tuple[int, bytes], list[ClientId]] = {}
        for client in sorted(messages):
            groups.setdefault((self._home[client], messages[client]), []).append(client)
        for (_, message), clients in groups.items():
            yield _Order(self._exchange, message, tuple(clients))

    def _send_outboxes(self) -> None:
        for worker in self._workers:
            if worker.outbox and worker.current is None:
                worker.current = worker.outbox.popleft()
                # A worker that has died meanwhile is noticed by the receive that follows.
                with suppress(BrokenPipeError, ConnectionResetError):
                    worker.connection.send(worker.current)

    def _take(
        self, worker: _Worker, answer: _Answer, replies: dict[ClientId, bytes], failures: dict[ClientId, str]
    ) -> None:
        assert worker.current is not None
        left = tuple(client for client in worker.current.clients if client != answer.client)
        worker.current = replace(worker.current, clients=left) if left else None
        if answer.state is not None:
            self._states[answer.client] = answer.state
        if answer.exchange != self._exchange:
            return  # the answer to an order whose deadline has passed
        if answer.reply is None:
            failures[answer.client] = "client-error"
        else:
            replies[answer.client] = answer.reply

    def _revive(self, home: int, deaths: Counter[ClientId], failures: dict[ClientId, str]) -> None:
        """Starts a worker anew from its clients' last states and gives it back what it had not answered."""
        old = self._workers[home]
        old.connection.close()
        old.process.join()
        new = self._workers[home] = self._spawn()
        self._prepare(home)
        self._await_ready(home)
        new.outbox = old.outbox
        if old.current is None or old.current.exchange != self._exchange:
            return
        redo = old.current
        culprit = redo.clients[0]  # clients are served in order: it died on the first that had not answered
        deaths[culprit] += 1
        if deaths[culprit] >= _ATTEMPTS:
            failures[culprit] = "worker-died"
            redo = replace(redo, clients=redo.clients[1:])
        if redo.clients:
            new.outbox.appendleft(redo)

    def _spawn(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), name="dapfl-worker", daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _prepare(self, home: int) -> None:
        clients = [client for client, place in self._home.items() if place == home]
        recipes = {client: self._recipes[client] for client in clients}
        states = {client: self._states[client] for client in clients if client in self._states}
        with suppress(BrokenPipeError, ConnectionResetError):
            self._workers[home].connection.send((recipes, self._shared(), states))

    def _await_ready(self, home: int) -> None:
        for _ in range(_STARTS):
            try:
                problem = self._workers[home].connection.recv()
            except (EOFError, ConnectionResetError):
                self._workers[home] = self._spawn()
                self._prepare(home)
                continue
            if problem is not None:
                raise problem
            return
        raise WorkerError(
            f"A worker process died {_STARTS} times while it was starting. "
            "The machine may be out of memory: try fewer workers (--workers 1)."
        )
