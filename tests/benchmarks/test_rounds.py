"""`bench round` and `bench scale` on tiny federations."""

import json
import statistics
import sys

import pytest

from dapfl.benchmarks import round as round_
from dapfl.benchmarks import scale
from dapfl.benchmarks.scale import ScaleReport
from dapfl.benchmarks.training import PeerClients
from dapfl.benchmarks.workload import PeerFailed, PeerReport, Workload
from dapfl.errors import DapflError

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
        if module == "pfl_peer":
            raise PeerFailed("No module named 'pfl'")
        return PeerReport(start_seconds=1, round_seconds=[9, 2, 4], accuracy=0.5, processes=2)

    monkeypatch.setattr(round_, "run_peer", peer)
    result = round_.run(
        tasks=("logistic-mnist",),
        clients=3,
        rounds=2,
        encrypted_rounds=1,
        encrypted_changes=SMALL_KEYS,
        peer_python=sys.executable,
        inline=True,
    )
    parts = json.loads(result.json())
    ours = parts["ours"]["logistic-mnist"]
    assert ours["round_seconds"] == statistics.median(ours["all_rounds"][1:])
    assert parts["peers"]["flower"]["logistic-mnist"]["round_seconds"] == 3
    assert parts["ratios"]["flower / ours, logistic-mnist"] == pytest.approx(3 / ours["round_seconds"])
    assert parts["peers"]["pfl"]["logistic-mnist"]["absent"] == "No module named 'pfl'"
    for codec in ("exact", "compact"):
        encrypted = parts["ours"][f"encrypted, {codec}"]
        assert encrypted["same_model"] is True
        assert parts["ratios"][f"hybrid / plain round, {codec}"] == pytest.approx(
            encrypted["hybrid"]["round_seconds"] / encrypted["none"]["round_seconds"]
        )
        assert f"paillier / plain round, {codec}" in parts["ratios"]
        assert parts["ratios"][f"agents / plain round, {codec}"] > 0


@pytest.mark.processes
def test_a_federation_of_scale_runs_and_is_watched() -> None:
    report = scale.federation(clients=3, rounds=1, workers=1)
    assert len(report.round_seconds) == 1
    assert report.peak_bytes > 1e7


def test_scale_has_a_line_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(clients: int, rounds: int, workers: int) -> ScaleReport:
        return ScaleReport(start_seconds=1, round_seconds=[5, clients / 10], peak_bytes=clients * 10**6)

    monkeypatch.setattr(scale, "_measured", measured)
    parts = json.loads(scale.run(clients=(10, 1000), rounds=2).json())
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
