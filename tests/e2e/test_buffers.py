"""Running statistics of raw features: numbers that are large and rightly so."""

from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from dapfl.config import RunConfig, override
from dapfl.federation.assembly import Shared, build_client, build_federation
from dapfl.federation.records import RoundRecord, Status
from dapfl.federation.run_keys import make_keys
from dapfl.federation.transport import LocalTransport
from dapfl.learning.data import Dataset
from dapfl.learning.tasks import Task, register
from dapfl.runs.settings import resolve


class RawFeatures(nn.Module):
    """What a table of incomes looks like to a network that normalises its inputs itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs * 30_000)


def load() -> Dataset:
    points = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
    labels = (points[:, 0] > 0).astype(np.int64)
    return Dataset(points[:300], labels[:300], points[300:], labels[300:], classes=2)


def run(**changes: Any) -> tuple[list[RoundRecord], dict[str, np.ndarray]]:
    task = Task("raw features", RawFeatures, load)
    settings = {"clients": 3, "rounds": 3, "crypto.key_bits": 512, "crypto.allow_insecure_small_keys": True}
    settings |= {"setting": "fixed-capped", "eta": 0.1, "alpha": 3}
    config = override(RunConfig(), {**settings, **changes, "task": register(task)})
    keys, shared, policy = make_keys(config), Shared(config), resolve(config).policy
    clients = {i: build_client(config, policy, i, bundle, shared) for i, bundle in keys.clients.items()}
    federation = build_federation(config, "all", keys.server, LocalTransport(clients))
    records = list(federation.rounds(config.rounds))
    model = {s.name: federation.weights[s.start : s.stop].copy() for s in shared.parameters.segments}
    return records, model


@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_large_variances_are_averaged_and_no_divergence(codec: str) -> None:
    records, model = run(**{"crypto.codec": codec})
    assert {client.status for record in records for client in record.clients} == {Status.ACCEPTED}
    # The model after three rounds of eleven batches or more knows the data's variance.
    assert model["layers.0.running_var"] == pytest.approx(9e8, rel=0.25)
    assert records[-1].accuracy > 0.9
    _, same = run(**{"crypto.codec": codec, "crypto.encryption": "none"})
    assert all(model[name].tobytes() == same[name].tobytes() for name in model)


def test_real_divergence_is_called_so() -> None:
    records, _ = run(eta=1e20, rounds=1, **{"crypto.encryption": "none"})
    assert {client.status for client in records[0].clients} == {Status.DIVERGED}
