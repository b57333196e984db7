"""`dapfl bench` on the command line."""

import json

import pytest

from dapfl.benchmarks import aggregation, crypto, scale, target, timing
from dapfl.benchmarks import round as round_
from dapfl.benchmarks.result import BenchResult
from dapfl.cli import main

RESULT = BenchResult(
    work={"what": "nothing"}, ours={"seconds": 1.0}, peers={"other": {"seconds": 2.0}}, ratios={"r": 2.0}
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Benchmarks that measure nothing and note what they were asked to do."""
    given: dict[str, object] = {}

    def fake(**options: object) -> BenchResult:
        given.update(options)
        return RESULT

    for module in (crypto, aggregation, round_, scale, target):
        monkeypatch.setattr(module, "run", fake)
    monkeypatch.setattr(timing, "others_load", lambda: 0.0)
    return given


@pytest.mark.parametrize("what", ["crypto", "aggregation", "round", "scale", "target"])
def test_json_is_one_object_on_stdout(
    what: str, asked: dict[str, object], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", what, "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {
        "work": {"what": "nothing"},
        "ours": {"seconds": 1.0},
        "peers": {"other": {"seconds": 2.0}},
        "ratios": {"r": 2.0},
    }


def test_tables_name_the_peers(asked: dict[str, object], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "crypto"]) == 0
    shown = capfd.readouterr().out
    assert all(word in shown for word in ("work", "ours", "other", "ratios"))


def test_sizes_and_clients_reach_the_benchmark(asked: dict[str, object]) -> None:
    assert main(["bench", "aggregation", "--sizes", "100,7_850", "--codec", "exact"]) == 0
    assert asked["sizes"] == (100, 7850)
    assert asked["codec"] == "exact"
    assert main(["bench", "scale", "--clients", "5"]) == 0
    assert asked["clients"] == (5,)
    assert main(["bench", "round", "--tasks", "logistic-mnist", "--peer-python", "/x"]) == 0
    assert asked["tasks"] == ("logistic-mnist",)
    assert asked["peer_python"] == "/x"


def test_quick_does_less(asked: dict[str, object]) -> None:
    main(["bench", "scale"])
    everything = asked["clients"]
    main(["bench", "scale", "--quick"])
    assert asked["clients"] == everything[:2]  # type: ignore[index]


@pytest.mark.parametrize("wrong", ["a,b", "0,20", ""])
def test_wrong_numbers_are_named(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "scale", "--clients", wrong])
    assert stop.value.code == 2
    assert "--clients" in capsys.readouterr().err


def test_a_busy_machine_is_named_in_the_result(
    asked: dict[str, object], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loads = iter([0.05, 1.25])
    monkeypatch.setattr(timing, "others_load", lambda: next(loads))
    assert main(["bench", "crypto", "--json"]) == 0
    shown = capfd.readouterr()
    sentence = "The machine was busy after the measurement: other processes used 1.2 cores."
    assert json.loads(shown.out)["work"]["warnings"] == [sentence]
    assert "Warning" in shown.err


def test_targets_are_chosen_by_task(asked: dict[str, object], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "target", "--tasks", "cnn-fashion"]) == 0
    assert asked["targets"] == {"cnn-fashion": 0.83}
    assert main(["bench", "target", "--tasks", "adult"]) == 2
    assert "no target for adult" in capfd.readouterr().err.replace("\n", " ")
