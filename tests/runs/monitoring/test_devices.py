"""What a run notes of its devices, and what status, page and Prometheus make of it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from dapfl import cli
from dapfl.federation.records import ClientRecord, RoundRecord, Status
from dapfl.federation.transport import Arrival, Exchange
from dapfl.runs.directory import RunDirectory
from dapfl.runs.monitoring.devices import Device, Fleet, FleetWatch, fleet_path, read_fleet
from dapfl.runs.monitoring.status import metrics_of, overview_of
from dapfl.runs.results import read_run
from tests.runs.monitoring.test_status import write


class Devices:
    """Client 1 answers, 2 says that it cannot, 3 does not answer in time, 4 is not connected."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self._during = during

    def exchange(
        self, messages: Mapping[int, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        self._during()
        assert arrived is not None
        arrived(1, b"reply")
        return Exchange({}, {2: "no-data", 3: "late", 4: "offline"})

    def await_clients(
        self,
        clients: Sequence[int],
        least: int,
        limit: float,
        seen: Callable[[set[int]], object] = lambda _: None,
    ) -> None:
        seen({4})

    def states(self) -> dict[int, bytes]:
        return {}

    def close(self) -> None:
        pass


def text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def noted(path: Path) -> dict[int, Device]:
    fleet = read_fleet(path)
    assert fleet is not None
    return {device.client: device for device in fleet.devices}


def test_a_run_notes_what_its_devices_do(tmp_path: Path) -> None:
    now = [1000.0]
    during: list[tuple[str | None, dict[int, str]]] = []

    def look() -> None:
        fleet = read_fleet(tmp_path)
        assert fleet is not None
        during.append((fleet.deadline, {each.client: each.doing for each in fleet.devices}))

    watch = FleetWatch(Devices(look), tmp_path, clock=lambda: now[0])
    watch.await_clients([1, 2, 3, 4], 3, 60)
    assert {client: device.doing for client, device in noted(tmp_path).items()} == {
        **dict.fromkeys((1, 2, 3), "connected"),
        4: "gone",
    }
    now[0] = 1010.0
    replies, failures = watch.exchange(dict.fromkeys((1, 2, 3, 4), b"call"), 30)
    assert replies == {1: b"reply"} and len(failures) == 3
    assert during == [(text(1040), {1: "training", 2: "training", 3: "training", 4: "gone"})]
    assert noted(tmp_path) == {
        1: Device(1, "connected", text(1010), text(1010)),
        2: Device(2, "connected", text(1010), text(1010)),
        3: Device(3, "late", text(1010), text(1000)),
        4: Device(4, "gone", text(1000), None),  # since it was first missed
    }
    assert fleet_path(tmp_path).stat().st_mode & 0o777 == 0o600
    # A run that is resumed goes on from there, and does not watch who is no client any more.
    FleetWatch(Devices(), tmp_path, clock=lambda: 2000.0).seen([3, 4], {4})
    assert set(noted(tmp_path)) == {3, 4} and noted(tmp_path)[4].since == text(1000)


def test_status_and_metrics_show_the_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clients = (
        ClientRecord(id=1, status=Status.ACCEPTED, software="0.1.0"),
        ClientRecord(id=2, status=Status.FAILED.because("offline")),
    )
    path = write(tmp_path / "run", ("accepted", "failed:offline"))
    RunDirectory(path).rounds_path.write_bytes(RoundRecord(round=0, clients=clients).to_json() + b"\n")
    devices = (Device(1, "training", text(20), text(20)), Device(2, "gone", text(10)))
    fleet_path(path).write_bytes(msgspec.json.encode(Fleet(text(20), text(50), devices)))
    directory = RunDirectory(path)
    directory.set_status("running")
    with directory.lock():
        overview = overview_of(read_run(path))
        assert [each.software for each in overview.clients] == ["0.1.0", None]
        assert overview.deadline == text(50)
        assert any("gone since" in alert for alert in overview.alerts)  # for years
        assert cli.main(["status", str(path)]) == 3
        shown = capsys.readouterr().out
        assert "training" in shown and "gone" in shown and "never" in shown and "unknown" in shown
        figures = metrics_of(read_run(path))
    assert 'dapfl_device_connected{client="1"} 1' in figures
    assert 'dapfl_device_connected{client="2"} 0' in figures
    assert 'dapfl_device_last_contact_seconds{client="1"} 20' in figures
    assert 'dapfl_device_info{client="1",software="0.1.0"} 1' in figures
    # Of a run that is not running nobody knows what its devices do: only what was is shown.
    overview = overview_of(read_run(path))
    assert [(each.device, each.last_contact) for each in overview.clients] == [(None, text(20)), (None, None)]


def test_a_device_does_not_train_since_a_session_that_was_killed(tmp_path: Path) -> None:
    def kill() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FleetWatch(Devices(kill), tmp_path, clock=lambda: 1000.0).exchange({1: b"call"}, 30)
    assert noted(tmp_path)[1].doing == "training"
    FleetWatch(Devices(), tmp_path, clock=lambda: 2000.0).seen([1], set())
    assert noted(tmp_path)[1] == Device(1, "connected", text(2000), text(2000))
