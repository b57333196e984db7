"""A month of a federation in minutes: devices are lost, replaced, added and removed; the server restarts; the
run is extended twice; the same keys serve a second run. Nobody starts over.

Everything is real (folders, keys, protocol, saved states, run directory) but for Flower's network: devices
answer in this process.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from dapfl import cli
from dapfl.config import RunConfig, load
from dapfl.engines import registry
from dapfl.engines.base import Deployed
from dapfl.engines.flower.apps.persistent_client import FileStateStore, PersistentClient
from dapfl.engines.flower.apps.worker import build
from dapfl.errors import KeyFileError, TransportError
from dapfl.federation.assembly import parameters_of
from dapfl.federation.global_model.averaging import next_model
from dapfl.federation.protection.base import encoded_count
from dapfl.federation.protection.open import OpenServerSuite
from dapfl.federation.records import RoundRecord
from dapfl.federation.run_keys import load_server_keys
from dapfl.federation.transport import Exchange
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.runtime import task_runtime
from dapfl.learning.sgd import Learner, initial_weights
from dapfl.learning.tasks import get_task
from dapfl.randomness import stream
from dapfl.runs.results import read_run
from dapfl.runs.session import resume, start

TASK = Path(__file__).parents[1] / "engines" / "tiny_task.py"
SAMPLES = 600


class Fleet:
    """The devices, each with a folder of its own; those that are `away` do not answer."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        self.folders, self.away = dict(folders), set[int]()
        self._devices: dict[Path, PersistentClient] = {}

    def exchange(self, messages: Mapping[int, bytes], timeout: float, arrived: object = None) -> Exchange:
        replies, failures = {}, {}
        for client, message in messages.items():
            if client in self.away:
                failures[client] = "offline"
                continue
            replies[client] = self._device(self.folders[client]).answer(message, 0.01)
        return Exchange(replies, failures)

    def _device(self, folder: Path) -> PersistentClient:
        if folder not in self._devices:
            store = FileStateStore(folder / "state")
            self._devices[folder] = PersistentClient(lambda: build(folder), store)
        return self._devices[folder]

    def await_clients(self, clients: Sequence[int], least: int, limit: float) -> None:
        if len(set(clients) - self.away) < least:
            raise TransportError("too few clients are online")

    def states(self) -> dict[int, bytes]:
        return {}

    def close(self) -> None:
        self._devices.clear()  # devices are restarted, too: they go on from their disks


