"""A federation on Flower: the transport that a run uses, and the processes behind it."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Self

import psutil

from dapfl.config import PolicyConfig, RunConfig
from dapfl.console import err
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
_EAGER, _RELUCTANT = 1.0, 16.0  # seconds before a node that has died is started again: first and last
_STEADY = 60.0  # seconds after which a node counts as healthy again
_NODE_MEMORY = 0.5  # GB: Flower's SuperNode and executor, and our worker with torch


class FlowerEngine:
    """A `Transport` to clients that are Flower nodes.

    `here` starts a SuperLink and all SuperNodes on this machine, `at` uses a running SuperLink. Closing it
    takes down whatever it has started.
    """

    def __init__(self, server: ServerFolder) -> None:
        programs.require_flower()
        self.server = server
        self.control: Control
        self._bridge: Bridge
        self._address = ""
        self._programs: list[Program] = []  # that must not end
        self._nodes: dict[ClientId, Program] = {}  # that are started again
        self._stack = contextlib.ExitStack()
        self._stack.callback(lambda: stop([*self._programs, *self._nodes.values()]))

    @classmethod
    def here(cls, deployment: Deployment, clients: Collection[ClientId]) -> Self:
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
                    f"The log of one, {node.log}, ends with: {node.last_words()}"
                )
        return engine

    @classmethod
    def at(cls, address: str, server: ServerFolder, clients: Collection[ClientId], quorum: int) -> Self:
        """Uses the SuperLink at `address`; begins with all clients or, after a while, with `quorum`."""
        engine = cls(server)
        with engine._closed_on_failure():
            engine._connect(address)
            engine._start_app()
            missing = engine._bridge.wait_for(set(clients), _START)
            if len(clients) - len(missing) < quorum:
                raise TransportError(
                    f"Only {len(clients) - len(missing)} of {len(clients)} clients are online after "
                    f"{_START:.0f} s, and a round needs {quorum}. Missing: {sorted(missing)}. "
                    "Start their SuperNodes (start-supernode.sh in their folders)."
                )
        return engine

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

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _start_superlink(self, port: int) -> None:
        command = programs.superlink("127.0.0.1", port)
        link = Program("superlink", command, self.server.path, programs.environment(self.server))
        self._programs.append(link.start())
        address = f"127.0.0.1:{port}"
        wait_until(lambda: accepts_connections(address), "The start of the SuperLink", _START, link.check)

    def _connect(self, address: str) -> None:
        self._address = address
        self.control = self._stack.enter_context(connect(address, self.server))
        self.control.register(self.server.node_keys())

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
        executor = Program("superexec", command, self.server.path, programs.environment(self.server))
        self._programs.append(executor.start())
        with contextlib.ExitStack() as half_way:
            bridge = half_way.enter_context(Bridge(self.server.bridge, self._check))
            run = self.control.start(self.server)
            self._stack.callback(_end_run, self.control, run)
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
    programs.require_flower()
    _warn_of_memory(len(bundles))
    deployment = Deployment(path)
    if not (path / "complete").exists():
        shutil.rmtree(path, ignore_errors=True)  # what is half made is made again
        create(path, sorted(bundles), [])
        for client, bundle in bundles.items():
            folder = deployment.client(client)
            folder.write_settings(ClientSettings(client=client, threads=1, run=config, policy=policy))
            if bundle is not None:
                save_bundle(bundle_path(folder.path, client), bundle)
        (path / "complete").touch()
    return FlowerEngine.here(deployment, sorted(bundles))


def _warn_of_memory(nodes: int) -> None:
    needed, free = _NODE_MEMORY * nodes, psutil.virtual_memory().available / 1e9
    if needed > free:
        err.print(
            f"{nodes} Flower nodes take about {needed:.0f} GB of memory, and {free:.0f} GB are free: "
            "fewer --clients, or --engine local, may be what you want."
        )


def open_at(address: str, folder: Path, config: RunConfig) -> FlowerEngine:
    """The SuperLink at host:port; `folder` is the server's, as `dapfl deploy init` made it."""
    clients = range(1, config.clients + 1)
    return FlowerEngine.at(address, ServerFolder(folder), clients, quorum=config.min_cohort)


class _Keeper:
    """Starts SuperNodes again that have died.

    A SuperLink takes a killed node for alive for another minute and sends it away that long. So a node may
    have to be started several times, less and less eagerly.
    """

    def __init__(self, nodes: Collection[Program]) -> None:
        self._nodes = dict.fromkeys(nodes, (0.0, _EAGER))  # when it may be started again, then how soon
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dapfl-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._leaving.wait(_EAGER):
            now = time.monotonic()
            for node, (due, delay) in self._nodes.items():
                if node.ended and now >= due:
                    self._nodes[node] = now + delay, min(2 * delay, _RELUCTANT)
                    node.start()
                elif now > due + _STEADY:
                    self._nodes[node] = due, _EAGER


def _end_run(control: Control, run: int) -> None:
    with contextlib.suppress(TransportError):  # it has ended already, or the SuperLink has
        control.stop(run)
