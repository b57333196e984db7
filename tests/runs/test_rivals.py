"""The rivals that bring an optimiser or a server step of their own, as runs."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dapfl.budget import affordable_epochs
from dapfl.config import RunConfig, override
from dapfl.federation.records import RoundRecord
from dapfl.runs.session import resume, start

CONFIG = override(
    RunConfig(),
    {
        "task": f"{Path(__file__).parents[1] / 'engines' / 'tiny_task.py'}:TASK",
        "clients": 5,
        "rounds": 4,
        "seed": 3,
        "mean_samples": 60,
        "std_samples": 5,
        "batch_size": 16,
        "resources.budget": 6.0,  # tight enough for the cap to matter, and never too small for an epoch
        "resources.transfer": 0.2,
        "crypto.encryption": "none",
    },
)
SMALL_KEYS = {
    "crypto.encryption": "paillier",
    "crypto.key_bits": 512,
    "crypto.allow_insecure_small_keys": True,
}
RIVALS: dict[str, dict[str, Any]] = {
    "delta-sgd": {"alpha": 20},
    "dog-capped": {"alpha": 20},
    "fedadam-capped": {"eta": 0.1, "alpha": 20},
}


def config_of(setting: str, **changes: Any) -> RunConfig:
    return override(CONFIG, {"setting": setting, **RIVALS[setting], **changes})


def played(config: RunConfig, path: Path) -> tuple[list[RoundRecord], dict[str, bytes]]:
    with start(config, path, inline=True) as session:
        return list(session), model(path)


def model(path: Path) -> dict[str, bytes]:
    with np.load(path / "model.npz") as tensors:
        return {name: tensors[name].tobytes() for name in tensors.files}


@pytest.mark.parametrize("setting", RIVALS)
def test_a_rival_learns_within_the_budget_and_is_charged_for_its_gradients(
    setting: str, tmp_path: Path
) -> None:
    records, _ = played(config_of(setting), tmp_path / "run")
    assert all(record.participants == 5 and record.violations == 0 for record in records)
    assert records[-1].loss < records[0].loss < 1.0
    gradients, per_epoch = (2, 2) if setting == "delta-sgd" else (1, 1)
    for record in records:
        assert record.epochs == gradients * sum(client.alpha for client in record.clients)
        for client in record.clients:
            assert client.cost <= client.budget or client.alpha == 1
            afforded = affordable_epochs(client.budget, client.epoch_cost / per_epoch, client.transfer_cost)
            assert client.alpha == max(1, min(20, afforded // gradients))
    assert any(client.alpha < client.planned_alpha for client in records[0].clients)


def test_two_gradients_a_step_cost_twice_as_much(tmp_path: Path) -> None:
    (one, *_), _ = played(config_of("dog-capped", rounds=1), tmp_path / "dog")
    (two, *_), _ = played(config_of("delta-sgd", rounds=1), tmp_path / "delta")
    for single, double in zip(one.clients, two.clients, strict=True):
        assert double.epoch_cost == pytest.approx(2 * single.epoch_cost)
        assert (double.budget, double.transfer_cost) == (single.budget, single.transfer_cost)


@pytest.mark.parametrize("setting", RIVALS)
def test_a_resumed_run_and_an_encrypted_one_end_with_the_same_bits(setting: str, tmp_path: Path) -> None:
    records, expected = played(config_of(setting), tmp_path / "whole")
    with start(config_of(setting, **SMALL_KEYS), tmp_path / "stopped", inline=True) as session:
        rounds = iter(session)
        first = [next(rounds), next(rounds)]
    with resume(tmp_path / "stopped", inline=True) as session:
        rest = list(session)
    assert model(tmp_path / "stopped") == expected

    def bare(record: RoundRecord) -> RoundRecord:
        return msgspec.structs.replace(record, seconds={}, bytes_up=0, bytes_down=0, decrypted_by=())

    assert [bare(record) for record in first + rest] == [bare(record) for record in records]


def test_a_committee_makes_the_model_of_fedadam_too(tmp_path: Path) -> None:
    _, expected = played(config_of("fedadam-capped", rounds=2), tmp_path / "open")
    committee = {
        "crypto.decryption": "committee",
        "crypto.committee_members": 3,
        "crypto.committee_threshold": 2,
    }
    _, ours = played(config_of("fedadam-capped", rounds=2, **SMALL_KEYS, **committee), tmp_path / "committee")
    assert ours == expected
