"""Two lines in an existing Flower app: its own functions, the mod and the strategy, with a Grid of ours."""

import importlib
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result

import dapfl.flower
from dapfl.config import CryptoConfig
from dapfl.errors import ConfigError, TransportError
from dapfl.federation.keys import bundles, kdc
from dapfl.federation.records import RoundRecord
from tests.engines.flower.simulation import Simulation, inside_an_app

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL: dict[str, Any] = {"key_bits": 512, "allow_insecure_small_keys": True, "patience": 0.0}
_RUNS = count(1)


@pytest.fixture(autouse=True)
def _inside_an_app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside_an_app(monkeypatch, next(_RUNS))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def quadratic(mods: list[Any], seen: list[dict[str, Any]] | None = None, evaluated: bool = True) -> ClientApp:
    """A user's app: the model moves towards a point of the node's own. It knows nothing of Dap-FL."""
    app = ClientApp(mods=mods)

    def goal(context: Context) -> Any:
        return np.array([1.0, -2.0, 3.0]) * (1 + context.node_config["partition-id"])

    def loss(weights: Any, context: Context) -> float:
        return float(((weights - goal(context)) ** 2).mean())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays, config = message.content["arrays"], message.content["config"]
        if seen is not None:
            seen.append({"node": context.node_id, **config, **context.run_config})
        weights = arrays["w"].numpy().copy()
        for _ in range(context.run_config["local-epochs"]):
            weights -= config["lr"] * 0.1 * (weights - goal(context))
        found = {"train_loss": loss(weights, context), "num-examples": 10 * (1 + context.node_id % 100)}
        new = ArrayRecord({"w": arrays["w"].__class__(weights), "steps": arrays["steps"]})
        return Message(RecordDict({"arrays": new, "metrics": MetricRecord(found)}), reply_to=message)

    if evaluated:

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            weights = message.content["arrays"]["w"].numpy()
            found = {"eval_loss": loss(weights, context), "num-examples": 5}
            return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)

    return app


def initial() -> ArrayRecord:
    from flwr.app import Array

    return ArrayRecord({"w": Array(np.zeros(3)), "steps": Array(np.array(7, np.int64))})


def start(strategy: FedAvg, grid: Any, rounds: int = 2) -> Result:
    return strategy.start(
        grid, initial(), num_rounds=rounds, timeout=60, train_config=ConfigRecord({"lr": 0.5})
    )


def grid_of(
    mods: list[Any], seen: list[dict[str, Any]] | None = None, nodes: int = 4, **more: Any
) -> Simulation:
    return Simulation(quadratic(mods, seen, **more), nodes, run_config={"local-epochs": 2})


def small_mod(**settings: Any) -> Any:
    return dapfl.flower.mod(allow_insecure_small_keys=True, **settings)


# Sums ------------------------------------------------------------------------------------------


def test_encryption_alone_gives_the_model_and_the_metrics_of_fedavg() -> None:
    """Nothing is tuned, so the nodes' updates are the same; only the sums are made under encryption."""
    plain = start(FedAvg(), grid_of([]))
    ours = start(dapfl.flower.DapFL(**SMALL), grid_of([small_mod(tuning=False)]))
    assert list(ours.arrays) == ["w", "steps"]
    assert ours.arrays["w"].numpy().dtype == np.float64
    np.testing.assert_allclose(ours.arrays["w"].numpy(), plain.arrays["w"].numpy(), atol=1e-6, rtol=1e-6)
    assert ours.arrays["steps"].numpy() == 7  # a counter has no average
    for theirs, mine in (
        (plain.train_metrics_clientapp, ours.train_metrics_clientapp),
        (plain.evaluate_metrics_clientapp, ours.evaluate_metrics_clientapp),
    ):
        assert theirs.keys() == mine.keys() == {1, 2}
        for number in theirs:
            assert mine[number].keys() == theirs[number].keys()
            for name in theirs[number]:
                assert mine[number][name] == pytest.approx(theirs[number][name], rel=1e-5)


def test_encrypted_sums_are_those_of_the_same_run_without_encryption_bit_for_bit() -> None:
    results = []
    for encryption in ("paillier", "none"):
        mod = small_mod(tuning=False, encryption=encryption)
        strategy = dapfl.flower.DapFL(encryption=encryption, **SMALL)
        results.append(start(strategy, grid_of([mod])).arrays["w"].numpy())
    assert np.array_equal(*results)


