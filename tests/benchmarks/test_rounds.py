"""`bench round` and `bench scale` on tiny federations."""

import json
import statistics
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from dapfl.benchmarks import round as round_
from dapfl.benchmarks import scale, target
from dapfl.benchmarks.peers.training import PeerClients
from dapfl.benchmarks.peers.workload import PeerFailed, PeerReport, Workload
from dapfl.benchmarks.scale import ScaleReport
from dapfl.config import RunConfig, override
from dapfl.crypto.engines.base import available_engines
from dapfl.errors import DapflError
from dapfl.runs.directory import RunDirectory

SMALL_KEYS = {
    "task": "logistic-mnist",
    "setting": "fixed-capped",
    "eta": 0.05,
    "alpha": 1,
    "mean_samples": 50.0,
    "std_samples": 5.0,
    "crypto.key_bits": 512,
    "crypto.allow_insecure_small_keys": True,
}


def test_round_compares_engines_and_encryptions(monkeypatch: pytest.MonkeyPatch) -> None:
    def peer(module: str, work: Workload, *_: object) -> PeerReport:
        if module == "pfl":
            raise PeerFailed("No module named 'pfl'")
        return PeerReport(start_seconds=1, round_seconds=[9, 2, 4], accuracy=0.5, processes=2)

    monkeypatch.setattr(round_, "run_peer", peer)
    result = round_.run(
        tasks=("logistic-mnist",),
        clients=6,
        rounds=3,
        encrypted_rounds=2,
        encrypted_changes=SMALL_KEYS,
        peer_python=sys.executable,
        inline=True,
    )
    parts = json.loads(result.json())
    ours = parts["ours"]["logistic-mnist"]
    assert ours["round_seconds"] == statistics.median(ours["all_rounds"])
    assert ours["counted"] == len(ours["all_rounds"]) == 2  # one of each block, besides its first round
    assert ours["quartiles"][0] <= ours["round_seconds"] <= ours["quartiles"][1]
    assert parts["peers"]["flower"]["logistic-mnist"]["round_seconds"] == 3
    assert parts["ratios"]["flower / ours, logistic-mnist"] == pytest.approx(3 / ours["round_seconds"])
    assert parts["peers"]["pfl"]["logistic-mnist"]["absent"] == "No module named 'pfl'"
    encrypted = parts["ours"]["encrypted, compact"]
    assert encrypted["same_model"] is True
    for name in ("hybrid", "paillier", "committee"):
        assert parts["ratios"][f"{name} / plain round, compact"] == pytest.approx(
            encrypted[name]["round_seconds"] / encrypted["none"]["round_seconds"]
        )
        assert parts["ratios"][f"{name} / plain round, CPU seconds, compact"] == pytest.approx(
            encrypted[name]["cpu_seconds"] / encrypted["none"]["cpu_seconds"]
        )
    assert parts["ratios"]["agents / plain round, compact"] > 0
    assert parts["work"]["warnings"] == ["Only 1 rounds were counted: medians of fewer than 10."]
    assert parts["work"]["arithmetic_engine"] in available_engines()


def test_plain_and_encrypted_rounds_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    class Session:
        def __init__(self, config, path):
            self.config, self.path = config, path

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __iter__(self):
            for t in range(self.config.rounds):
                played.append(f"{self.config.crypto.envelope} {t}")
                yield SimpleNamespace(accuracy=t)
            self.path.mkdir()
            np.savez(RunDirectory(self.path).model_path, w=np.zeros(2))

    monkeypatch.setattr("dapfl.runs.session.start", lambda config, path, inline: Session(config, path))
    configs = [
        override(RunConfig(), {"rounds": 2, "crypto.envelope": name}) for name in ("hybrid", "paillier")
    ]
    first, second = round_._our_runs(configs, inline=True)
    assert played == ["hybrid 0", "paillier 0", "hybrid 1", "paillier 1"]
    assert first.accuracy == second.accuracy == 1
    assert first.model == second.model and len(first.seconds) == 2


