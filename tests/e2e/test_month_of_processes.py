"""The month of `test_month.py` with real processes: a SuperLink, a gateway and SuperNodes, by the scripts of
the folders. Programs are killed, not asked to end.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from dapfl.engines.flower.host.processes import Program, accepts_connections, free_ports, stop, wait_until
from dapfl.runs.results import read_run
from tests.e2e.deployed import Folders, statuses
from tests.engines.flower.test_deploy import started

MINUTES = 60.0
EVERYBODY = (1, 2, 3, 4, 5)


class Machines:
    """The programs of a deployment, each as if on a machine of its own."""

    def __init__(self, folders: Folders) -> None:
        self.folders = folders
        link, gateway = free_ports(2)
        self.link, self.gateway = f"127.0.0.1:{link}", f"127.0.0.1:{gateway}"
        self.programs: dict[str | int, Program] = {}

    def start_server(self) -> None:
        folder, port = self.folders.server, self.link.rpartition(":")[2]
        self.programs["link"] = started(folder, "start-superlink.sh", "--port", port)
        door = ["--listen", self.gateway, "--superlink", self.link]
        self.programs["gateway"] = started(folder, "start-gateway.sh", *door)
        wait_until(lambda: accepts_connections(self.gateway), "the gateway", 3 * MINUTES)

    def start_device(self, client: int) -> None:
        (port,) = free_ports(1)
        folder, where = self.folders.folders[client], ["--superlink", self.gateway]
        self.programs[client] = started(folder, "start-supernode.sh", *where, DAPFL_NODE_PORT=str(port))

    def kill(self, *names: str | int) -> None:
        for name in names:
            process = self.programs[name].process_id
            assert process is not None
            os.killpg(process, signal.SIGKILL)
            stop([self.programs.pop(name)])

    @contextmanager
    def running(self, *arguments: object) -> Iterator["subprocess.Popen[bytes]"]:
        """`dapfl run` on the server; it is killed if it has not ended by itself."""
        command = [sys.executable, "-m", "dapfl.cli", "run", *map(str, arguments)]
        log = (self.folders.server / "run.log").open("ab")
        with (
            log,
            subprocess.Popen(
                command, cwd=self.folders.server, stdout=log, stderr=log, start_new_session=True
            ) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def new_run(self) -> list[object]:
        where = ["--superlink", self.link, "--deployment", ".", "--out", self.folders.run]
        return ["--config", "config.toml", *where]

    def restart_devices(self) -> None:
        """As systemd does: a SuperNode that is not registered yet ends, and is started again."""
        for name, program in self.programs.items():
            if isinstance(name, int) and program.ended:
                program.start()

    def await_end(self, process: "subprocess.Popen[bytes]") -> None:
        ended = lambda: process.poll() is not None  # noqa: E731
        wait_until(ended, "the end of the run", 20 * MINUTES, self.restart_devices)
        assert process.returncode == 0, (self.folders.server / "run.log").read_text()[-3000:]

    def run_to_its_end(self, *arguments: object) -> None:
        with self.running(*arguments) as process:
            self.await_end(process)

    def await_rounds(self, count: int, process: "subprocess.Popen[bytes]") -> None:
        def check() -> None:
            self.restart_devices()
            assert process.poll() is None, (self.folders.server / "run.log").read_text()[-3000:]

        records = self.folders.run / "rounds.jsonl"
        done = lambda: records.exists() and records.read_bytes().count(b"\n") >= count  # noqa: E731
        wait_until(done, f"round {count}", 10 * MINUTES, check)


@pytest.mark.long
@pytest.mark.processes
def test_a_month_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    month = Folders(tmp_path, rounds=3)
    machines = Machines(month)
    monkeypatch.chdir(month.server)
    try:
        machines.start_server()
        for client in EVERYBODY:
            machines.start_device(client)

        # All five; then the server is killed, with everything that runs on it, and device 3 is lost for good.
        with machines.running(*machines.new_run()) as process:
            machines.await_rounds(1, process)
        assert [record.cohort for record in month.records()] == [EVERYBODY] * len(month.records())
        before = len(month.records())
        machines.kill("link", "gateway", 3)
        machines.start_server()
        machines.run_to_its_end("--resume", month.run)
        assert len(month.records()) == 3
        for record in month.records()[before + 1 :]:
            assert record.cohort == (1, 2, 4, 5)
            assert statuses(record)[3] in ("failed:offline", "failed:node-lost")

        # A new device for client 3, and one more hospital; the run is extended.
        lost = month.folders[3]
        month.folders[3] = month.deploy("replace", 3)
        month.folders[6] = month.deploy("add")
        for client in (3, 6):
            machines.start_device(client)
        machines.run_to_its_end("--resume", month.run, "--rounds", 4)
        assert month.records()[-1].cohort == (1, 2, 3, 4, 5, 6)

        # It is extended again. The lost device turns up; client 5 is removed while the run goes on.
        month.folders[7] = lost
        machines.start_device(7)
        with machines.running("--resume", month.run, "--rounds", 9) as process:
            machines.await_rounds(5, process)
            month.deploy("remove", 5)
            machines.await_end(process)
        assert month.records()[-1].cohort == (1, 2, 3, 4, 6)
        assert 5 not in statuses(month.records()[-1])
        assert [record.round for record in month.records()] == list(range(9))
        rosters = [record.roster for record in month.records()]
        assert rosters == sorted(rosters) and {0, 2, 3} <= set(rosters)
        np.testing.assert_array_equal(month.model(), month.reference())
        history = [event.what for event in read_run(month.run).manifest.history]
        assert sum("extended" in what for what in history) == 2

        # The same keys serve a second run, from the beginning, for everybody who is left.
        month.run = tmp_path / "second"
        machines.run_to_its_end(*machines.new_run(), "--rounds", 1)
        assert [record.cohort for record in month.records()] == [(1, 2, 3, 4, 6)]
        np.testing.assert_array_equal(month.model(), month.reference())
    finally:
        stop(list(machines.programs.values()))
