"""A comparison runs what is missing, under the same conditions for all."""

import json
from pathlib import Path

import pytest

from dapfl.cli import main
from dapfl.config import RunConfig, override
from dapfl.errors import ConfigError, RunDirectoryError
from dapfl.runs.compare import ALL, is_finished, parse_settings, perform, plan
from dapfl.runs.results import read_run
from dapfl.runs.scales import scale_of
from dapfl.runs.settings import resolve

ABLATION = Path(__file__).parents[2] / "examples" / "ablation"
SMALL = RunConfig(task="logistic-mnist", clients=4, rounds=2, mean_samples=40, std_samples=5)


def test_settings_are_names_rules_and_groups() -> None:
    assert parse_settings("dap-fl, large") == ("dap-fl", "large")
    assert parse_settings("large,all")[0] == "large"
    assert set(parse_settings("all")) == set(ALL)
    assert all(label.startswith("fixed:") for label in parse_settings("oracle"))


def test_a_rule_carries_its_hyper_parameters(tmp_path: Path) -> None:
    (job,) = plan(SMALL, ["fixed-capped:0.1:6"], [3], tmp_path)
    assert (job.config.setting, job.config.eta, job.config.alpha, job.config.seed) == (
        "fixed-capped",
        0.1,
        6,
        3,
    )
    with pytest.raises(ConfigError, match="NAME:ETA:ALPHA"):
        plan(SMALL, ["fixed-capped:0.1:six"], [3], tmp_path)


def test_a_rule_that_finds_its_step_sizes_carries_its_epochs(tmp_path: Path) -> None:
    (job,) = plan(SMALL, ["delta-sgd:6"], [3], tmp_path)
    assert (job.config.setting, job.config.alpha, job.config.price) == ("delta-sgd", 6, None)
    resolve(job.config)
    with pytest.raises(ConfigError, match="NAME:ALPHA"):
        plan(SMALL, ["dog-capped:six"], [3], tmp_path)


def test_all_settings_of_a_comparison_can_be_run(tmp_path: Path) -> None:
    for job in plan(SMALL, ALL, [3], tmp_path):
        resolve(job.config)


def test_a_price_and_a_variant_are_settings_too(tmp_path: Path) -> None:
    variant = tmp_path / "no-cap.toml"
    variant.write_text("[policy]\ncapped = false\n")
    priced, changed = plan(SMALL, ["dap-fl:0.1", str(variant)], [3], tmp_path)
    assert (priced.config.setting, priced.config.price) == ("dap-fl", 0.1)
    assert not resolve(changed.config).policy.capped
    assert changed.path == tmp_path / "no-cap" / "seed-3"
    with pytest.raises(ConfigError, match="cannot be read"):
        plan(SMALL, [str(tmp_path / "none.toml")], [3], tmp_path)


@pytest.mark.parametrize("variant", sorted(ABLATION.glob("*.toml")), ids=lambda path: path.stem)
def test_the_variants_of_the_ablation_work(variant: Path, tmp_path: Path) -> None:
    base = override(SMALL, {"crypto.encryption": "none"})
    (job,) = plan(base, [str(variant)], [3], tmp_path)
    assert resolve(job.config) != resolve(base)
    perform(job)
    assert is_finished(job)


def test_every_scale_knows_every_task() -> None:
    assert scale_of("standard", "logistic-mnist").rounds == 200
    assert scale_of("standard", "logistic-mnist").seeds == 5
    assert scale_of("standard", "cnn-fashion").rounds == 60
    assert scale_of("quick", "own_task.py:rings") == scale_of("quick", "cnn-mnist")
    with pytest.raises(ConfigError, match="the scales are quick, standard, full"):
        scale_of("huge", "cnn-mnist")


def test_all_settings_meet_the_same_clients_and_budgets(tmp_path: Path) -> None:
    jobs = plan(override(SMALL, {"crypto.encryption": "none"}), ["large", "small"], [100], tmp_path)
    for job in jobs:
        assert not is_finished(job)
        perform(job)
        assert is_finished(job)
    first, second = (read_run(job.path) for job in jobs)
    for one, other in zip(first.rounds, second.rounds, strict=True):
        for a, b in zip(one.clients, other.clients, strict=True):
            assert (a.samples, a.budget, a.epoch_cost, a.transfer_cost) == (
                b.samples,
                b.budget,
                b.epoch_cost,
                b.transfer_cost,
            )


def test_the_command_does_only_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "compare",
        "--task",
        "logistic-mnist",
        "--rounds",
        "1",
        "--clients",
        "3",
        "--out",
        str(tmp_path / "c"),
    ]
    assert main([*flags, "--settings", "small", "--seeds", "1", "--workers", "1"]) == 0
    manifest = tmp_path / "c" / "small" / "seed-100" / "manifest.json"
    created = json.loads(manifest.read_text())["created"], manifest.stat().st_mtime_ns
    assert main([*flags, "--settings", "small", "--seeds", "2", "--workers", "1"]) == 0
    assert (json.loads(manifest.read_text())["created"], manifest.stat().st_mtime_ns) == created
    assert (tmp_path / "c" / "small" / "seed-101" / "manifest.json").exists()
    assert (tmp_path / "c" / "report" / "index.html").exists()
    assert "2 runs of 1 rounds, 1 of them done already" in capsys.readouterr().err


def test_files_of_ones_own_are_the_same_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (job,) = plan(override(SMALL, {"task": "own.py:TASK"}), ["small"], [1], tmp_path)
    assert job.config.task == f"{tmp_path}/own.py:TASK"


def test_a_run_with_another_configuration_is_not_taken_for_ours(tmp_path: Path) -> None:
    (job,) = plan(SMALL, ["small"], [1], tmp_path)
    job.path.mkdir(parents=True)
    (job.path / "manifest.json").write_text(
        json.dumps({"format": 1, "config": {"rounds": 7}, "status": "finished"})
    )
    with pytest.raises(RunDirectoryError, match="another configuration"):
        is_finished(job)
