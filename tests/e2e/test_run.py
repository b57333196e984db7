"""Whole runs, as a user starts them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dapfl.cli import main
from dapfl.learning.tasks import get_task
from dapfl.runs.directory import RunDirectory

CONFIG = """
task = "logistic-mnist"
clients = 5
rounds = 4
seed = 3
mean_samples = 80
std_samples = 20
[crypto]
key_bits = 512
allow_insecure_small_keys = true
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "dapfl.cli", "run", *map(str, arguments)]


def dapfl_run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=300)


def lines(path: Path) -> list[dict[str, Any]]:
    """The rounds of a run without what a clock decides."""
    found = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for line in found:
        del line["seconds"]
    return found


def model(path: Path) -> bytes:
    with np.load(path / "model.npz") as tensors:
        return b"".join(tensors[name].tobytes() for name in tensors.files)


def test_a_run_tells_what_it_did_and_where(config: Path, tmp_path: Path) -> None:
    done = dapfl_run(
        "--config", config, "--setting", "large", "--encryption", "none", "--out", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
    assert f"dapfl report {tmp_path / 'run'}" in done.stdout
    assert "Rounds: 4/4" in done.stderr
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    model = type(get_task("logistic-mnist").build_model()).__name__
    facts = manifest["task"]
    assert 200 < facts.pop("used") < 700
    assert facts == {"name": "logistic-mnist", "model": model, "parameters": 7850, "samples": 60_000}
    assert "of 60,000" in done.stdout
    assert [line["round"] for line in lines(tmp_path / "run")] == [0, 1, 2, 3]


def run_all(config: Path, tmp_path: Path, variants: dict[str, Sequence[object]]) -> list[Path]:
    for name, flags in variants.items():
        done = dapfl_run("--config", config, *flags, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
    return [tmp_path / name for name in variants]


def test_the_same_seed_gives_the_same_lines_for_any_number_of_workers(config: Path, tmp_path: Path) -> None:
    base = ("--encryption", "none")
    first, second, other = run_all(
        config,
        tmp_path,
        {"one": (*base, "--workers", 1), "three": (*base, "--workers", 3), "other": (*base, "--seed", 4)},
    )
    assert lines(first) == lines(second)
    assert model(first) == model(second)
    assert model(first) != model(other)


def test_encryption_changes_no_bit_of_the_model(config: Path, tmp_path: Path) -> None:
    open_, hybrid, paper = run_all(
        config,
        tmp_path,
        {
            "open": ("--encryption", "none"),
            "hybrid": ("--envelope", "hybrid"),
            "paper": ("--envelope", "paillier"),
        },
    )
    assert model(open_) == model(hybrid) == model(paper)
    other = {"bytes_up": 0, "bytes_down": 0, "decrypted_by": []}
    for line, encrypted in zip(lines(open_), lines(hybrid), strict=True):
        assert line | other == encrypted | other


@pytest.mark.parametrize(("encryption", "codec"), [("none", "exact"), ("paillier", "compact")])
def test_a_killed_run_resumes_to_the_result_of_one_never_stopped(
    config: Path, tmp_path: Path, encryption: str, codec: str
) -> None:
    flags = ("--config", config, "--encryption", encryption, "--codec", codec)
    whole = dapfl_run(*flags, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    with subprocess.Popen(
        command(*flags, "--out", tmp_path / "killed"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("Rounds: 2/"):
                break
        os.killpg(process.pid, signal.SIGKILL)
    assert RunDirectory(tmp_path / "killed").read_manifest().status == "stopped"
    resumed = dapfl_run("--resume", tmp_path / "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert model(tmp_path / "killed") == model(tmp_path / "whole")


def test_control_c_stops_cleanly_and_the_run_can_be_resumed(config: Path, tmp_path: Path) -> None:
    flags = ("--config", config, "--rounds", 50, "--encryption", "none", "--out", tmp_path / "run")
    with subprocess.Popen(command(*flags), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("Rounds: 5/"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert f"To go on: dapfl run --resume {tmp_path / 'run'}" in rest
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "stopped"
    assert dapfl_run("--resume", tmp_path / "run").returncode == 0
    assert len(lines(tmp_path / "run")) == 50


def test_a_run_that_aggregated_nothing_says_so_last_and_exits_with_1(config: Path, tmp_path: Path) -> None:
    task = Path(__file__).parents[1] / "runs" / "faulty_tasks.py"
    flags = ("--config", config, "--rounds", 2, "--encryption", "none", "--out", tmp_path / "run")
    done = dapfl_run(*flags, "--task", f"{task}:NAN_DATA")
    assert done.returncode == 1
    assert "lost: client 1" in done.stdout and "dapfl report" not in done.stdout
    last = done.stderr.splitlines()[-1]
    assert "no trained model" in last and "bad-data 10" in last and "clean them" in last
    assert not (tmp_path / "run" / "model.npz").exists()


def test_a_finished_run_can_be_extended_and_its_keys_are_for_its_owner_only(
    config: Path, tmp_path: Path
) -> None:
    # The agent of dap-fl looks at the number of rounds, so that a longer run differs from the start.
    paper = ("--setting", "dap-fl-paper")
    (path, whole) = run_all(config, tmp_path, {"run": paper, "whole": (*paper, "--rounds", 6)})
    assert (path / "keys").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (path / "keys").glob("*.keys")} == {0o600}
    extended = dapfl_run("--resume", path, "--rounds", 6)
    assert extended.returncode == 0, extended.stderr
    assert "extended from 4 to 6 rounds" in extended.stderr
    assert model(path) == model(whole)
    assert lines(path) == lines(whole)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--setting", "huge"), "huge"),
        (("--task", "cnn-mnits"), "cnn-mnits"),
        (("--setting", "fixed"), "--eta"),
        (("--rounds", "0"), "rounds"),
        (("--rounds", "many"), "many"),
        (("--encryption", "rot13"), "rot13"),
        (("--key-bits", "512"), "insecure"),
        (("--key-bits", "1000000"), "16384"),
        (("--partition", "own"), "--own-data"),
        (("--config", "nowhere.toml"), "nowhere.toml"),
        (("--partition", "odd"), "odd"),
        (("--clients", "2"), "cohort"),
        (("--resume", "nowhere"), "nowhere"),
        (("--adversary", "gremlin"), "gremlin"),
    ],
)
def test_a_mistake_is_told_in_one_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    place = () if "--resume" in flags else ("--out", str(tmp_path / "run"))
    assert exit_code(*flags, *place) == 2
    told = capsys.readouterr().err
    assert words in told
    assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def exit_code(*flags: str) -> int:
    """What `dapfl run` ends with, in this process."""
    try:
        return main(["run", *flags])
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


def test_a_directory_in_use_is_left_alone(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("mine")
    assert exit_code("--config", str(config), "--out", str(tmp_path / "taken")) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["thesis.tex"]
