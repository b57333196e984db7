"""What a SuperNode serves on loopback, where every local user of a device can reach it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")

from dapfl.engines.flower.deployment import certificates, programs
from dapfl.engines.flower.deployment.folders import ClientFolder, make_client_folder
from dapfl.engines.flower.host.processes import Program, accepts_connections, free_ports, stop, wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[int]:
    """The port of a SuperNode whose SuperLink is not there."""
    folder = ClientFolder(tmp_path)
    authority = certificates.make_authority("test")
    make_client_folder(folder, authority.public, certificates.make_node_key("client-001"))
    nowhere, port = free_ports(2)
    command = programs.supernode(f"127.0.0.1:{nowhere}", port)
    program = Program("supernode", command, tmp_path, programs.environment(folder)).start()
    try:
        wait_until(lambda: accepts_connections(f"127.0.0.1:{port}"), "the SuperNode", 120, program.check)
        yield port
    finally:
        stop([program])


@pytest.mark.processes
def test_a_local_stranger_is_given_no_work_of_a_node(node: int) -> None:
    url = f"http://127.0.0.1:{node}/v1/runtime/acquire-task"
    kind = {"content-type": "application/protobuf"}
    reply = httpx.post(url, content=b"", headers=kind, trust_env=False, timeout=60)
    assert reply.status_code == 401, reply.text
    assert "Authentication failed" in reply.text
