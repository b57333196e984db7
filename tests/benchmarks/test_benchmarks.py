"""The benchmarks on tiny work: what they print, never how fast they are."""

import json
import os
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dapfl.benchmarks import aggregation, crypto
from dapfl.benchmarks.peers import ckks, paillier, secagg
from dapfl.benchmarks.peers.workload import PeerFailed, PeerReport, Workload, run_peer
from dapfl.benchmarks.result import BenchResult, absent, host
from dapfl.benchmarks.scale import PeakMemory
from dapfl.benchmarks.timing import medians, one_core, results_only_on_stdout, sized
from dapfl.crypto.engines.base import available_engines
from dapfl.errors import DapflError

PARTS = {"work", "ours", "peers", "ratios"}


class FakePaillier:
    """Encrypts nothing; adds."""

    offset = 0

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def encrypt(self, values: list[int]) -> list[int]:
        return list(values)

    def add(self, a: list[int], b: list[int]) -> list[int]:
        return [x + y + self.offset for x, y in zip(a, b, strict=True)]

    def decrypt(self, batch: list[int]) -> list[int]:
        return batch


FAKE = paillier.Candidate("fake", "json", "pip install fake", FakePaillier)
ABSENT = paillier.Candidate("gone", "no_such_module_here", "pip install gone", FakePaillier)


def tiny_crypto() -> BenchResult:
    return crypto.run(bits=256, seconds=0.001, repeats=1, insecure=True)


def test_crypto_compares_every_engine_with_the_best_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypto, "PAILLIER_PEERS", (FAKE, ABSENT))
    result = json.loads(tiny_crypto().json())
    assert set(result) == PARTS
    assert set(result["ours"]) == set(available_engines())
    for engine in available_engines():
        assert all(result["ours"][engine][what] > 0 for what in crypto.OPERATIONS)
        for what in crypto.OPERATIONS:
            ours, peer = result["ours"][engine][what], result["peers"]["fake"][what]
            assert result["ratios"][f"{engine} {what}"] == pytest.approx(ours / peer)
    assert result["peers"]["gone"] == {"absent": "not installed", "install": "pip install gone"}
    assert result["work"]["best_peer"] == dict.fromkeys(crypto.OPERATIONS, "fake")


def test_crypto_without_any_peer_has_no_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypto, "PAILLIER_PEERS", (ABSENT,))
    assert tiny_crypto().ratios == {}


def test_a_peer_that_adds_wrongly_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePaillier, "offset", 1)
    monkeypatch.setattr(crypto, "PAILLIER_PEERS", (FAKE,))
    with pytest.raises(DapflError, match="fake adds"):
        tiny_crypto()


