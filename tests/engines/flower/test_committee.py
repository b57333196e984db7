"""Decryption by a committee on Flower: real clients behind ClientApps, their states in files."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from dapfl.config import RunConfig, override
from dapfl.engines.flower.apps.persistent_client import FileStateStore, PersistentClient
from dapfl.engines.flower.apps.transport import FlowerTransport, pack, unpack
from dapfl.federation.assembly import build_client, build_federation
from dapfl.federation.records import RoundRecord
from dapfl.federation.round import Federation
from dapfl.federation.run_keys import Keys, make_keys
from dapfl.federation.run_terms import Shared
from dapfl.federation.server_state.state_file import StateFile
from dapfl.federation.transport import LocalTransport
from dapfl.runs.settings import resolve
from tests.engines.flower.simulation import Simulation, inside_an_app

CONFIG = override(
    RunConfig(),
    {
        "task": f"{Path(__file__).parents[1] / 'tiny_task.py'}:TASK",
        "clients": 3,
        "rounds": 3,
        "mean_samples": 60,
        "std_samples": 10,
        "crypto.decryption": "committee",
        "crypto.key_bits": 512,
        "crypto.engine": "gmp",
        "crypto.allow_insecure_small_keys": True,
    },
)


@pytest.fixture(autouse=True)
def _inside_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    inside_an_app(monkeypatch, 1)


def client_app(config: RunConfig, keys: Keys, folder: Path) -> ClientApp:
    """A ClientApp whose client is built for every message, from its saved state, as after a restart."""
    app = ClientApp()
    policy = resolve(config).policy

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"]) + 1
        state = folder / f"{client}"
        state.mkdir(exist_ok=True)

        def build():
            shared = Shared(config, policy)
            return build_client(config, policy, client, keys.clients[client], shared, standalone=True)

        device = PersistentClient(build, FileStateStore(state))
        return Message(pack(device.answer(unpack(message.content))), reply_to=message)

    return app


def server(
    config: RunConfig, keys: Keys, grid: Simulation, state_file: StateFile | None = None
) -> Federation:
    """CS of a run on Flower."""
    transport = FlowerTransport(grid, lambda grid: {i + 1: 100 + i for i in range(config.clients)})
    return build_federation(
        config,
        "all",
        keys.server,
        transport,
        one_exchange_per_round=True,
        state_file=state_file,
        insiders=keys.insiders,
        step=resolve(config).policy.server_step,
    )


def play(config: RunConfig, folder: Path, kind: type[Simulation] = Simulation):
    """A run on Flower: its grid, its records, its last model."""
    keys = make_keys(config)
    grid = kind(client_app(config, keys, folder), config.clients)
    federation = server(config, keys, grid)
    records: list[RoundRecord] = list(federation.rounds(config.rounds))
    return grid, records, federation.weights


def elsewhere(config: RunConfig) -> np.ndarray:
    """The model of the same run in one process."""
    keys, policy = make_keys(config), resolve(config).policy
    shared = Shared(config, policy)
    clients = {i: build_client(config, policy, i, keys.clients[i], shared) for i in keys.clients}
    federation = build_federation(
        config, "all", keys.server, LocalTransport(clients), step=policy.server_step
    )
    assert len(list(federation.rounds(config.rounds))) == config.rounds
    return federation.weights


def test_a_round_takes_one_exchange_more_and_gives_the_model_of_a_shared_key(tmp_path: Path) -> None:
    grid, records, model = play(CONFIG, tmp_path)
    assert [record.decrypted_by for record in records] == [(1, 2)] * 3
    assert grid.kinds.count("train") == 3 * (3 + 2)  # every client, then two of three members
    assert np.array_equal(model, elsewhere(override(CONFIG, {"crypto.decryption": "shared"})))
    assert np.array_equal(model, elsewhere(override(CONFIG, {"crypto.encryption": "none"})))


def test_a_malicious_server_gets_nothing_out_of_members(tmp_path: Path) -> None:
    """CS shows members one contribution as if it were a sum, and a second cohort."""
    attacked = override(CONFIG, {"adversaries": ("substituted-aggregate", "second-proposal")})
    _, records, model = play(attacked, tmp_path)
    refused = {each.reason for record in records for each in record.rejections if each.at == "client"}
    assert refused == {"below-min-cohort", "bad-proposal", "replayed"}
    assert np.array_equal(model, elsewhere(CONFIG))


def test_a_client_that_works_with_cs_and_a_false_member_change_nothing(tmp_path: Path) -> None:
    """One sends the inverse of the others' contributions, and one on the committee a false share."""
    config = override(CONFIG, {"clients": 4, "rounds": 2})
    _, records, model = play(override(config, {"adversaries": ("inverse", "false-share")}), tmp_path)
    assert [record.cohort for record in records] == [(1, 2, 3, 4)] * 2
    for record in records:
        reasons = {(each.client, each.reason) for each in record.rejections}
        assert reasons == {(5, "unproved"), (6, "false-share")}
        assert 6 not in record.decrypted_by
    assert np.array_equal(model, elsewhere(config))


class Crash(Exception):
    """CS ends."""


class Crashing(Simulation):
    """CS ends when the members have answered the proposal of round 1, before it has their shares."""

    def deliver(self, message: Message) -> Message:
        reply = super().deliver(message)
        if self.kinds.count("train") == 5 + 3 + 2:
            raise Crash
        return reply


def test_cs_goes_on_between_proposal_and_combination(tmp_path: Path) -> None:
    """Members have served the proposal already: they give the same answer again, and no other."""
    keys, file = make_keys(CONFIG), StateFile(tmp_path / "server.state")
    app = client_app(CONFIG, keys, tmp_path)
    first = server(CONFIG, keys, Crashing(app, CONFIG.clients), file)
    with pytest.raises(Crash):
        list(first.rounds(CONFIG.rounds))
    again = server(CONFIG, keys, Simulation(app, CONFIG.clients), file)
    state = file.read()
    assert state is not None
    again.restore(state)
    records = list(again.rounds(CONFIG.rounds))
    assert [(record.round, record.participants, record.rejected) for record in records] == [
        (1, 3, 0),
        (2, 3, 0),
    ]
    assert np.array_equal(again.weights, elsewhere(CONFIG))


class Vanishing(Simulation):
    """Members 1 and 2 are gone when they are to decrypt in round 0, and come back."""

    def deliver(self, message: Message) -> Message:
        proposed = self.kinds.count("train") == 3 + 2  # after three calls
        if proposed and message.metadata.dst_node_id in (100, 101):
            return Message(Error(2, "gone"), reply_to=message)
        return super().deliver(message)


def test_members_that_vanish_cost_a_round_and_may_come_back(tmp_path: Path) -> None:
    _, records, _ = play(CONFIG, tmp_path, Vanishing)
    assert {client.status for client in records[0].clients} == {"failed:no-quorum"}
    assert [record.participants for record in records] == [0, 3, 3]
    assert [record.decrypted_by for record in records] == [(), (1, 2), (1, 2)]
