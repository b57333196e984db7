import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dapfl
from dapfl import Dataset, RoundRecord, Task
from dapfl.api.results import FigureName
from dapfl.errors import ConfigError, RunDirectoryError, TaskError, UserError
from dapfl.learning import tasks

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_task.py"
SMALL = {"key_bits": 256, "allow_insecure_small_keys": True}


def load_halves() -> Dataset:
    rng = np.random.default_rng(5)
    points = rng.normal(size=(2_400, 2)).astype(np.float32)
    labels = (points[:, 0] > 0).astype(np.int64)
    return Dataset(points[:2_000], labels[:2_000], points[2_000:], labels[2_000:], classes=2)


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def halves() -> Task:
    return Task("halves", module, load_halves)


def small_run(out: Path, **options: object) -> dapfl.RunResult:
    given = {"rounds": 2, "clients": 3, "encryption": "none", "seed": 4, **options}
    return dapfl.run(halves(), out=out, **given)


def stop_after_the_first(row: RoundRecord) -> None:
    if row.round == 0:
        raise StopIteration


# The door ------------------------------------------------------------------------------------------


def test_the_public_names_of_dapfl() -> None:
    assert dapfl.__all__ == [
        "Comparison",
        "DapflError",
        "Dataset",
        "RoundRecord",
        "RunResult",
        "Task",
        "compare",
        "crypto",
        "flower",
        "learning",
        "load",
        "resume",
        "run",
        "tuning",
    ]


