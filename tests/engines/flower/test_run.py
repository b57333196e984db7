"""Whole runs on Flower with real processes, some of which are killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("flwr")

from dapfl.config import RunConfig, parse
from dapfl.engines.flower.deployment import certificates, programs
from dapfl.engines.flower.deployment.folders import ClientFolder, Deployment
from dapfl.engines.flower.host.processes import Program, free_ports, stop, wait_until
from dapfl.federation.assembly import build_client, build_federation
from dapfl.federation.keys.bundles import bundle_path, save_bundle
from dapfl.federation.run_keys import make_keys
from dapfl.federation.run_terms import Shared
from dapfl.federation.transport import Arrival, ClientId, Exchange, LocalTransport
from dapfl.learning.layout import Layout
from dapfl.learning.tasks import get_task
from dapfl.runs.settings import resolve

CONFIG = """
task = "{task}:TASK"
engine = "flower"
clients = {clients}
rounds = 2
seed = 5
mean_samples = 60
std_samples = 10
min_cohort = 1
round_timeout = 100
[crypto]
key_bits = 512
engine = "gmp"
allow_insecure_small_keys = true
"""
FLOWER = ("flower-superlink", "flower-superexec", "flower-supernode", "flwr-", "dapfl.engines.flower")


def write_config(folder: Path, clients: int) -> Path:
    path = folder / "run.toml"
    path.write_text(CONFIG.format(task=Path(__file__).parents[1] / "tiny_task.py", clients=clients))
    return path


@contextmanager
def dapfl_run(log: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """`dapfl run` in a process of its own, which ends with the test."""
    command = [sys.executable, "-m", "dapfl.cli", "run", *map(str, arguments)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def processes_of(run: Path) -> dict[int, str]:
    """Flower's processes whose working directory is in this run's."""
    found = {}
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            if any(name in command for name in FLOWER) and Path(process.cwd()).is_relative_to(run):
                found[process.pid] = command
        except psutil.Error:
            continue
    return found


def process_of(folder: Path, program: str) -> int:
    (found,) = (pid for pid, command in processes_of(folder).items() if program in command)
    return found


def wait_for_round(client: ClientFolder, number: int, process: subprocess.Popen[bytes], output: Path) -> None:
    """Until this client's node has received the message of a round (exchanges count from 1)."""
    log = client.path / "supernode.log"

    def received() -> bool:
        return log.exists() and f"ROUND {number}]" in log.read_text("utf-8", "replace")

    def check() -> None:
        assert process.poll() is None, output.read_text()

    wait_until(received, f"Round {number} of {client.path.name}", 300, check)


