"""The Flower engine: a transport to Flower nodes, and the processes that it needs."""

import contextlib
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from dapfl.config import PolicyConfig, RunConfig
from dapfl.engines.flower.apps.bridge import Bridge
from dapfl.engines.flower.deployment import programs
from dapfl.engines.flower.deployment.folders import ClientSettings, Deployment, NodeKeys, ServerFolder, create
from dapfl.engines.flower.host.control import Control, connect
from dapfl.engines.flower.host.processes import Program, accepts_connections, free_ports, stop, wait_until
from dapfl.errors import TransportError
from dapfl.federation.keys.bundles import ClientBundle, bundle_path, save_bundle
from dapfl.federation.transport import Arrival, ClientId, Exchange
from dapfl.system.console import err

_START = 120.0  # seconds that Flower's programs may take to come up on a busy machine
_NODE_START = 4.0  # and this much more for every node
_FIRST_DELAY, _LAST_DELAY = 1.0, 16.0  # seconds before a node that keeps dying is started again
_HEALTHY_AFTER = 60.0  # seconds of life after which a node's delay starts anew
_LOOK_AGAIN = 5.0  # seconds between two looks at who is online
_REMIND = 600.0  # seconds between two messages of a run that waits for clients
_NODE_MEMORY = 0.5  # GB: Flower's SuperNode and executor, and our worker with torch