def leaves_app(mods: list[Any]) -> ClientApp:
    """As apps with JAX hand over their model: the leaves of a pytree, without names, as float32 that
    NumPy may only read, one of them a scalar."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        step = np.float32(0.25 * (1 + context.node_config["partition-id"]))
        leaves = [np.asarray(leaf + step) for leaf in message.content["arrays"].to_numpy_ndarrays()]
        for leaf in leaves:
            leaf.flags.writeable = False
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 10 + context.node_id % 100})
        return Message(RecordDict({"arrays": ArrayRecord(leaves), "metrics": metrics}), reply_to=message)

    return app


def test_the_leaves_of_a_pytree_are_averaged_as_fedavg_does() -> None:
    leaves = [np.zeros(8, np.float32), np.ones((4, 8), np.float32), np.asarray(np.float32(0.5))]
    results = []
    for strategy, mods in (
        (FedAvg(fraction_evaluate=0.0), []),
        (dapfl.flower.DapFL(fraction_evaluate=0.0, **SMALL), [small_mod(tuning=False)]),
    ):
        grid = Simulation(leaves_app(mods), 4)
        results.append(strategy.start(grid, ArrayRecord(leaves), num_rounds=2, timeout=60).arrays)
    for plain, ours in zip(*(arrays.to_numpy_ndarrays() for arrays in results), strict=True):
        assert plain.shape == ours.shape and ours.dtype == np.float32
        np.testing.assert_allclose(ours, plain, atol=1e-6, rtol=1e-6)


def test_an_array_of_an_unknown_type_is_refused_not_left_unlearned() -> None:
    """A bfloat16 array of JAX is two bytes without a type once Flower has carried it."""
    from flwr.app import Array

    arrays = ArrayRecord({"w": Array(np.ones(3, np.float32)), "half": Array(np.zeros(3, "V2"))})
    with pytest.raises(ConfigError, match="'half' has the type"):
        dapfl.flower.DapFL(**SMALL).start(grid_of([small_mod()]), arrays, num_rounds=1, timeout=60)


@pytest.mark.parametrize("decryption", ["shared", "committee"])
def test_no_update_is_in_any_message(decryption: Any) -> None:
    grid = grid_of([small_mod(tuning=False, decryption=decryption)], nodes=5)
    start(dapfl.flower.DapFL(decryption=decryption, fraction_evaluate=0.0, **SMALL), grid, rounds=1)
    updates = [np.array([1.0, -2.0, 3.0]) * (1 - 0.95**2) * node for node in range(1, 6)]
    sent = b"".join(
        bytes(array.data)
        for reply in grid.replies
        for record in reply.content.array_records.values()
        for array in record.values()
    )
    assert len(sent) > 4 * 64
    for update in updates:
        for kind in (np.float32, np.float64):
            assert update.astype(kind)[:1].tobytes() not in sent
    assert not any(reply.content.metric_records for reply in grid.replies)


def test_a_server_cannot_talk_a_node_into_smaller_sums_than_its_committee_protects(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """CS makes the plan: with sums of three, it and two members would read the third."""
    monkeypatch.setattr(
        "dapfl.engines.flower.own_app.strategy.least_cohort", lambda bundle, least, clients: least
    )
    grid = grid_of([small_mod(tuning=False, decryption="committee")], nodes=6)
    rounds: list[RoundRecord] = []
    strategy = dapfl.flower.DapFL(
        decryption="committee", fraction_evaluate=0.0, on_round=rounds.append, **SMALL
    )
    with caplog.at_level("INFO", "flwr"):
        start(strategy, grid, rounds=1)
    assert {client.status for client in rounds[0].clients} == {"failed:other-settings"}
    assert "this node's mod asks for min_cohort=5" in caplog.text


@pytest.mark.parametrize(
    ("decryption", "more"),
    [
        ("shared", 4),  # at the end some tell the last model, or its hash
        ("committee", 3 * 3),  # in every round three of the four members decrypt: one exchange more
    ],
)
def test_a_round_without_evaluation_is_one_exchange_or_two(decryption: Any, more: int) -> None:
    grid = grid_of([small_mod(tuning=False, decryption=decryption)])
    strategy = dapfl.flower.DapFL(fraction_evaluate=0.0, decryption=decryption, **SMALL)
    result = start(strategy, grid, rounds=3)
    # Each node says who it is and takes part in three rounds.
    assert 4 * (1 + 3) < len(grid.kinds) <= 4 * (1 + 3) + more
    assert set(result.train_metrics_clientapp) == {1, 2, 3}


def test_some_of_the_nodes_train_in_each_round() -> None:
    rounds: list[RoundRecord] = []
    strategy = dapfl.flower.DapFL(fraction_train=0.75, on_round=rounds.append, **SMALL)
    start(strategy, grid_of([small_mod(tuning=False)]))
    assert [record.participants for record in rounds] == [3, 3]


# Tuning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encryption", ["paillier", "none"])
def test_agents_choose_what_the_train_function_gets(encryption: Any) -> None:
    seen: list[dict[str, Any]] = []
    rounds: list[RoundRecord] = []
    grid = grid_of([small_mod(encryption=encryption)], seen)
    start(dapfl.flower.DapFL(encryption=encryption, on_round=rounds.append, **SMALL), grid, rounds=3)
    chosen = {(c.id, r.round): (c.eta, c.alpha) for r in rounds for c in r.clients}
    got = {(each["node"] - 99, each["server-round"] - 1): (each["lr"], each["local-epochs"]) for each in seen}
    assert chosen == got
    assert len(set(chosen.values())) > 1
    assert {each["lr"] for each in seen} != {0.5}
    assert all(context.run_config == {"local-epochs": 2} for context in grid.contexts.values())
    # What the agents saw was measured by the app's own evaluate function.
    assert all(c.state is not None and c.state[0] is not None for r in rounds for c in r.clients)


def test_without_tuning_the_train_function_gets_its_own_values() -> None:
    seen: list[dict[str, Any]] = []
    start(dapfl.flower.DapFL(**SMALL), grid_of([small_mod(tuning=False)], seen))
    assert {(each["lr"], each["local-epochs"]) for each in seen} == {(0.5, 2)}


def test_an_app_without_evaluation_is_judged_by_its_training_loss() -> None:
    rounds: list[RoundRecord] = []
    strategy = dapfl.flower.DapFL(fraction_evaluate=0.0, on_round=rounds.append, **SMALL)
    start(strategy, grid_of([small_mod()], evaluated=False), rounds=3)
    assert [[c.state[0] is not None for c in r.clients] for r in rounds] == [
        [False] * 4,
        [True] * 4,
        [True] * 4,
    ]


def test_an_app_that_tells_no_loss_is_tuned_by_time_alone_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[dict[str, Any]] = []
    grid = grid_of([small_mod(loss="none-such")], seen)
    with caplog.at_level("WARNING", logger="flwr"):
        start(dapfl.flower.DapFL(**SMALL), grid)
    assert {(each["lr"], each["local-epochs"]) for each in seen} == {(0.5, 2)}
    assert "by time alone" in caplog.text


def test_a_name_that_is_not_there_to_tune_is_said(caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of([small_mod(lr="eta-zero")])
    with caplog.at_level("WARNING", logger="flwr"):
        start(dapfl.flower.DapFL(**SMALL), grid, rounds=1)
    assert "no positive number 'eta-zero'" in caplog.text


# Nodes that cannot take part -------------------------------------------------------------------


def spoilt(app: ClientApp, number: int = 102) -> tuple[Simulation, list[RoundRecord]]:
    grid = grid_of([small_mod(tuning=False)])
    grid.apps[number] = app
    return grid, []


def other_model(mods: list[Any]) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from flwr.app import Array

        content = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(np.zeros(4)), "steps": message.content["arrays"]["steps"]}),
                "metrics": MetricRecord({"num-examples": 3}),
            }
        )
        return Message(content, reply_to=message)

    return app


def failing(mods: list[Any]) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise ValueError("the patients' records are in /secret/place")

    return app


def counting(number: object) -> Callable[[list[Any]], ClientApp]:
    def make(mods: list[Any]) -> ClientApp:
        app = ClientApp(mods=mods)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            metrics = MetricRecord({"num-examples": number})  # type: ignore[dict-item]
            return Message(
                RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message
            )

        return app

    return make


def not_installed(mods: list[Any]) -> Any:
    def app(message: Message, context: Context) -> Message:
        raise ImportError("No module named 'dapfl'")

    return app


@pytest.mark.parametrize(
    ("make", "mods", "here", "there"),
    [
        (other_model, {}, "another model than this federation's", "array 'w' has the shape (4,)"),
        (failing, {}, "its train function failed", "own train function failed"),
        (counting(0), {}, "returned no number of examples", "whole number 'num-examples'"),
        (counting(10**6), {}, "more samples than max_samples", "DapFL(max_samples=1000000)"),
        (quadratic, {"min_cohort": 4}, "do not agree on the protection", "min_cohort=4"),
        (quadratic, {"decryption": "shared"}, "do not agree on the protection", "decryption='shared'"),
        (quadratic, {"keys": "/nowhere"}, "it has no keys of this federation", "/nowhere"),
        (quadratic, None, "is dapfl installed there, and dapfl.flower.mod among its mods?", ""),
        (not_installed, {}, "is dapfl installed there?", ""),
    ],
)
def test_a_node_that_cannot_take_part_is_told_why_and_the_round_goes_on(
    make: Any, mods: Any, here: str, there: str, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[RoundRecord] = []
    grid = grid_of([small_mod(tuning=False)])
    grid.apps[102] = make([] if mods is None else [small_mod(tuning=False, **mods)])
    strategy = dapfl.flower.DapFL(fraction_evaluate=0.0, on_round=rounds.append, **SMALL)
    with caplog.at_level("INFO", logger="flwr"):
        result = start(strategy, grid)
    assert [record.cohort for record in rounds] == [(1, 2, 4), (1, 2, 4)]
    assert np.isfinite(result.arrays["w"].numpy()).all()
    assert here in caplog.text and there in caplog.text
    told = [
        value
        for reply in grid.replies
        if reply.has_content()
        for record in reply.content.config_records.values()
        for value in record.values()
    ]
    assert not any("/secret/place" in str(value) or "/nowhere" in str(value) for value in told)


def test_a_node_with_the_mod_refuses_a_plain_strategy(caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of([small_mod()])
    with caplog.at_level("INFO", logger="flwr"):
        start(FedAvg(fraction_evaluate=0.0), grid, rounds=1)
    assert "use the strategy dapfl.flower.DapFL" in caplog.text
    assert not any(reply.has_content() for reply in grid.replies)


def test_a_node_with_foreign_keys_contributes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crypto = CryptoConfig(key_bits=512, allow_insecure_small_keys=True)
    bundles.save_bundles(tmp_path / "other", *kdc.generate(4, crypto))
    rounds: list[RoundRecord] = []
    grid = grid_of([small_mod(tuning=False)])
    grid.apps[101] = quadratic([small_mod(tuning=False, keys=tmp_path / "other")])
    with caplog.at_level("INFO", logger="flwr"):
        start(dapfl.flower.DapFL(fraction_evaluate=0.0, on_round=rounds.append, **SMALL), grid)
    assert [record.cohort for record in rounds] == [(1, 3, 4), (1, 3, 4)]


def test_an_altered_plan_is_refused_by_every_node() -> None:
    """Someone between server and nodes lowers the minimum cohort: no signature fits the plan any more."""
    grid = grid_of([small_mod(tuning=False, decryption="shared", min_cohort=2)])
    deliver = grid.deliver

    def altered(message: Message) -> Message:
        plan = message.content.config_records.get("dapfl-plan")
        if plan is not None:
            assert b"min_cohort\x03" in plan["plan"]
            content = RecordDict(dict(message.content))
            changed = plan["plan"].replace(b"min_cohort\x03", b"min_cohort\x02")
            content["dapfl-plan"] = ConfigRecord({**plan, "plan": changed})
            message.content = content
        return deliver(message)

    grid.deliver = altered  # type: ignore[method-assign]
    rounds: list[RoundRecord] = []
    strategy = dapfl.flower.DapFL(fraction_evaluate=0.0, decryption="shared", on_round=rounds.append, **SMALL)
    start(strategy, grid, rounds=1)
    assert [record.cohort for record in rounds] == [()]
    assert {str(client.status) for client in rounds[0].clients} <= {
        "rejected:bad-signature",
        "failed:bad-signature",
        "rejected:bad-envelope",
        "failed:bad-envelope",
    }


def test_an_old_federation_cannot_be_replayed() -> None:
    seen: list[dict[str, Any]] = []
    grid = grid_of([small_mod(tuning=False)], seen)
    old: list[Message] = []
    deliver = grid.deliver

    def record(message: Message) -> Message:
        old.append(message)
        return deliver(message)

    grid.deliver = record  # type: ignore[method-assign]
    # Both runs have the same keys, as in a deployment.
    crypto = CryptoConfig(key_bits=512, allow_insecure_small_keys=True)
    import tempfile

    folder = Path(tempfile.gettempdir()) / "keys"
    bundles.save_bundles(folder, *kdc.generate(4, crypto))
    for node, context in grid.contexts.items():
        context.node_config |= {"keys": str(folder), "state-dir": str(folder.parent / f"state-{node}")}
    strategy = dapfl.flower.DapFL(keys=folder, fraction_evaluate=0.0, **SMALL)
    start(strategy, grid, rounds=1)
    recorded, _ = list(old), start(strategy, grid, rounds=1)
    trained = len(seen)
    replies = [deliver(message) for message in recorded if "dapfl-plan" in message.content]
    assert {reply.content["dapfl-failure"]["code"] for reply in replies} == {"old-federation"}
    assert len(seen) == trained


# Keys ------------------------------------------------------------------------------------------


def test_keys_of_a_simulation_are_private_and_gone_afterwards(tmp_path: Path) -> None:
    found: list[Path] = []
    modes: set[int] = set()

    def look(record: RoundRecord) -> None:
        found.extend(tmp_path.glob("dapfl-keys-*/*.keys"))
        modes.update(path.stat().st_mode & 0o777 for path in [*found, found[0].parent])

    strategy = dapfl.flower.DapFL(fraction_evaluate=0.0, on_round=look, **SMALL)
    start(strategy, grid_of([small_mod(tuning=False)]), rounds=1)
    assert len(found) == 5
    assert modes == {0o600, 0o700}
    assert not list(tmp_path.glob("dapfl-keys-*"))


def test_keys_of_a_deployment_say_who_a_node_is(tmp_path: Path) -> None:
    """Nodes without a partition-id, each with the folder of its own bundle, and a state-dir."""
    crypto = CryptoConfig(key_bits=512, allow_insecure_small_keys=True)
    server, clients = kdc.generate(4, crypto)
    bundles.save_bundle(bundles.bundle_path(tmp_path, None), server)
    seen: list[dict[str, Any]] = []
    grid = grid_of([small_mod(tuning=False)], seen)
    for (client, bundle), context in zip(clients.items(), reversed(grid.contexts.values()), strict=True):
        folder = tmp_path / f"node-{client}"
        folder.mkdir()
        bundles.save_bundle(bundles.bundle_path(folder, client), bundle)
        context.node_config |= {"keys": str(folder), "state-dir": str(folder / "state")}
    rounds: list[RoundRecord] = []
    strategy = dapfl.flower.DapFL(keys=tmp_path, on_round=rounds.append, **SMALL)
    start(strategy, grid)
    assert [client.samples for client in rounds[-1].clients] == [40, 30, 20, 10]
    assert (tmp_path / "node-1" / "state" / "client.state").stat().st_mode & 0o777 == 0o600
    # The same keys serve the next run of the app, too.
    start(strategy, grid)
    assert [record.participants for record in rounds] == [4] * 4


@pytest.mark.parametrize("says", ["nothing", "another's proof"])
def test_an_impostor_that_comes_first_does_not_take_a_clients_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, says: str
) -> None:
    """A node without keys says that it is client 2, before client 2 comes."""
    crypto = CryptoConfig(key_bits=512, allow_insecure_small_keys=True)
    bundles.save_bundles(tmp_path, *kdc.generate(4, crypto))
    grid = grid_of([small_mod(tuning=False)])
    for node, context in grid.contexts.items():
        context.node_config |= {"keys": str(tmp_path), "state-dir": str(tmp_path / f"state-{node}")}
    client_2 = grid.contexts.pop(101)
    grid.contexts = {101 + 100: client_2, **grid.contexts}
    impostor = ClientApp()

    @impostor.train()
    def lie(message: Message, context: Context) -> Message:
        if says == "nothing" or "dapfl-plan" in message.content:
            return Message(RecordDict({"dapfl-client": ConfigRecord({"client": 2})}), reply_to=message)
        return grid.apps[101](message, client_2)  # what client 2 says to the same question

    grid.apps[201] = impostor
    rounds: list[RoundRecord] = []

    def client_2_comes(record: RoundRecord) -> None:
        rounds.append(record)
        grid.contexts[101] = client_2

    grid.contexts[201] = Context(
        run_id=client_2.run_id, node_id=201, node_config={}, state=RecordDict(), run_config={}, series_id=1
    )
    strategy = dapfl.flower.DapFL(keys=tmp_path, fraction_evaluate=0.0, on_round=client_2_comes, **SMALL)
    with caplog.at_level("INFO", logger="flwr"):
        start(strategy, grid, rounds=3)
    assert [2 in record.cohort for record in rounds] == [False, True, True]
    assert "node 201 takes no part: it says that it is a client and does not prove it" in caplog.text


def test_a_node_that_is_late_is_named_and_joins_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    crypto = CryptoConfig(decryption="shared", key_bits=512, allow_insecure_small_keys=True)
    bundles.save_bundles(tmp_path / "keys", *kdc.generate(4, crypto))
    grid = grid_of([small_mod(tuning=False, decryption="shared", keys=tmp_path / "keys")])
    rounds: list[RoundRecord] = []
    everyone = grid.get_node_ids()
    monkeypatch.setattr(grid, "get_node_ids", lambda: everyone[: 4 if rounds else 3])
    strategy = dapfl.flower.DapFL(
        decryption="shared",
        keys=tmp_path / "keys",
        fraction_evaluate=0.0,
        on_round=rounds.append,
        **SMALL,
    )
    with caplog.at_level("INFO", logger="flwr"):
        start(strategy, grid, rounds=3)
    assert "beginning without client 4, who may come later" in caplog.text
    assert rounds[0].cohort == (1, 2, 3) and rounds[-1].cohort == (1, 2, 3, 4)


def test_a_member_of_the_committee_must_have_a_place_on_its_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower forgets a node's context when its SuperNode restarts: a member could be asked twice a round."""
    crypto = CryptoConfig(decryption="committee", key_bits=512, allow_insecure_small_keys=True)
    bundles.save_bundles(tmp_path / "keys", *kdc.generate(6, crypto))
    grid = grid_of([small_mod(tuning=False, decryption="committee", keys=tmp_path / "keys")], nodes=6)
    for node, context in grid.contexts.items():
        if node in (101, 102, 103, 104):  # 100 is a member as well, and 105 is not
            context.node_config["state-dir"] = str(tmp_path / f"state-{node}")
    rounds: list[RoundRecord] = []
    strategy = dapfl.flower.DapFL(
        decryption="committee", keys=tmp_path / "keys", fraction_evaluate=0.0, on_round=rounds.append, **SMALL
    )
    with caplog.at_level("INFO", logger="flwr"):
        start(strategy, grid, rounds=1)
    assert rounds[0].cohort == (2, 3, 4, 5, 6) and rounds[0].decrypted_by == (2, 3, 4, 5)
    assert "start its SuperNode with --node-config" in caplog.text
    assert "names no state-dir" in caplog.text


