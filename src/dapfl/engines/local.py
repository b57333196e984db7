"""The local engine: clients run in worker processes on this machine, one process for each core.

A client stays in the same worker for the whole run, so its data and its agent stay in that process's
memory. With each reply the worker also returns the client's new state. Checkpoints are made of these states,
and a client whose worker has died is rebuilt from its last one. Nothing random happens here, so the number
of workers changes no result.
"""

import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from dapfl.crypto.engines.base import set_threads
from dapfl.crypto.engines.teamwork import Team, join
from dapfl.engines.base import HostedClient
from dapfl.errors import DapflError, WorkerError
from dapfl.federation.transport import Arrival, ClientId, Exchange
from dapfl.system.processes import WORKERS, WorkerProcess

_ATTEMPTS = 2  # a message whose client kills its worker twice is reported as failed
_DELIVERIES = 3  # and so is one that so many workers did not live to read
_STARTS = 3  # a worker that dies this often while it starts is given up


ClientFactory = Callable[[Any], HostedClient]
"""Builds one client in its worker process, given what the clients of that process share."""


@dataclass(frozen=True)
class _Request:
    """A message for some clients of one worker.

    `exchange` numbers the exchanges, so that a late answer is not taken for a current one.
    """

    exchange: int
    message: bytes
    clients: tuple[ClientId, ...]


@dataclass(frozen=True)
class _Answer:
    """One client's reply and its new state, or None for both if the client raised an exception."""

    exchange: int
    client: ClientId
    reply: bytes | None = None
    state: bytes | None = None

    def send(self, connection: Connection) -> None:
        """Reply and state go as they are: pickled, both would be copied, and they are large."""
        connection.send((self.exchange, self.client, self.reply is not None))
        if self.reply is not None and self.state is not None:
            connection.send_bytes(self.reply)
            connection.send_bytes(self.state)

    @classmethod
    def receive(cls, connection: Connection) -> "_Answer | None":
        """What `send` has sent; None if its process says that it has read its request; EOFError or OSError if
        it has died, perhaps in the middle of a message."""
        if (head := connection.recv()) is None:
            return None
        exchange, client, answered = head
        if not answered:
            return cls(exchange, client)
        return cls(exchange, client, connection.recv_bytes(), connection.recv_bytes())


def _answer(exchange: int, client: ClientId, hosted: HostedClient, message: bytes) -> _Answer:
    try:
        return _Answer(exchange, client, hosted.handle(message), hosted.saved_state())
    except Exception:
        # Clients report their own failures. Any other exception may quote private data.
        return _Answer(exchange, client)


_Deaths = Counter[tuple[ClientId, bool]]
"""How many workers have died over a client's message in an exchange, by whether they had read it."""


@dataclass
class _Worker:
    """A worker process, the request it is working on (with the clients still to answer), and its queue.

    A queued request is sent only when the worker is idle, so neither end can block on a full pipe. `begun`
    says that the worker has read its request. Only it can know: a message can be sent to a worker that is
    dying, and the system may take its time to say that a process has died.
    """

    process: WorkerProcess
    connection: Connection
    current: _Request | None = None
    begun: bool = False
    queue: deque[_Request] = field(default_factory=deque)


