"""Participants put together from a configuration, with a task small enough for a test."""

import msgspec
import numpy as np
import pytest

from dapfl.config import RunConfig, override
from dapfl.errors import ConfigError
from dapfl.federation.assembly import build_client, build_federation
from dapfl.federation.run_keys import keys_needed, load_keys, make_keys, save_keys
from dapfl.federation.run_terms import Shared, bounds_of
from dapfl.federation.transport import LocalTransport
from tests.federation.small import fixed_policy

TASK = """
import numpy as np
from torch import nn
from dapfl.learning.data import Dataset
from dapfl.learning.tasks import Task


def load():
    rng = np.random.default_rng(1)
    points = rng.normal(0, 1, (400, 3)).astype(np.float32)
    labels = (points.sum(axis=1) > 0).astype(np.int64)
    return Dataset(points[:300], labels[:300], points[300:], labels[300:], classes=2)


sides = Task("sides", lambda: nn.Linear(3, 2), load)
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> RunConfig:
    path = tmp_path_factory.mktemp("task") / "sides.py"
    path.write_text(TASK)
    return override(
        RunConfig(task=f"{path}:sides", clients=4, rounds=3, mean_samples=50, std_samples=10),
        {"crypto.key_bits": 512, "crypto.allow_insecure_small_keys": True},
    )


def played(config: RunConfig, keys=None, selection="all", policy=None, **options):
    keys = keys or make_keys(config)
    shared = Shared(config)
    policy = policy or fixed_policy(eta=0.5)
    clients = {i: build_client(config, policy, i, bundle, shared) for i, bundle in keys.clients.items()}
    federation = build_federation(
        config, selection, keys.server, LocalTransport(clients), insiders=keys.insiders, **options
    )
    return federation, list(federation.rounds(config.rounds))


def test_a_configured_federation_learns(config):
    federation, records = played(config)
    assert [record.participants for record in records] == [4, 4, 4]
    assert records[-1].accuracy > 0.8
    assert records[-1].loss < records[0].loss
    assert federation.attacks() == ()
    capabilities = [client.capability for client in records[0].clients]
    assert capabilities == [1.0, 0.8, 0.6, 0.4]
    assert len({client.samples for client in records[0].clients}) > 1


@pytest.mark.parametrize(
    "changes",
    [
        {"crypto.encryption": "none"},
        {"crypto.envelope": "paillier"},
        {"crypto.decryption": "shared"},
        {"crypto.decryption": "shared", "crypto.randomness": "full", "crypto.generator": "random"},
        {"share_reports": False},
    ],
    ids=str,
)
def test_how_it_is_protected_does_not_change_what_is_learned(config, changes):
    reference, _ = played(config)
    other, _ = played(override(config, changes))
    np.testing.assert_array_equal(reference.weights, other.weights)


def test_seeds_decide_everything_but_the_keys(config):
    first, second = (played(config)[1] for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert msgspec.structs.replace(a, seconds={}) == msgspec.structs.replace(b, seconds={})
    other, _ = played(override(config, {"seed": 5}))
    assert (other.weights != played(config)[0].weights).any()


def test_keys_can_be_kept_and_loaded(config, tmp_path):
    attacked = override(config, {"adversaries": ["tamper", "absurd-size"]})
    keys = make_keys(attacked)
    assert sorted(keys.clients) == [1, 2, 3, 4]
    assert sorted(keys.insiders) == [5]
    assert keys_needed(attacked) == 12
    save_keys(tmp_path, keys)
    assert load_keys(attacked, tmp_path) == keys


def test_a_run_without_encryption_needs_no_keys(config, tmp_path):
    plain = override(config, {"crypto.encryption": "none"})
    made = []
    keys = make_keys(plain, lambda: made.append(1))
    assert keys.server is None
    assert keys.clients == dict.fromkeys((1, 2, 3, 4))
    assert keys_needed(plain) == 0 == len(made)
    save_keys(tmp_path / "keys", keys)
    assert not (tmp_path / "keys").exists()


def test_configured_adversaries_change_nothing_and_are_summed_up(config):
    honest, _ = played(config)
    names = ["eavesdropper", "tamper", "nan", "wrong-size", "absurd-size"]
    attacked, records = played(override(config, {"adversaries": names}))
    np.testing.assert_array_equal(honest.weights, attacked.weights)
    lines = attacked.attacks()
    assert [line.partition(":")[0] for line in lines] == names
    assert not [line for line in lines if "GOT THROUGH" in line or "READ" in line]
    statuses = {client.id: client.status for client in records[0].clients}
    assert statuses == {
        **dict.fromkeys((1, 2, 3, 4), "accepted"),
        5: "diverged",
        6: "rejected:wrong-size",
        7: "rejected:absurd-size",
    }


def test_a_selecting_server_needs_reports(config):
    with pytest.raises(ConfigError, match="share_reports"):
        played(override(config, {"share_reports": False}), selection="ddpg-client")
    changes = {"min_cohort": 2, "crypto.decryption": "shared"}
    _, records = played(override(config, changes), selection="ddpg-client")
    assert [client.status for client in records[1].clients].count("unselected") == 2


def test_impossible_configurations_are_named(config):
    with pytest.raises(ConfigError, match="minimum cohort of 5"):
        played(override(config, {"min_cohort": 5}))
    with pytest.raises(ConfigError, match="no adversary 'x'"):
        make_keys(override(config, {"adversaries": ["x"]}))


def test_bounds_leave_room_for_every_client_that_can_be_drawn():
    assert bounds_of(RunConfig(mean_samples=600, std_samples=200)).max_samples == 1800
    assert bounds_of(RunConfig(mean_samples=10, std_samples=0, batch_size=64)).max_samples == 64


def test_a_server_that_selects_calls_as_many_as_a_committee_decrypts(config):
    """With 3, the minimum that was asked for, no round would ever be aggregated."""
    chosen = override(config, {"clients": 8, "rounds": 6, "crypto.decryption": "committee"})
    _, records = played(chosen, selection="ddpg-client")
    assert all(record.participants >= 5 for record in records)
    assert any(record.participants < 8 for record in records)