def test_too_few_nodes_are_said_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"2 nodes are connected.*3 are needed.*both need decryption='shared'"
    ):
        start(dapfl.flower.DapFL(**SMALL), grid_of([small_mod()], nodes=2))


def test_two_nodes_need_a_shared_key() -> None:
    two: dict[str, Any] = {"min_cohort": 2, "decryption": "shared"}
    result = start(dapfl.flower.DapFL(**SMALL, **two), grid_of([small_mod(**two)], nodes=2))
    assert (result.arrays["w"].numpy() != 0).all()
    with pytest.raises(ConfigError, match=r"choose --decryption shared"):
        start(dapfl.flower.DapFL(**SMALL, min_cohort=2), grid_of([small_mod(min_cohort=2)], nodes=2))


def test_a_federation_in_which_nobody_can_take_part_ends_with_a_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", logger="flwr"), pytest.raises(TransportError, match="0 of 4 clients"):
        start(dapfl.flower.DapFL(**SMALL), grid_of([]))
    assert "dapfl.flower.mod among its mods?" in caplog.text


def test_wrong_arguments_are_said_when_the_lines_are_written() -> None:
    with pytest.raises(ConfigError, match="deadline"):
        dapfl.flower.mod(deadline=0)
    with pytest.raises(ConfigError, match="fraction_train is 0"):
        dapfl.flower.DapFL(fraction_train=0.0)