class Month:
    """A deployment, its fleet and its run."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
        self.deployment, self.run = path / "deployment", path / "run"
        (path / "month.toml").write_text('[crypto]\ncodec = "exact"\n')  # whose sums can be recomputed simply
        small = ["--config", str(path / "month.toml"), "--key-bits", "512", "--allow-insecure-small-keys"]
        own = ["--task", f"{TASK}:TASK", "--own-data", str(SAMPLES), "--rounds", str(rounds)]
        assert (
            cli.main(["deploy", "init", "--clients", "5", "--out", str(self.deployment), *small, *own]) == 0
        )
        self.server = self.deployment / "server"
        self.fleet = Fleet({i: self.deployment / f"client-{i:03d}" for i in range(1, 6)})
        kind = dataclasses.replace(registry.ENGINES["flower"], open=lambda setup: self.fleet)
        monkeypatch.setitem(registry.ENGINES, "flower", kind)
        monkeypatch.chdir(self.server)
        self.deployed = Deployed("nowhere:0", str(self.server))

    @property
    def config(self) -> RunConfig:
        return load(self.server / "config.toml")

    def begin(self, out: Path, until: int | None = None) -> None:
        with start(self.config, out, deployed=self.deployed) as session:
            for record in session:
                if record.round + 1 == until:
                    break  # the server is stopped

    def go_on(self, rounds: int | None = None, until: int | None = None) -> None:
        with resume(self.run, rounds=rounds) as session:
            for record in session:
                if record.round + 1 == until:
                    break

    def deploy(self, action: str, *client: int) -> Path:
        """Changes the roster, brings the server up to date, and returns the newcomer's folder."""
        assert cli.main(["deploy", action, str(self.deployment), *map(str, client)]) == 0
        update = max(self.deployment.glob("update-*"))
        assert cli.main(["deploy", "update", str(self.server), str(update / "server.update")]) == 0
        return next(iter(update.glob("client-*")), update)

    def records(self) -> tuple[RoundRecord, ...]:
        return read_run(self.run).rounds

    def reference(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The model that the recorded contributions make, computed without keys, messages or faults."""
        config = load(self.server / "config.toml")
        task = get_task(config.task)
        parameters = parameters_of(config, task_runtime(task))
        suite, learner = OpenServerSuite(parameters.codec), Learner(task, np.arange(SAMPLES))
        model = parameters.initial_model(b"", initial_weights(task, config.seed))
        for record in self.records():
            rows = []
            for client in (each for each in record.clients if each.id in record.cohort):
                assert client.eta and client.alpha and client.batch_size
                chosen = Hyperparameters(client.eta, client.alpha, client.batch_size)
                rng = stream(config.seed, "sgd", client.id, record.round)
                local = learner.train(model.weights, chosen, rng)
                references = parameters.references(model)
                rows.append(parameters.codec.encode(local, SAMPLES, references, None).plaintexts)
            if rows:
                count = suite.add_counts([encoded_count(SAMPLES, parameters.codec)] * len(rows))
                sums = suite.add_contributions(rows)
                model = next_model(b"", len(rows), sums, count, model, parameters)
        # The input buffers at the end change nothing here, and are not in model.npz.
        return model.weights[: len(self.model())]

    def model(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        with np.load(self.run / "model.npz") as tensors:
            return np.concatenate([tensors[name].ravel() for name in tensors.files])


def statuses(record: RoundRecord) -> dict[int, str]:
    return {client.id: str(client.status) for client in record.clients}


def the_month(path: Path, monkeypatch: pytest.MonkeyPatch, week: int) -> Month:
    """`week` rounds pass between two events. (A round is recorded after the exchange of the next.)"""
    month = Month(path, monkeypatch, rounds=3 * week)
    month.begin(month.run, until=week)  # the first week: all five; then the server is restarted
    assert all(record.cohort == (1, 2, 3, 4, 5) for record in month.records())

    month.fleet.away = {3}  # the second week: client 3 is lost for good
    month.go_on(until=2 * week)
    assert statuses(month.records()[-1])[3] == "failed:offline"

    stolen = month.fleet.folders[3]
    month.fleet.folders[3], month.fleet.away = month.deploy("replace", 3), set()
    month.go_on()  # the third week, with a new device
    assert month.records()[-1].cohort == (1, 2, 3, 4, 5)

    month.fleet.folders[6] = month.deploy("add")
    month.go_on(rounds=4 * week)  # extended; one more hospital
    assert month.records()[-1].cohort == (1, 2, 3, 4, 5, 6)

    month.deploy("remove", 5)
    kept, month.fleet.folders[3] = month.fleet.folders[3], stolen  # the lost device turns up again
    month.go_on(rounds=4 * week + 1)
    found = statuses(month.records()[-1])
    assert 5 not in found  # it is not even called
    assert found[3] == "rejected:bad-envelope"  # its keys are worthless
    month.fleet.folders[3] = kept
    month.go_on(rounds=5 * week + 1)
    assert month.records()[-1].cohort == (1, 2, 3, 4, 6)
    return month


def check(month: Month) -> None:
    records = month.records()
    assert [record.round for record in records] == list(range(len(records)))
    np.testing.assert_array_equal(month.model(), month.reference())
    history = [event.what for event in read_run(month.run).manifest.history]
    assert sum("extended" in what for what in history) == 3

    # The same keys serve a second run, from the beginning, for everybody.
    month.run = month.run.with_name("second")
    month.begin(month.run)
    assert {record.cohort for record in month.records()} == {(1, 2, 3, 4, 6)}
    np.testing.assert_array_equal(month.model(), month.reference())
    uses = json.loads((month.server / "server.keys.runs").read_text())
    assert len(uses) == 2


# Fails since the agent may repeat training, which `reference` does not follow yet; the long tests show it.
@pytest.mark.long
def test_a_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(the_month(tmp_path, monkeypatch, week=2))


@pytest.mark.long
def test_a_long_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(the_month(tmp_path, monkeypatch, week=7))


def test_a_server_enrols_nobody_without_the_kdc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: CS, with its own keys, makes a roster with a client of its own."""
    from dapfl.federation.keys.kdc import generate_more
    from dapfl.federation.keys.roster import ROSTER, Roster, SignedRoster

    month = Month(tmp_path, monkeypatch, rounds=1)
    keys = load_server_keys(month.config, month.server)
    assert keys.server is not None and keys.members is None
    (forged,) = generate_more(1, month.config.crypto)
    roster = Roster(keys.server.federation, 1, {}).with_client(9, forged.public_key)
    for signer in (keys.server.sk_cs_sign, forged):
        (month.server / ROSTER).write_bytes(SignedRoster.sign(roster, signer).to_bytes())
        with pytest.raises(KeyFileError, match="not signed by the KDC"):
            load_server_keys(month.config, month.server)


def test_updates_are_applied_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    month = Month(tmp_path, monkeypatch, rounds=1)
    for _ in range(2):
        assert cli.main(["deploy", "remove", str(month.deployment), str(5 - _)]) == 0
    first, second = (month.deployment / f"update-00{n}" / "server.update" for n in (1, 2))
    assert cli.main(["deploy", "update", str(month.server), str(second)]) == 2
    assert "in their order" in capsys.readouterr().err
    for update in (first, second):
        assert cli.main(["deploy", "update", str(month.server), str(update)]) == 0
    assert cli.main(["deploy", "update", str(month.server), str(first)]) == 2
    assert not (month.server / "nodes" / "client-005.pub").exists()
    assert cli.main(["deploy", "remove", str(month.deployment), "3"]) == 2
    assert "2 clients would be left, and a round needs 3" in capsys.readouterr().err
    assert cli.main(["deploy", "remove", str(month.deployment), "9"]) == 2
    assert "no client 9" in capsys.readouterr().err