def rounds(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def statuses(line: dict[str, Any]) -> dict[int, str]:
    return {client["id"]: client["status"] for client in line["clients"]}


def model(run: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    with np.load(run / "model.npz") as tensors:
        return np.concatenate([tensors[name].ravel() for name in tensors.files])


class Unreliable(LocalTransport):
    """Clients in this process, some of which cannot be reached in some exchanges."""

    def __init__(self, clients: Mapping[ClientId, Any], away: Mapping[int, set[ClientId]]) -> None:
        super().__init__(clients)
        self.away = away
        self.exchanges = 0

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        lost = self.away.get(self.exchanges, set())
        self.exchanges += 1
        reached = {client: message for client, message in messages.items() if client not in lost}
        replies, failures = super().exchange(reached, timeout)
        return Exchange(replies, failures | dict.fromkeys(lost, "lost"))


def reference(config: RunConfig, away: Mapping[int, set[ClientId]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The global model of the same run without Flower, some clients missing in some exchanges."""
    resolved, keys = resolve(config), make_keys(config)
    shared = Shared(config, resolved.policy)
    clients = {i: build_client(config, resolved.policy, i, keys.clients[i], shared) for i in keys.clients}
    transport = Unreliable(clients, away)
    federation = build_federation(
        config,
        resolved.selection,
        keys.server,
        transport,
        one_exchange_per_round=True,
        step=resolved.policy.server_step,
    )
    for _ in federation.rounds(config.rounds):
        pass
    # The input buffers at the end change nothing here, and are not in model.npz.
    task = get_task(config.task)
    return federation.weights[: Layout.of(task.build_model()).size]


@pytest.mark.processes
def test_a_run_survives_its_processes_and_ends_with_the_same_model(tmp_path: Path) -> None:
    """A node and the SuperLink are killed, keys are lost or replaced, and a stranger tries to connect."""
    run, output = tmp_path / "run", tmp_path / "output"
    config = write_config(tmp_path, clients=4)
    deployment = Deployment(run / "flower")

    # Two of four clients will lose their keys: a committee of the four could not decrypt any more.
    shared = ("--decryption", "shared")
    with dapfl_run(output, "--config", config, "--out", run, *shared) as process:
        # A SuperNode is killed in the middle of a round and comes back: the round waits for it.
        wait_for_round(deployment.client(2), 1, process, output)
        os.kill(process_of(deployment.client(2).path, "flower-supernode"), signal.SIGTERM)
        # The SuperLink is killed in the middle of a round: the run ends, and says how to continue.
        wait_for_round(deployment.client(1), 2, process, output)
        os.kill(process_of(deployment.server.path, "flower-superlink"), signal.SIGKILL)
        assert process.wait(timeout=120) == 1
    assert "--resume" in output.read_text() or "superlink has ended" in output.read_text()
    assert "Traceback" not in output.read_text()
    assert processes_of(run) == {}

    # Meanwhile one client loses its keys, and another gets those of some other federation.
    bundle_path(deployment.client(3).path, 3).unlink()
    foreign = make_keys(parse(json.loads((run / "manifest.json").read_text())["config"]))
    assert foreign.clients[4] is not None
    save_bundle(bundle_path(deployment.client(4).path, 4), foreign.clients[4])

    (deployment.client(1).path / "supernode.log").unlink()

    with dapfl_run(output, "--resume", run) as process:
        wait_for_round(deployment.client(1), 1, process, output)
        link = processes_of(deployment.server.path)[process_of(deployment.server.path, "flower-superlink")]
        port = int(link.split("--port ")[1].split()[0])
        assert not stranger_gets_in(tmp_path / "stranger", deployment, port)
        assert process.wait(timeout=300) == 0, output.read_text()
    assert processes_of(run) == {}

    first, second = rounds(run)
    assert statuses(first) == dict.fromkeys([1, 2, 3, 4], "accepted")
    found = statuses(second)
    assert [found[1], found[2], found[3]] == ["accepted", "accepted", "failed:no-usable-keys"]
    assert found[4].startswith("rejected:")
    manifest = json.loads((run / "manifest.json").read_text())
    expected = reference(parse(manifest["config"]), {1: {3, 4}, 2: {3, 4}})
    assert np.array_equal(model(run), expected)
    assert (run / "flower").stat().st_mode & 0o777 == 0o700  # kept, so that the run can be extended


def stranger_gets_in(folder: Path, deployment: Deployment, port: int) -> bool:
    """Whether a SuperNode whose key nobody registered stays connected."""
    own = ClientFolder(folder)
    own.home.mkdir(parents=True)
    own.authority.write_bytes(deployment.client(1).authority.read_bytes())
    own.node_key.write_bytes(certificates.make_node_key("stranger").private)
    own.node_config.write_text('state-dir = "."\n')
    command = programs.supernode(f"127.0.0.1:{port}", free_ports(1)[0])
    stranger = Program("supernode", command, folder, programs.environment(own)).start()
    try:
        wait_until(
            lambda: stranger.ended or b"SuperNode ID" in stranger.log.read_bytes(),
            "the SuperLink's decision",
            120,
        )
        return not stranger.ended
    finally:
        stop([stranger])


@pytest.mark.processes
def test_an_interrupted_run_leaves_no_process_behind(tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    config = write_config(tmp_path, clients=1)
    alone = ("--decryption", "shared")  # a committee protects nobody from himself
    with dapfl_run(output, "--config", config, "--out", run, *alone) as process:
        wait_for_round(Deployment(run / "flower").client(1), 1, process, output)
        assert processes_of(run)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert processes_of(run) == {}
    assert json.loads((run / "manifest.json").read_text())["status"] == "stopped"