# Numbers of any size ---------------------------------------------------------------------------


def raw_features(mods: list[Any], shape: tuple[int, ...]) -> ClientApp:
    """An app whose model has numbers as large as its data have."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from flwr.app import Array

        number = 1e6 * (1 + context.node_config["partition-id"])
        arrays = ArrayRecord({"w": Array(np.full(shape, number)), "var": Array(np.array([number**2]))})
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": 10})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def start_raw(shape: tuple[int, ...], rounds: list[RoundRecord], codec: Any = "exact") -> Result:
    from flwr.app import Array

    grid = Simulation(raw_features([small_mod(tuning=False)], shape), 3)
    arrays = ArrayRecord({"w": Array(np.zeros(shape)), "var": Array(np.ones(1))})
    strategy = dapfl.flower.DapFL(fraction_evaluate=0.0, codec=codec, on_round=rounds.append, **SMALL)
    return strategy.start(grid, arrays, num_rounds=1, timeout=60)


@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_small_arrays_may_have_numbers_of_any_size(codec: Any) -> None:
    rounds: list[RoundRecord] = []
    result = start_raw((64, 10), rounds, codec)
    assert [record.cohort for record in rounds] == [(1, 2, 3)]
    assert (result.arrays["w"].numpy() == 2e6).all()
    assert result.arrays["var"].numpy() == pytest.approx(1e12 * (1 + 4 + 9) / 3, rel=1e-6)


def test_a_large_array_beyond_its_range_is_named_in_the_log_of_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds: list[RoundRecord] = []
    with caplog.at_level("INFO", logger="flwr"):
        start_raw((64, 65), rounds)
    assert {client.status for client in rounds[0].clients} == {"diverged"}
    assert "Tensor 'w' cannot be encoded: entry 0 is 1e+06, beyond ±1024" in caplog.text
    assert (
        "client 1: diverged: its model has numbers that are not finite or too large; its log says which"
        in caplog.text
    )


# The examples ----------------------------------------------------------------------------------


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], tuple[ModuleType, ModuleType]]]:
    packages: list[str] = []

    def load(folder: str, package: str) -> tuple[ModuleType, ModuleType]:
        packages.append(package)
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))
        return (
            importlib.import_module(f"{package}.client_app"),
            importlib.import_module(f"{package}.server_app"),
        )

    yield load
    for name in [name for name in sys.modules if name.split(".")[0] in packages]:
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
@pytest.mark.parametrize(
    ("folder", "package", "metrics"),
    [
        ("flower-pytorch", "digits_pytorch", {"eval_loss", "eval_acc"}),
        ("flower-sklearn", "digits_sklearn", {"test_logloss", "accuracy"}),
    ],
)
def test_the_examples_are_flower_apps_that_learn(
    folder: str,
    package: str,
    metrics: set[str],
    example: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    import tomllib

    from flwr.cli.build import build_fab_from_disk

    assert len(build_fab_from_disk(EXAMPLES / folder)) < 100_000
    client, server = example(folder, package)
    settings = tomllib.loads((EXAMPLES / folder / "pyproject.toml").read_text())
    config = settings["tool"]["flwr"]["app"]["config"]
    results: list[Result] = []
    begin = dapfl.flower.DapFL.start

    def small_start(self: Any, *arguments: Any, **named: Any) -> Result:
        results.append(begin(self, *arguments, **named))
        return results[-1]

    monkeypatch.setattr(dapfl.flower.DapFL, "start", small_start)
    monkeypatch.chdir(tmp_path)
    grid = Simulation(client.app, 3, run_config=config)
    context = Context(1, 0, {}, RecordDict(), dict(config), 1)
    server.app(grid, context)
    (result,) = results
    assert set(result.evaluate_metrics_clientapp[3]) == metrics
    accuracy = next(name for name in metrics if "acc" in name)
    assert result.evaluate_metrics_clientapp[3][accuracy] > 0.85