def test_target_counts_from_the_start_and_the_search_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def peer(module: str, work: Workload, *_: object) -> PeerReport:
        accuracies = [0.2, 0.99] if work.eta > 0.02 else [0.1, 0.2]
        seconds = {"flower": 100, "flower_secagg": 300}[module] * work.epochs
        reached = time.time() + seconds if work.eta > 0.02 else None
        return PeerReport(
            start_seconds=1,
            round_seconds=[2, 3],
            accuracy=accuracies[-1],
            processes=2,
            accuracies=accuracies,
            reached=reached,
        )

    monkeypatch.setattr(target, "run_peer", peer)
    grid = ((0.01, 1), (0.1, 1), (0.1, 5))
    changes = SMALL_KEYS | {"mean_samples": 200.0}
    result = target.run(
        targets={"logistic-mnist": 0.3},
        clients=4,
        rounds=5,
        grid=grid,
        changes=changes,
        peer_python="",
        inline=True,
    )
    parts = json.loads(result.json())
    ours = parts["ours"]["logistic-mnist"]
    assert ours["reached"] and ours["accuracy"] >= 0.3 and ours["rounds"] <= 5
    assert ours["seconds"] > ours["start_seconds"] > 0
    for suffix, seconds in (("", 100), (", SecAgg+", 300)):
        tutorial = parts["peers"]["flower, tutorial" + suffix]["logistic-mnist"]
        best = parts["peers"]["flower, best of a grid" + suffix]["logistic-mnist"]
        assert tutorial["reached"] is False and tutorial["rounds"] == 2
        assert (best["eta"], best["epochs"]) == (0.1, 1)
        assert best["seconds"] == pytest.approx(seconds, abs=5)
        assert best["seconds_with_search"] == pytest.approx(6 * seconds, abs=10)
    assert set(parts["ratios"]) == {
        "flower, best of a grid / ours, logistic-mnist",
        "flower, best of a grid / ours, logistic-mnist, with the search",
        "flower, best of a grid, SecAgg+ / ours, logistic-mnist",
        "flower, best of a grid, SecAgg+ / ours, logistic-mnist, with the search",
    }


def test_target_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def peer(*_: object) -> PeerReport:
        raise PeerFailed("No module named 'ray'")

    monkeypatch.setattr(target, "run_peer", peer)
    monkeypatch.setattr(target, "_ours", lambda *_: target._figures([0.9], 0.8, 3.0, 1.0))
    parts = json.loads(target.run(targets={"logistic-mnist": 0.8}, peer_python="").json())
    for figures in parts["peers"].values():
        assert figures["logistic-mnist"]["absent"] == "No module named 'ray'"
    assert parts["ratios"] == {}


def test_clients_of_a_peer_lose_what_exceeds_their_budget() -> None:
    modest = Workload(task="logistic-mnist", epochs=1, budgets=True)
    greedy = Workload(task="logistic-mnist", epochs=30, budgets=True)
    assert all(modest.affordable(client, 3, 600) for client in range(20))
    weakest = [client for client in range(20) if not greedy.affordable(client, 3, 600)]
    assert weakest and len(weakest) > 5
    assert all(Workload(task="logistic-mnist", epochs=30).affordable(client, 3, 600) for client in weakest)


@pytest.mark.processes
def test_a_federation_of_scale_runs_and_is_watched() -> None:
    report = scale.federation("logistic-mnist", clients=3, rounds=1, workers=1, decryption="none")
    assert len(report.round_seconds) == 1
    assert report.peak_bytes > report.server_bytes > 1e7
    assert report.worker_bytes > 1e7


def test_scale_has_a_line_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(task: str, clients: int, rounds: int, workers: int, decryption: str) -> ScaleReport:
        asked.append((task, clients, decryption))
        return ScaleReport(start_seconds=1, round_seconds=[5, clients / 10], peak_bytes=clients * 10**6)

    asked: list[tuple[str, int, str]] = []
    monkeypatch.setattr(scale, "_measured", measured)
    parts = json.loads(
        scale.run(clients=(10, 1000), encrypted=(("cnn-mnist", 5, "shared"),), rounds=2).json()
    )
    assert asked[-1] == ("cnn-mnist", 5, "shared") and asked[0] == ("logistic-mnist", 10, "none")
    assert parts["ours"]["encrypted, shared, cnn-mnist, 5 clients"]["milliseconds_a_client"] == 100
    assert parts["ours"]["1,000 clients"]["round_seconds"] == 100
    assert parts["ours"]["10 clients"]["milliseconds_a_client"] == 100
    assert parts["ratios"] == {
        "clients, largest / smallest": 100,
        "seconds, largest / smallest": 100,
        "memory, largest / smallest": 100,
    }


def test_a_federation_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale.sys, "executable", "/bin/false")
    with pytest.raises(DapflError, match="5 clients failed"):
        scale.run(clients=(5,))


@pytest.mark.parametrize("trainer", ["plain", "dapfl"])
def test_clients_of_peers_learn(trainer: str) -> None:
    clients = PeerClients(Workload(task="logistic-mnist", clients=2, trainer=trainer))
    initial = clients.initial()
    trained, samples, loss_before = clients.train(initial, client=1, round_=0)
    assert samples == len(clients.indices[1])
    assert loss_before > clients.train(trained, client=1, round_=1)[2]
    assert clients.test_accuracy(trained) > clients.test_accuracy(initial)
