"""A federation on Flower: the transport that a run uses, and the processes behind it."""

import contextlib
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Self

from dapfl.config import PolicyConfig, RunConfig
from dapfl.engines.flower import programs
from dapfl.engines.flower.bridge import Bridge
from dapfl.engines.flower.control import Control, connect
from dapfl.engines.flower.folders import ClientSettings, Deployment, ServerFolder, create
from dapfl.engines.flower.processes import Program, accepts_connections, free_ports, stop, wait_until
from dapfl.errors import TransportError
from dapfl.federation.kdc import ClientBundle, bundle_path, save_bundle
from dapfl.federation.transport import ClientId, Exchange

_START = 120.0  # seconds that Flower's programs may take to come up on a busy machine
_NODE_START = 4.0  # and this much more for every node
_RESTART = 8.0  # seconds between looks at whether a node has died


class FlowerEngine:
    """A `Transport` to clients that are Flower nodes.

    Made by `open_here`, which starts a SuperLink and all SuperNodes here, or by `open_at`,
    which uses a running one. Closing it takes down whatever it has started.
    """

    def __init__(self, server: ServerFolder) -> None:
        programs.require_flower()
        self._server = server
        self._address = ""
        self._programs: list[Program] = []  # that must not end
        self._nodes: dict[ClientId, Program] = {}  # that are started again
        self._stack = contextlib.ExitStack()
        self._stack.callback(lambda: stop([*self._programs, *self._nodes.values()]))

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float) -> Exchange:
        """Sends each client its message and collects the replies that come in time."""
        return self._bridge.exchange(messages, timeout)

    def states(self) -> dict[ClientId, bytes]:
        """Nothing: clients keep their states themselves, on their own disks."""
        return {}

    def close(self) -> None:
        """Takes everything down."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_superlink(self, port: int) -> None:
        self._address = f"127.0.0.1:{port}"
        command = programs.superlink("127.0.0.1", port)
        link = Program("superlink", command, self._server.path, programs.environment(self._server))
        self._programs.append(link.start())
        wait_until(
            lambda: accepts_connections(self._address), "The start of the SuperLink", _START, link.check
        )

    def _connect(self, address: str) -> None:
        self._address = address
        self._control = self._stack.enter_context(connect(address, self._server))
        self._control.register(self._server.node_keys())

    def _start_nodes(self, deployment: Deployment, clients: Collection[ClientId], ports: list[int]) -> None:
        for client, port in zip(clients, ports, strict=True):
            folder = deployment.client(client)
            environment = programs.environment(folder, programs.polling(len(clients)))
            command = programs.supernode(self._address, port)
            self._nodes[client] = Program("supernode", command, folder.path, environment).start()
        self._stack.enter_context(_Keeper(self._nodes.values()))

    def _start_app(self) -> None:
        """Starts our app on the SuperLink and connects to its ServerApp."""
        command = programs.superexec(self._address, os.getpid())
        executor = Program("superexec", command, self._server.path, programs.environment(self._server))
        self._programs.append(executor.start())
        with contextlib.ExitStack() as half_way:
            bridge = half_way.enter_context(Bridge(self._server.bridge, self._check))
            run = self._control.start(self._server)
            self._stack.callback(_end_run, self._control, run)
            self._stack.push(half_way.pop_all())  # so that the ServerApp is let go before its run is ended
        self._bridge = bridge
        bridge.accept(_START)

    def _check(self) -> None:
        for program in self._programs:
            program.check()


def open_here(
    path: Path, config: RunConfig, policy: PolicyConfig, bundles: Mapping[ClientId, ClientBundle | None]
) -> FlowerEngine:
    """A SuperLink and a SuperNode for each client on this machine, their folders under `path`.

    Folders that are there already are used as they are: so a run that was stopped goes on with its
    clients' states.
    """
    deployment = Deployment(path)
    if not deployment.server.path.exists():
        create(path, sorted(bundles), [])
        for client, bundle in bundles.items():
            folder = deployment.client(client)
            folder.write_settings(ClientSettings(client=client, threads=1, run=config, policy=policy))
            if bundle is not None:
                save_bundle(bundle_path(folder.path, client), bundle)
    return start_here(deployment, sorted(bundles))


def open_at(address: str, folder: Path, config: RunConfig) -> FlowerEngine:
    """The SuperLink at host:port; `folder` is the server's, as `dapfl deploy init` made it."""
    clients = range(1, config.clients + 1)
    return _use_superlink(ServerFolder(folder), address, clients, quorum=config.min_cohort)


def start_here(deployment: Deployment, clients: Collection[ClientId]) -> FlowerEngine:
    """Starts a SuperLink and one SuperNode for each client on loopback, with TLS and node keys."""
    engine = FlowerEngine(deployment.server)
    try:
        port, *ports = free_ports(1 + len(clients))
        engine._start_superlink(port)
        engine._connect(engine._address)
        engine._start_nodes(deployment, clients, ports)
        engine._start_app()
        if missing := engine._bridge.wait_for(set(clients), _START + _NODE_START * len(clients)):
            node = engine._nodes[min(missing)]
            raise TransportError(
                f"{len(missing)} of {len(clients)} SuperNodes did not connect. "
                f"The log of one, {node.log}, ends with: {node.last_words()}"
            )
    except BaseException:
        engine.close()
        raise
    return engine


def _use_superlink(
    server: ServerFolder, address: str, clients: Collection[ClientId], *, quorum: int, patience: float = 120.0
) -> FlowerEngine:
    """Uses a running SuperLink; begins when all clients are online, or after `patience` with `quorum`."""
    engine = FlowerEngine(server)
    try:
        engine._connect(address)
        engine._start_app()
        missing = engine._bridge.wait_for(set(clients), patience)
        if len(clients) - len(missing) < quorum:
            raise TransportError(
                f"Only {len(clients) - len(missing)} of {len(clients)} clients are online after "
                f"{patience:.0f} s, and a round needs {quorum}. Missing: {sorted(missing)}. "
                "Start their SuperNodes (start-supernode.sh in their folders)."
            )
    except BaseException:
        engine.close()
        raise
    return engine


class _Keeper:
    """Starts SuperNodes again that have died.

    A SuperLink takes a killed node for alive for another minute and sends it away that long, so a node
    may have to be started several times.
    """

    def __init__(self, nodes: Collection[Program]) -> None:
        self._nodes = nodes
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dapfl-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._leaving.wait(_RESTART):
            for node in self._nodes:
                if node.ended:
                    node.start()


def _end_run(control: Control, run: int) -> None:
    with contextlib.suppress(TransportError):  # it has ended already, or the SuperLink has
        control.stop(run)