@pytest.mark.parametrize("name", dapfl.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert name in dir(dapfl)
    assert getattr(dapfl, name).__doc__
    assert f"`{name}`" in str(dapfl.__doc__)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'federate'"):
        _ = dapfl.federate  # type: ignore[attr-defined]


def test_importing_dapfl_loads_nothing_heavy() -> None:
    code = "import sys, dapfl; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "numpy", "matplotlib", "pandas", "msgspec", "gmpy2", "cryptography", "rich", "plotly"}
    assert "dapfl" in done.stdout.split() and not heavy & set(done.stdout.split())


# Runs ----------------------------------------------------------------------------------------------


def test_a_task_object_runs_in_this_process_and_gives_plain_data(tmp_path: Path) -> None:
    seen: list[RoundRecord] = []
    result = small_run(tmp_path / "run", encryption="paillier", on_round=seen.append, **SMALL)
    assert result.status == "finished" and result.path == tmp_path / "run"
    assert [row.round for row in seen] == [row.round for row in result.rounds] == [0, 1]
    assert result.config["crypto"]["key_bits"] == 256 and result.config["task"] == "halves"
    assert result.to_dicts()[1]["accuracy"] == result.accuracy == seen[1].accuracy
    assert [client["id"] for client in result.to_dicts()[0]["clients"]] == [1, 2, 3]
    assert "finished, rounds=2" in repr(result)


def test_the_same_run_as_an_object_and_by_its_file_gives_the_same_model(tmp_path: Path) -> None:
    task = tasks.get_task(f"{EXAMPLE}:rings")
    given = {"rounds": 1, "clients": 3, "encryption": "none"}
    ours = dapfl.run(task, out=tmp_path / "object", **given).model()
    theirs = dapfl.run(f"{EXAMPLE}:rings", out=tmp_path / "file", workers=1, **given).model()
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.processes
def test_a_script_without_a_main_guard_runs_a_federation(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import dapfl\n"
        f"r = dapfl.run({f'{EXAMPLE}:rings'!r}, rounds=1, clients=3, encryption='none', workers=2)\n"
        "print(r.path, r.status)\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("runs/own_task-dap-fl-1 finished\n", "")


def test_a_stopped_run_resumes_to_the_same_result(tmp_path: Path) -> None:
    whole = small_run(tmp_path / "whole")
    half = small_run(tmp_path / "half", on_round=stop_after_the_first)
    assert half.status == "stopped" and len(half.rounds) == 1
    with pytest.raises(RunDirectoryError, match=r"no model yet: dapfl\.resume"):
        half.model()
    seen: list[int] = []
    resumed = dapfl.resume(half.path, task=halves(), on_round=lambda row: seen.append(row.round))
    assert seen == [1] and resumed.status == dapfl.load(half.path).status == "finished"
    assert all(np.array_equal(array, resumed.model()[name]) for name, array in whole.model().items())


def test_a_stop_after_the_last_round_is_the_end(tmp_path: Path) -> None:
    assert small_run(tmp_path / "run", rounds=1, on_round=stop_after_the_first).status == "finished"


def test_a_run_of_an_object_asks_for_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = small_run(tmp_path / "half", on_round=stop_after_the_first)
    monkeypatch.setattr(tasks, "_registered", {})  # as in another process
    with pytest.raises(TaskError, match=r"in Python only: dapfl\.resume\(DIR, task="):
        dapfl.resume(half.path)
    with pytest.raises(ConfigError, match="of the task halves, not other"):
        dapfl.resume(half.path, task=Task("other", module, load_halves))


def test_a_task_that_is_changed_and_given_again_takes_the_place_of_the_old(tmp_path: Path) -> None:
    small_run(tmp_path / "old", rounds=1)
    task = Task("halves", lambda: nn.Linear(2, 2), load_halves)
    result = dapfl.run(task, rounds=1, clients=3, encryption="none", out=tmp_path / "new")
    assert set(result.model()) == {"weight", "bias"}


@pytest.mark.parametrize("name", ["cnn-mnist", "my/file.py:task"])
def test_a_task_object_cannot_take_the_name_of_another(name: str) -> None:
    with pytest.raises(TaskError, match="means another task"):
        dapfl.run(Task(name, module, load_halves))


def test_options_are_those_of_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("rounds = 1\nclients = 9\n[crypto]\nencryption = 'none'\n")
    result = dapfl.run(
        halves(),
        out=tmp_path / "run",
        config=tmp_path / "run.toml",
        clients=3,
        crypto={"key_bits": 4096},
        resources={"budget": 10.0},
        policy={"agent": {"steps": 1}},
    )
    config = result.config
    assert (config["rounds"], config["clients"], config["resources"]["budget"]) == (1, 3, 10.0)
    assert config["crypto"]["encryption"] == "none" and config["crypto"]["key_bits"] == 4096


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"round": 3}, "did you mean 'rounds'"),
        ({"nonsense": 3}, "no option 'nonsense'"),
        ({"rounds": 0}, "rounds"),
        ({"key_bits": 512}, "insecure"),
        ({"engine": "flower"}, "put it into a file"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        dapfl.run(halves(), **options)


def test_a_failure_of_the_callback_is_the_callers(tmp_path: Path) -> None:
    def fail(row: RoundRecord) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        small_run(tmp_path / "run", on_round=fail)
    assert dapfl.load(tmp_path / "run").status == "stopped"


def test_torch_has_its_threads_back_after_a_run(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        small_run(tmp_path / "run", rounds=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# Results -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dapfl.RunResult:
    return small_run(tmp_path_factory.mktemp("runs") / "run")


def test_frames_have_a_row_for_each_round_or_client(result: dapfl.RunResult) -> None:
    rounds, clients = result.to_frame(), result.to_frame(by="client")
    assert list(rounds["accuracy"]) == [row.accuracy for row in result.rounds]
    assert (rounds["seconds_total"] > 0).all()
    assert list(clients["id"]) == [1, 2, 3] * 2 and {"round", "eta", "alpha", "lambda"} <= set(
        clients.columns
    )
    with pytest.raises(ConfigError, match="'round' or by 'client'"):
        result.to_frame(by="seed")  # type: ignore[arg-type]


def test_without_pandas_a_frame_says_what_to_do(
    result: dapfl.RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pip install pandas.*to_dicts\(\)"):
        result.to_frame()


def test_the_trained_model_goes_into_a_module(result: dapfl.RunResult) -> None:
    mine = result.load_into(module()).eval()
    data = load_halves()
    with torch.inference_mode():
        said = mine(torch.from_numpy(data.test_images)).argmax(dim=1).numpy()
    assert float(np.mean(said == data.test_labels)) == pytest.approx(result.accuracy)


def test_a_module_of_another_architecture_is_refused(result: dapfl.RunResult) -> None:
    with pytest.raises(TaskError, match=r"does not fit into this Linear: they differ in 0\.bias"):
        result.load_into(nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["learning", "choices", "participation", "phases"])
def test_a_run_can_be_drawn(result: dapfl.RunResult, name: FigureName) -> None:
    assert result.figure(name).axes


def test_agents_that_learn_can_be_drawn(tmp_path: Path) -> None:
    learning = small_run(tmp_path / "learning", policy={"agent": {"steps": 2}})
    assert learning.figure("agents").axes


def test_a_figure_that_is_not_there_is_one_sentence(result: dapfl.RunResult, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the figures are learning"):
        result.figure("pie")  # type: ignore[arg-type]
    fixed = small_run(tmp_path / "fixed", rounds=1, setting="fixed-capped", eta=0.1, alpha=1)
    with pytest.raises(ConfigError, match="nothing to draw"):
        fixed.figure("agents")


def test_a_report_is_written_beside_the_run(result: dapfl.RunResult) -> None:
    page = result.report()
    assert page == result.path / "report" / "index.html" and page.is_file()


def test_a_comparison_runs_once_and_reads_as_a_frame(tmp_path: Path) -> None:
    given = {"out": tmp_path / "both", "rounds": 1, "seeds": 2, "clients": 3, "min_cohort": 1}
    comparison = dapfl.compare(halves(), ["dap-fl", "large"], **given)
    frame = comparison.to_frame()
    assert sorted(zip(frame["setting"], frame["seed"], strict=True)) == [
        ("dap-fl", 100),
        ("dap-fl", 101),
        ("large", 100),
        ("large", 101),
    ]
    assert len(comparison.runs) == 4 and comparison.figure().axes
    created = [run.path.joinpath("model.npz").stat().st_mtime_ns for run in comparison.runs]
    again = dapfl.compare(halves(), "dap-fl,large", **given)
    assert [run.path.joinpath("model.npz").stat().st_mtime_ns for run in again.runs] == created


def test_a_setting_that_learns_nothing_is_a_result_of_a_comparison(tmp_path: Path) -> None:
    poor = {"out": tmp_path / "poor", "rounds": 1, "seeds": 1, "clients": 3, "resources": {"budget": 1.0}}
    comparison = dapfl.compare(halves(), ["large"], **poor)
    assert [run.status for run in comparison.runs] == ["failed"]
    assert list(comparison.to_frame()["violations"]) == [3]