def _serve(connection: Connection, team: Team | None) -> None:
    """What a worker process runs: builds its clients, then answers requests until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    join(team)
    set_threads(1)  # the workers fill the cores; torch is kept to one thread by dapfl.learning
    try:
        factories, shared, states = connection.recv()
        try:
            clients = {client: build(shared) for client, build in factories.items()}
            for client, state in states.items():
                clients[client].restore(state)
        except DapflError as error:
            connection.send(error)
            return
        connection.send(None)
        while True:
            exchange, its_clients = connection.recv()
            message = connection.recv_bytes()
            connection.send(None)  # it has begun
            for client in its_clients:
                # Nothing is kept of an answer: the next one may need the memory.
                _answer(exchange, client, clients[client], message).send(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has closed the connection or has died


def _placed(work: Mapping[ClientId, int], workers: int) -> dict[ClientId, int]:
    """A worker for each client: those with the most work first, each to where there is the least so far.

    >>> _placed({1: 2, 2: 3, 3: 2, 4: 2, 5: 3}, 2)
    {2: 0, 5: 1, 1: 0, 3: 1, 4: 0}
    """
    loads = [0] * workers
    places: dict[ClientId, int] = {}
    for client in sorted(work, key=lambda client: (-work[client], client)):
        places[client] = loads.index(min(loads))
        loads[places[client]] += work[client]
    return places


class WorkerPool:
    """An `Engine` whose clients run in worker processes.

    `factories` build the clients inside their workers. `shared` is called each time a worker is started and
    makes what the clients of that worker share. `workers` is 0 for one worker per core. `work` says how much
    each client has to do, compared with the others; as much as any other, unless told.
    """

    def __init__(
        self,
        factories: Mapping[ClientId, ClientFactory],
        shared: Callable[[], object],
        *,
        workers: int = 0,
        states: Mapping[ClientId, bytes] | None = None,
        work: Mapping[ClientId, int] | None = None,
    ) -> None:
        self._factories = dict(factories)
        self._shared = shared
        self._states: dict[ClientId, bytes] = dict(states or {})
        self._exchange = 0
        count = min(workers or os.cpu_count() or 1, len(self._factories))
        self._worker_of = _placed(work or dict.fromkeys(self._factories, 1), count)
        self._workers: list[_Worker] = []
        self._team = Team() if count > 1 else None
        try:
            # All processes are started before any is waited for: importing torch takes them a second or two.
            self._workers = [self._spawn() for _ in range(count)]
            for index in range(count):
                self._send_clients(index)
            for index in range(count):
                self._wait_until_ready(index)
        except BaseException:
            self.close()
            raise

    def states(self) -> dict[ClientId, bytes]:
        """The state of every client that has answered so far."""
        return dict(self._states)

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        """Sends each client its message and hands over or collects the replies that come in time."""
        self._exchange += 1
        deadline = time.monotonic() + timeout
        replies: dict[ClientId, bytes] = {}
        failures: dict[ClientId, str] = {}
        unanswered = set(messages)
        deaths: _Deaths = Counter()
        for index, request in self._requests(messages):
            self._workers[index].queue.append(request)
        while unanswered:
            self._send_queued()
            remaining = deadline - time.monotonic()
            ready = wait([worker.connection for worker in self._workers], max(0.0, remaining))
            for index, worker in enumerate(self._workers):
                if worker.connection not in ready:
                    continue
                try:
                    answer = _Answer.receive(worker.connection)
                except (EOFError, OSError):
                    self._restart(index, deaths, failures)
                    continue
                if answer is None:
                    worker.begun = True
                    continue
                client, reply = self._take(worker, answer, failures)
                if reply is not None:
                    unanswered.discard(client)
                    if arrived is not None:
                        arrived(client, reply)
                    else:
                        replies[client] = reply
            unanswered -= failures.keys()
            if not ready and remaining <= 0:
                failures.update(dict.fromkeys(unanswered, "late"))
                unanswered.clear()
                for worker in self._workers:
                    worker.queue.clear()  # nothing is started after the deadline
        # In the order of the clients, not of arrival: nothing in a run may depend on which worker was faster.
        return Exchange(dict(sorted(replies.items())), failures)

    def close(self) -> None:
        """Ends the workers. A busy one is terminated."""
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

    def _requests(self, messages: Mapping[ClientId, bytes]) -> Iterable[tuple[int, _Request]]:
        """One request for each worker and distinct message: a broadcast is sent once to each worker."""
        groups: dict[tuple[int, bytes], list[ClientId]] = {}
        for client in sorted(messages):
            groups.setdefault((self._worker_of[client], messages[client]), []).append(client)
        for (index, message), clients in groups.items():
            yield index, _Request(self._exchange, message, tuple(clients))

    def _send_queued(self) -> None:
        for worker in self._workers:
            if worker.queue and worker.current is None:
                worker.current, worker.begun = worker.queue.popleft(), False
                # If the worker has died meanwhile, the next receive notices it.
                with suppress(BrokenPipeError, ConnectionResetError):
                    worker.connection.send((worker.current.exchange, worker.current.clients))
                    worker.connection.send_bytes(worker.current.message)  # large: pickled, it would be copied

    def _take(
        self, worker: _Worker, answer: _Answer, failures: dict[ClientId, str]
    ) -> tuple[ClientId, bytes | None]:
        """The client that has answered, and its reply if it counts."""
        assert worker.current is not None
        left = tuple(client for client in worker.current.clients if client != answer.client)
        worker.current = replace(worker.current, clients=left) if left else None
        if answer.state is not None:
            self._states[answer.client] = answer.state
        if answer.exchange != self._exchange:
            return answer.client, None  # the answer to a request whose deadline has passed
        if answer.reply is None:
            failures[answer.client] = "client-error"
        return answer.client, answer.reply

    def _restart(self, index: int, deaths: _Deaths, failures: dict[ClientId, str]) -> None:
        """Replaces a worker that has died, with its clients' last states and what they had not answered."""
        old = self._workers[index]
        self._replace(index)
        self._wait_until_ready(index)
        new = self._workers[index]
        new.queue = old.queue
        if old.current is None or old.current.exchange != self._exchange:
            return
        unanswered = old.current
        culprit = unanswered.clients[0]  # clients are served in order, so the worker died on this one
        deaths[culprit, old.begun] += 1
        if deaths[culprit, old.begun] >= (_ATTEMPTS if old.begun else _DELIVERIES):
            failures[culprit] = "worker-died"
            unanswered = replace(unanswered, clients=unanswered.clients[1:])
        if unanswered.clients:
            new.queue.appendleft(unanswered)

    def _replace(self, index: int) -> None:
        """Starts another process in the place of one that has died."""
        self._workers[index].connection.close()
        self._workers[index].process.join()
        self._workers[index] = self._spawn()
        self._send_clients(index)

    def _spawn(self) -> _Worker:
        ours, theirs = WORKERS.Pipe()
        process = WORKERS.Process(target=_serve, args=(theirs, self._team), name="dapfl-worker", daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _send_clients(self, index: int) -> None:
        clients = [client for client, place in self._worker_of.items() if place == index]
        factories = {client: self._factories[client] for client in clients}
        states = {client: self._states[client] for client in clients if client in self._states}
        # If the worker has died meanwhile, `_wait_until_ready` notices it.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._workers[index].connection.send((factories, self._shared(), states))

    def _wait_until_ready(self, index: int) -> None:
        for _ in range(_STARTS):
            try:
                problem = self._workers[index].connection.recv()
            except (EOFError, ConnectionResetError):
                self._replace(index)
                continue
            if problem is not None:
                raise problem
            return
        raise WorkerError(
            f"A worker process died {_STARTS} times while it was starting. "
            "The machine may be out of memory: try fewer workers (--workers 1)."
        )