class FlowerEngine:
    """An `Engine` whose clients are Flower nodes.

    `on_this_machine` starts a SuperLink and all SuperNodes; `at_superlink` uses a SuperLink that is running.
    """

    def __init__(self, server: ServerFolder) -> None:
        programs.require_flower()
        self._server = server
        self._control: Control
        self._bridge: Bridge
        self._address = ""
        self._node_keys = NodeKeys(server)
        self._registered: dict[bytes, ClientId] = {}
        self._programs: list[Program] = []  # without which the run cannot continue
        self._nodes: dict[ClientId, Program] = {}  # which are started again when they die
        self._stack = contextlib.ExitStack()
        self._stack.callback(lambda: stop([*self._programs, *self._nodes.values()]))

    @classmethod
    def on_this_machine(cls, deployment: Deployment, clients: Collection[ClientId]) -> Self:
        """Starts a SuperLink and one SuperNode for each client on loopback, with TLS and node keys."""
        engine = cls(deployment.server)
        with engine._closed_on_failure():
            port, *ports = free_ports(1 + len(clients))
            engine._start_superlink(port)
            engine._connect(f"127.0.0.1:{port}")
            engine._start_nodes(deployment, clients, ports)
            engine._start_app()
            if missing := engine._bridge.wait_for(set(clients), _START + _NODE_START * len(clients)):
                node = engine._nodes[min(missing)]
                raise TransportError(
                    f"{len(missing)} of {len(clients)} SuperNodes did not connect. "
                    f"The log of one, {node.log}, ends with: {node.last_log_line()}"
                )
        return engine

    @classmethod
    def at_superlink(cls, address: str, server: ServerFolder, clients: Collection[ClientId]) -> Self:
        """Uses the SuperLink at `address`. Gives all clients a while to come online; how many of them a round
        needs, and how long it waits for them, is up to `await_clients`."""
        engine = cls(server)
        with engine._closed_on_failure():
            engine._connect(address)
            engine._start_app()
            engine._bridge.wait_for(set(clients), _START)
        return engine

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        """Sends each client its message and hands over or collects the replies that come in time."""
        return self._bridge.exchange(messages, timeout, arrived)

    def await_clients(
        self,
        clients: Sequence[ClientId],
        least: int,
        limit: float,
        seen: Callable[[set[ClientId]], object] = lambda _: None,
    ) -> None:
        """Returns once at least so many of these clients are online, or others have taken their places;
        TransportError after `limit` seconds. `seen` is told who is missing, at every look."""
        self._register()
        deadline = time.monotonic() + limit
        told = -math.inf
        patience = 0.0
        while True:
            missing = self._bridge.wait_for(set(clients), patience)
            seen(missing)
            if len(missing) <= len(clients) - least:
                break
            now = time.monotonic()
            online = len(clients) - len(missing)
            gone = f"{online} of {len(clients)} clients are online, and a round needs {least}"
            if now >= deadline:
                raise TransportError(
                    f"{gone}; waited {limit:.0f} s (--wait). Missing: {sorted(missing)}. "
                    "Start their SuperNodes, then go on with --resume."
                )
            if now >= told + _REMIND:
                err.print(f"Waiting: {gone}. Missing: {sorted(missing)}.", markup=False)
                told = now
            patience = min(_LOOK_AGAIN, deadline - now)
            if self._register():
                return  # who takes part has changed: whoever called this will see
        if told > -math.inf:
            err.print(f"Enough clients are online again: {len(clients) - len(missing)}.", markup=False)

    def states(self) -> dict[ClientId, bytes]:
        """Empty: the clients save their states themselves, on their own disks."""
        return {}

    def close(self) -> None:
        """Ends all programs that were started."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _start_superlink(self, port: int) -> None:
        command = programs.superlink("127.0.0.1", port)
        link = Program("superlink", command, self._server.path, programs.environment(self._server))
        self._programs.append(link.start())
        address = f"127.0.0.1:{port}"
        wait_until(lambda: accepts_connections(address), "the start of the SuperLink", _START, link.check)

    def _connect(self, address: str) -> None:
        self._address = address
        self._control = self._stack.enter_context(connect(address, self._server))
        self._register()

    def _register(self) -> bool:
        """Lets the nodes of new clients and devices in, and those of former ones no more; whether there were
        any."""
        keys = self._node_keys()
        if keys == self._registered:
            return False
        self._control.register(keys)
        self._registered = dict(keys)
        return True

    def _start_nodes(self, deployment: Deployment, clients: Collection[ClientId], ports: list[int]) -> None:
        for client, port in zip(clients, ports, strict=True):
            folder = deployment.client(client)
            environment = programs.environment(folder, programs.polling(len(clients)))
            command = programs.supernode(self._address, port)
            self._nodes[client] = Program("supernode", command, folder.path, environment).start()
        self._stack.enter_context(_NodeRestarter(self._nodes.values()))

    def _start_app(self) -> None:
        """Starts our app on the SuperLink and connects to its ServerApp."""
        command = programs.superexec(self._address, os.getpid())
        executor = Program("superexec", command, self._server.path, programs.environment(self._server))
        self._programs.append(executor.start())
        with contextlib.ExitStack() as until_started:
            bridge = until_started.enter_context(Bridge(self._server.bridge, self._check))
            run = self._control.start(self._server)
            self._stack.callback(_end_run, self._control, run)
            self._stack.push(until_started.pop_all())  # the bridge is closed before Flower's run is stopped
        self._bridge = bridge
        bridge.accept(_START)

    def _check(self) -> None:
        for program in self._programs:
            program.check()


def open_on_this_machine(
    path: Path, config: RunConfig, policy: PolicyConfig, bundles: Mapping[ClientId, ClientBundle | None]
) -> FlowerEngine:
    """Starts a SuperLink, and a SuperNode for each client; their folders are in `path`.

    Folders that exist already are used as they are, so a run that was stopped continues from its clients'
    saved states.
    """
    programs.require_flower()
    _warn_of_memory(len(bundles))
    deployment = Deployment(path)
    if not (path / "complete").exists():
        shutil.rmtree(path, ignore_errors=True)  # left by a start that was interrupted
        create(path, sorted(bundles), [])
        for client, bundle in bundles.items():
            if bundle is not None:
                save_bundle(bundle_path(deployment.client(client).path, client), bundle)
        (path / "complete").touch()
    for client in bundles:  # every time, since a run may have been extended
        settings = ClientSettings(client=client, threads=1, run=config, policy=policy)
        deployment.client(client).write_settings(settings)
    return FlowerEngine.on_this_machine(deployment, sorted(bundles))


def _warn_of_memory(nodes: int) -> None:
    needed, free = _NODE_MEMORY * nodes, psutil.virtual_memory().available / 1e9
    if needed > free:
        err.print(
            f"{nodes} Flower nodes need about {needed:.0f} GB of memory, and {free:.0f} GB are free: "
            "consider fewer --clients, or --engine local."
        )


def open_at_superlink(
    address: str, folder: Path, config: RunConfig, members: Sequence[ClientId] | None = None
) -> FlowerEngine:
    """Uses the SuperLink at host:port; `folder` is the server's, as `dapfl deploy init` made it."""
    clients = members or range(1, config.clients + 1)
    return FlowerEngine.at_superlink(address, ServerFolder(folder), clients)


class _NodeRestarter:
    """Starts SuperNodes again that have died.

    For up to a minute a SuperLink believes that a killed node is still connected, and refuses its successor.
    So a node may have to be started several times, after longer and longer delays.
    """

    def __init__(self, nodes: Collection[Program]) -> None:
        # When a node may be started again, and the delay after that.
        self._nodes = dict.fromkeys(nodes, (0.0, _FIRST_DELAY))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dapfl-restarter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closing.wait(_FIRST_DELAY):
            now = time.monotonic()
            for node, (due, delay) in self._nodes.items():
                if node.ended and now >= due:
                    self._nodes[node] = now + delay, min(2 * delay, _LAST_DELAY)
                    node.start()
                elif now > due + _HEALTHY_AFTER:
                    self._nodes[node] = due, _FIRST_DELAY


def _end_run(control: Control, run: int) -> None:
    with contextlib.suppress(TransportError):  # the run or the SuperLink has ended already
        control.stop(run)