@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_aggregation_gives_the_mean_and_its_cost(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    monkeypatch.setattr(ckks, "installed", lambda: False)
    monkeypatch.setattr(secagg, "installed", lambda: False)
    monkeypatch.setattr(aggregation, "find_spec", lambda name: None)
    monkeypatch.setattr(aggregation, "COMMITTEES", ((3, 2),))
    result = aggregation.run(
        clients=3, size=300, sizes=(100, 200), codec=codec, bits=512, repeats=1, insecure=True
    )
    parts = json.loads(result.json())
    assert set(parts) == PARTS
    for envelope in ("hybrid", "paillier"):
        figures = parts["ours"][envelope]
        assert figures["largest_error"] < 1e-3
        steps = {name for name in figures if name.endswith(" seconds")}
        assert {"pack seconds", "encrypt seconds", "seal seconds", "open seconds", "decrypt seconds"} < steps
    assert list(parts["ours"]["growth"]) == ["100 weights", "200 weights"]
    assert parts["ours"]["hybrid"]["bytes_a_client"] < parts["ours"]["paillier"]["bytes_a_client"]
    assert parts["peers"]["tenseal CKKS"]["install"] == ckks.INSTALL
    assert "paillier envelope / hybrid seconds" in parts["ratios"]
    committee = parts["ours"]["committee of 3, any 2"]
    assert committee["largest_error"] == parts["ours"]["hybrid"]["largest_error"]
    assert committee["bytes_a_client"] < committee["bytes_a_member"]
    assert committee["members: share and proof seconds"] > 0
    assert parts["peers"]["Flower SecAgg+, full graph"]["install"] == secagg.INSTALL


@pytest.mark.parametrize("peer", paillier.PAILLIER_PEERS, ids=lambda peer: peer.name)
def test_installed_peers_add(peer: paillier.Candidate) -> None:
    pytest.importorskip(peer.module)
    with results_only_on_stdout():
        library = peer.make(1024)
        total = library.add(library.encrypt([1, 2]), library.encrypt([10, 20]))
        assert library.decrypt(total) == [11, 22]


def test_ckks_gives_the_same_mean() -> None:
    pytest.importorskip("tenseal")
    models = aggregation.Models.drawn(50, 3)
    peer = ckks.Aggregation(models.locals, models.samples)
    peer()
    np.testing.assert_allclose(peer.result, models.mean(), atol=1e-6)
    assert peer.bytes_up > 50


@pytest.mark.parametrize("neighbours", [5, 3])
def test_secagg_gives_the_same_mean(neighbours: int) -> None:
    pytest.importorskip("flwr")
    models = aggregation.Models.drawn(50, 5)
    peer = secagg.Aggregation(models.locals, neighbours, 3)
    peer()
    np.testing.assert_allclose(peer.result, np.mean(models.locals, axis=0), atol=1e-4)
    assert peer.bytes_up > 50 * 8


def test_a_peer_process_without_a_report_says_why() -> None:
    with pytest.raises(PeerFailed, match="No module named"):
        run_peer("no_such_peer", Workload(task="logistic-mnist"), sys.executable, timeout=60)


def test_a_peer_process_reports(tmp_path: Path) -> None:
    """Any interpreter will do: here a script that plays one."""
    report = PeerReport(start_seconds=1, round_seconds=[0.5], accuracy=0.9, processes=2)
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho noise\necho '{msgspec.json.encode(report).decode()}'\n")
    script.chmod(0o755)
    assert run_peer("any", Workload(task="logistic-mnist"), str(script), timeout=60) == report


def test_a_peer_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nsleep 600 & sleep 600\n")
    script.chmod(0o755)
    with pytest.raises(PeerFailed, match="no result within"):
        run_peer("any", Workload(task="logistic-mnist"), str(script), timeout=0.1)


def test_workloads_travel_as_json() -> None:
    work = Workload(task="cnn-mnist", clients=3, trainer="dapfl")
    assert msgspec.json.decode(msgspec.json.encode(work), type=Workload) == work


def test_results_read_as_tables_and_as_json() -> None:
    result = BenchResult(
        work={"what": "a test", **host()},
        ours={"a": {"seconds": 1.5, "count": 1234}},
        peers={"x": absent("no", "pip")},
    )
    assert [table.title for table in result.tables()] == ["work", "ours", "x"]
    assert json.loads(result.json())["ours"]["a"] == {"seconds": 1.5, "count": 1234}


def test_jobs_take_turns() -> None:
    calls: list[str] = []
    times = medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2)
    assert calls == ["a", "b"] * 3
    assert set(times) == {"a", "b"}


def test_jobs_grow_to_the_time_asked_for() -> None:
    sizes: list[int] = []

    def prepare(count: int) -> "object":
        sizes.append(count)
        return lambda: None

    operations, job = sized(prepare, seconds=0.001, most=64)
    job()
    assert sizes == [8, 64]
    assert operations % 64 == 0


def test_one_core_is_given_back() -> None:
    before = os.sched_getaffinity(0)
    with one_core():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


def test_native_prints_stay_off_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with results_only_on_stdout():
        os.write(1, b"chatter\n")
    print("result")
    captured = capfd.readouterr()
    assert captured.out == "result\n"
    assert captured.err == "chatter\n"


def test_peak_memory_sees_this_process() -> None:
    with PeakMemory() as memory:
        pass
    assert memory.peak > 1e6
