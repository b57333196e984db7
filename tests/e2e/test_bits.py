"""Nothing that protects a run changes a bit of its model: every task, keys of full size.

These runs take minutes, the ResNet half an hour or more.
`scripts/test -m long` runs them, and nothing else does.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dapfl.config import RunConfig, override
from dapfl.crypto.engines.base import available_engines
from dapfl.runs.session import start

CONFIG = RunConfig(
    setting="fixed", eta=0.01, alpha=1, clients=3, rounds=2, seed=1, mean_samples=64, std_samples=8
)
# A ResNet is 500 times the CNN: one round, of as few ciphertexts as can be.
RESNET = {"task": "resnet18-mnist", "rounds": 1, "crypto.codec": "compact"}


def model(config: RunConfig, path: Path) -> dict[str, bytes]:
    """Every tensor of the global model that a run ends with, all clients inside."""
    with start(config, path) as session:
        assert [record.participants for record in session] == [config.clients] * config.rounds
    with np.load(path / "model.npz") as tensors:
        return {name: tensors[name].tobytes() for name in tensors.files}


def variants(small: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """What may not matter; small models go through every engine that this machine has."""
    for name in available_engines() if small else ("auto",):
        yield f"hybrid-{name}", {"crypto.envelope": "hybrid", "crypto.engine": name}
    yield "paillier", {"crypto.envelope": "paillier"}
    yield "committee", {"crypto.decryption": "committee"}
    if small and find_spec("flwr"):
        yield "flower", {"engine": "flower"}
        yield "committee on flower", {"engine": "flower", "crypto.decryption": "committee"}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own, of its command line
@pytest.mark.parametrize(
    "changes",
    [{"task": "logistic-mnist"}, {"task": "cnn-mnist"}, {"task": "cnn-fashion"}, RESNET],
    ids=lambda changes: changes["task"],
)
def test_encryption_envelope_and_engine_change_no_bit_of_the_model(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    config = override(CONFIG, changes)
    plain = model(override(config, {"crypto.encryption": "none"}), tmp_path / "none")
    for name, protection in variants(small=changes is not RESNET):
        assert model(override(config, protection), tmp_path / name) == plain, name
