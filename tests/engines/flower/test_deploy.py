"""A deployment as docs/deployment.md describes it, started by its own scripts, all on this machine."""

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from dapfl import cli
from dapfl.engines.flower.deployment.folders import Deployment
from dapfl.engines.flower.host.processes import Program, accepts_connections, free_ports, stop, wait_until

TASK = Path(__file__).parents[1] / "tiny_task.py"
CLIENTS = (1, 2)


@pytest.mark.processes
def test_the_scripts_of_a_deployment_make_a_federation(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "deployment")
    small = ["--key-bits", "512", "--allow-insecure-small-keys", "--min-cohort", "2"]
    small += ["--decryption", "shared"]  # there is nothing to protect in a federation of two
    data = ["--task", f"{TASK}:TASK", "--own-data", "600", "--rounds", "1"]
    given = ["--clients", str(len(CLIENTS)), "--out", str(deployment.path)]
    assert cli.main(["deploy", "init", *given, *small, *data]) == 0

    link, gateway, *ports = free_ports(2 + len(CLIENTS))
    link_address, gateway_address = f"127.0.0.1:{link}", f"127.0.0.1:{gateway}"
    server = deployment.server.path
    programs = [
        started(server, "start-superlink.sh", "--port", str(link)),
        started(server, "start-gateway.sh", "--listen", gateway_address, "--superlink", link_address),
    ]
    try:
        wait_until(lambda: accepts_connections(gateway_address), "the gateway", 120, programs[1].check)
        for client, port in zip(CLIENTS, ports, strict=True):
            arguments = ["--superlink", gateway_address]
            own = {"DAPFL_NODE_PORT": str(port)}
            programs.append(started(deployment.client(client).path, "start-supernode.sh", *arguments, **own))
        run = started(server, "run.sh", "--superlink", link_address, "--out", str(tmp_path / "run"))
        programs.append(run)
        wait_until(lambda: run.ended, "the end of the run", 300)
    finally:
        stop(programs)
    assert (tmp_path / "run" / "model.npz").exists(), run.log.read_text()
    (line,) = (json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines())
    assert [client["status"] for client in line["clients"]] == ["accepted"] * len(CLIENTS)
    for client in line["clients"]:
        assert client["samples"] == 600  # all that the task finds on the device
        assert 0 < client["budget"] <= 600  # seconds: the deadline, or less of it if a battery is low
    assert (deployment.client(1).path / "state" / "client.state").exists()


def started(folder: Path, script: str, *arguments: str, **variables: str) -> Program:
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": os.pathsep.join([scripts, os.environ["PATH"]])} | variables
    return Program(Path(script).stem, [str(folder / script), *arguments], folder, environment).start()
