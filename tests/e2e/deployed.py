"""Deployments for tests: of folders alone, or with devices that answer in this process, where everything is
real but for Flower's network."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dapfl import cli
from dapfl.config import RunConfig, load
from dapfl.engines import registry
from dapfl.engines.base import Deployed
from dapfl.engines.flower.apps.persistent_client import FileStateStore, PersistentClient
from dapfl.engines.flower.apps.worker import build
from dapfl.errors import TransportError
from dapfl.federation.global_model.averaging import next_model
from dapfl.federation.protection.base import encoded_count
from dapfl.federation.protection.open import OpenServerSuite
from dapfl.federation.records import RoundRecord
from dapfl.federation.run_terms import parameters_of
from dapfl.federation.transport import Exchange
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.runtime import task_runtime
from dapfl.learning.sgd import Learner, initial_weights
from dapfl.learning.tasks import get_task
from dapfl.randomness import stream
from dapfl.runs.results import read_run
from dapfl.runs.session import resume, start
from dapfl.runs.settings import resolve

TASK = Path(__file__).parents[1] / "engines" / "tiny_task.py"
SAMPLES = 600


class Fleet:
    """The devices, each with a folder of its own; those that are `away` do not answer."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        self.folders, self.away = dict(folders), set[int]()
        self.sent: list[tuple[int, bytes]] = []  # every message, and whom it went to
        self._devices: dict[Path, PersistentClient] = {}

    def exchange(self, messages: Mapping[int, bytes], timeout: float, arrived: object = None) -> Exchange:
        replies, failures = {}, {}
        for client, message in messages.items():
            if client in self.away:
                failures[client] = "offline"
                continue
            self.sent.append((client, message))
            replies[client] = self.device(self.folders[client]).answer(message, 0.01)
        return Exchange(replies, failures)

    def device(self, folder: Path) -> PersistentClient:
        """The device whose folder this is."""
        if folder not in self._devices:
            store = FileStateStore(folder / "state")
            self._devices[folder] = PersistentClient(lambda: build(folder), store)
        return self._devices[folder]

    def await_clients(
        self,
        clients: Sequence[int],
        least: int,
        limit: float,
        seen: Callable[[set[int]], object] = lambda _: None,
    ) -> None:
        seen(self.away.intersection(clients))
        if len(set(clients) - self.away) < least:
            raise TransportError("too few clients are online")

    def states(self) -> dict[int, bytes]:
        return {}

    def close(self) -> None:
        self._devices.clear()  # devices are restarted, too: they go on from their disks


class Folders:
    """A deployment of five clients, its run, and the model that the run's records make."""

    def __init__(self, path: Path, rounds: int, *options: str) -> None:
        self.deployment, self.run = path / "deployment", path / "run"
        # The sums of the codec `exact` can be recomputed simply; large batches are trained on quickly.
        (path / "month.toml").write_text('batch_size = 300\n[crypto]\ncodec = "exact"\n')
        small = ["--config", str(path / "month.toml"), "--key-bits", "512", "--allow-insecure-small-keys"]
        own = ["--task", f"{TASK}:TASK", "--own-data", str(SAMPLES), "--rounds", str(rounds), *options]
        assert (
            cli.main(["deploy", "init", "--clients", "5", "--out", str(self.deployment), *small, *own]) == 0
        )
        self.server = self.deployment / "server"
        self.folders = {i: self.deployment / f"client-{i:03d}" for i in range(1, 6)}

    @property
    def config(self) -> RunConfig:
        return load(self.server / "config.toml")

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
        parameters = parameters_of(config, task_runtime(task), resolve(config).policy.server_step)
        suite, learner = OpenServerSuite(parameters.codec), Learner(task, np.arange(SAMPLES))
        model = parameters.initial_model(b"", initial_weights(task, config.seed))
        for record in self.records():
            rows = []
            for client in (each for each in record.clients if each.id in record.cohort):
                assert client.eta and client.alpha and client.batch_size
                chosen = Hyperparameters(client.eta, client.alpha, client.batch_size)
                again = ("again", client.repeats) if client.repeats else ()  # what overshot was not sent
                rng = stream(config.seed, "sgd", client.id, record.round, *again)
                local = learner.train(model.weights, chosen, rng)
                steps = chosen.alpha * math.ceil(SAMPLES / chosen.batch_size)
                rate = client.unit or client.eta
                numbers = parameters.step.contribution(model, local, steps, rate)
                references = parameters.references(model)
                rows.append(parameters.codec.encode(numbers, SAMPLES, references, None).plaintexts)
            if rows:
                count = suite.add_counts([encoded_count(SAMPLES, parameters.codec)] * len(rows))
                sums = suite.add_contributions(rows)
                model = next_model(b"", len(rows), sums, count, model, parameters)
        # The input buffers at the end change nothing here, and are not in model.npz.
        return model.weights[: len(self.model())]

    def model(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        with np.load(self.run / "model.npz") as tensors:
            return np.concatenate([tensors[name].ravel() for name in tensors.files])


class DeployedFederation(Folders):
    """A deployment whose devices answer in this process."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, *options: str) -> None:
        super().__init__(path, rounds, *options)
        self.fleet = Fleet(self.folders)
        kind = dataclasses.replace(registry.ENGINES["flower"], open=lambda setup: self.fleet)
        monkeypatch.setitem(registry.ENGINES, "flower", kind)
        monkeypatch.chdir(self.server)
        self.deployed = Deployed("nowhere:0", str(self.server))

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


def statuses(record: RoundRecord) -> dict[int, str]:
    """What became of each client in a round."""
    return {client.id: str(client.status) for client in record.clients}
