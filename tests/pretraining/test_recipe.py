import functools
import hashlib
import math
from dataclasses import replace
from importlib import resources

import msgspec
import numpy as np
import pytest

from dapfl import cli
from dapfl.config import ActionSpace, PolicyConfig
from dapfl.pretraining import recipe as module
from dapfl.pretraining.episode import Episode, Rule
from dapfl.pretraining.recipe import (
    LEARNER,
    Lessons,
    Life,
    Origin,
    Recipe,
    gap,
    lessons,
    lives,
    pretrain,
    teach,
)
from dapfl.pretraining.synthetic import Kind, SyntheticFederation
from dapfl.randomness import stream
from dapfl.resources import Resources
from dapfl.tuning import weights
from dapfl.tuning.action_space import ActionCodec
from dapfl.tuning.build import build_policy
from dapfl.tuning.ddpg import DDPG
from dapfl.tuning.mdp import History, rich_state
from dapfl.tuning.policy import Situation

SMALL = Recipe(
    federations=2,
    clients=3,
    lengths=(3, 2),
    etas=(0.5, 2.0),
    lasts=(0.2,),
    alphas=(2, 30),
    prices=(0.1, 1.0),
    actor_steps=20,
    critic_steps=3,
    agent=msgspec.structs.replace(LEARNER, batch=8),
)
CODEC = ActionCodec(ActionSpace())
KIND = Kind(
    images=True, classes=10, hidden=(), activation="relu", normalised=False, scale=1.0, samples=100.0,
    dirichlet=None,
)  # fmt: skip


def quiet(advance: float = 1, note: str = "") -> None:
    del advance, note


class InOneProcess:
    """Stands in for the pool of processes, which would take longer to start than all the work here."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    map = staticmethod(map)


@pytest.fixture
def in_one_process(monkeypatch):
    monkeypatch.setattr(module, "ProcessPoolExecutor", InOneProcess)


@functools.cache
def usual() -> weights.Weights:
    return pretrain(SMALL, quiet).weights()


def test_the_same_recipe_gives_the_same_weights_however_many_processes_work(in_one_process, monkeypatch):
    here = usual()
    monkeypatch.undo()
    assert pretrain(SMALL, quiet).weights() == here


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"federations": 1},
        {"clients": 4},
        {"lengths": (2, 3)},
        {"etas": (0.5, 1.0)},
        {"lasts": (1.0,)},
        {"alphas": (5, 30)},
        {"softness": 5.0},
        {"prices": (0.5, 1.0)},
        {"actor_steps": 21},
        {"critic_steps": 4},
        {"agent": msgspec.structs.replace(SMALL.agent, batch=9)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_a_recipe_matters(change, in_one_process):
    assert pretrain(replace(SMALL, **change), quiet).weights() != usual()


def test_progress_counts_federations(in_one_process):
    moves = []
    pretrain(SMALL, lambda advance=1, note="": moves.append(advance))
    assert sum(moves) == SMALL.federations


def test_every_schedule_is_tried_in_every_federation():
    played = lives(SMALL, 0)
    assert [life.rule for life in played] == SMALL.rules(3) and len(played) == 4
    for life in played:
        assert life.states.shape == life.next_states.shape == (3, 3, 15)
        assert life.executed.shape == (3, 3, 2) and life.shares.shape == (3, 3) and len(life.gaps) == 4
        assert np.array_equal(life.states[1:], life.next_states[:-1])
        assert life.limits[:, 0, 4].tolist() == [1, 1, 0]  # the run ends with the last round
        assert (life.shares * life.affordable <= np.minimum(life.rule.alpha, life.affordable) + 0.5).all()


def made_up(gaps: list[float], share: float, eta: float = 1.0) -> Life:
    rounds = len(gaps) - 1
    states = np.zeros((rounds, 2, 15), np.float32)
    return Life(
        Rule(eta, round(20 * share), 1.0, rounds), states, np.zeros((rounds, 2, 2), np.float32),
        np.ones((rounds, 2, 5), np.float32), states, np.full((rounds, 2), 20.0, np.float32),
        np.full((rounds, 2), share, np.float32), np.array(gaps, np.float32),
    )  # fmt: skip


def test_a_life_is_worth_its_progress_less_the_price_of_its_work():
    life = made_up([1.0, 0.2, -6.0], share=0.6)
    work = [0.6 / 3, 0.6 / 4]  # of rounds 0 and 1 at a price of 1
    assert life.value(0.0) == pytest.approx(7.0)
    assert life.value(0.5) == pytest.approx(7.0 - 0.5 * sum(work))
    expected = [[0.8 - 0.5 * work[0]] * 2, [4.0 - 0.5 * work[1]] * 2]  # a leap counts 4 at most
    np.testing.assert_allclose(life.rewards(0.5), expected, rtol=1e-5)


def test_the_actor_is_taught_the_best_schedule_for_each_price_in_all_states():
    diligent, idle = made_up([1.0, 0.0, -2.0], share=1.0), made_up([1.0, 0.6, -1.8], share=0.1, eta=0.3)
    taught = lessons(replace(SMALL, prices=(0.01, 1.0), softness=0.01), [[idle, diligent]])
    assert diligent.value(0.01) > idle.value(0.01) and diligent.value(1.0) < idle.value(1.0)
    half = len(taught.states) // 2
    assert half == 2 * 2 * 2  # lives, rounds, clients
    for rows, life, feature in (
        (slice(half), diligent, -1.0),
        (slice(half, None), idle, 1.0),
    ):
        wanted = [CODEC.axes["eta"].encode(life.rule.eta), CODEC.alpha.encode(life.rule.alpha)]
        np.testing.assert_allclose(taught.actions[rows], [wanted] * half, atol=1e-6)
        np.testing.assert_allclose(taught.states[rows, 11], feature)


def test_schedules_of_equal_worth_are_taught_as_their_mean():
    same = [made_up([1.0, 0.0, -2.0], share=1.0, eta=eta) for eta in (0.1, 1.0)]
    taught = lessons(replace(SMALL, prices=(0.1,)), [same])
    axis = CODEC.axes["eta"]
    np.testing.assert_allclose(taught.actions[:, 0], axis.encode(math.sqrt(0.1)), atol=1e-6)


def test_teaching_brings_the_actor_to_the_lessons_but_not_by_the_last_action():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(4000, 15)).astype(np.float32)
    actions = np.stack((0.8 * np.sign(states[:, 0]), states[:, 4].clip(-1, 1)), 1).astype(np.float32)
    agent = DDPG(LEARNER, ActionSpace(), stream(0, "x"))
    teach(agent, replace(SMALL, actor_steps=600, agent=replace_batch(64)), Lessons(states, actions))
    fresh = rng.normal(size=(1000, 15)).astype(np.float32)
    said = agent.act(fresh)
    assert np.mean(np.sign(said[:, 0]) == np.sign(fresh[:, 0])) > 0.9
    # What only the last action tells cannot be learned.
    assert abs(np.corrcoef(said[:, 1], fresh[:, 4])[0, 1]) < 0.4


def replace_batch(batch: int):
    return msgspec.structs.replace(LEARNER, batch=batch)


def test_an_episode_shows_each_client_what_its_own_policy_would_see():
    federation = SyntheticFederation(1, KIND, clients=5)
    episode = Episode(federation, CODEC, price=0.1, number=0, rounds=9)
    policy = build_policy(PolicyConfig(agent=msgspec.structs.replace(LEARNER, price=0.1)), seed=0, client=1)
    actions = Rule(eta=0.5, alpha=30, last=1, rounds=9).actions(0, np.full(5, 4.0), CODEC)
    own = [0, 1, 2, 3, 11, 12, 13, 14]  # all but the memory of what was done
    for t in range(3):
        situation = episode.situations[2]
        assert (situation.round, situation.rounds) == (t, 9)
        assert situation.reference_loss == pytest.approx(math.log(10))
        policy.choose(situation)
        seen = np.array(policy.record.state)
        np.testing.assert_allclose(seen[own], episode.states[2, own], rtol=1e-6)
        step = episode.step(actions)
        assert step.choices[2].alpha <= min(4, situation.affordable)
        assert np.array_equal(step.next_states, episode.states)
    assert episode.round == 3
    assert episode.states[2, 8] == pytest.approx(3 / 50)


def test_clients_of_an_episode_find_their_unit_within_their_budgets():
    federation = SyntheticFederation(1, KIND, clients=5)
    episode = Episode(federation, CODEC, price=0.1, number=0, rounds=9)
    full = [process.at(0).affordable for process in episode._processes]
    left = [situation.affordable for situation in episode.situations]
    whole = [situation.affordable for situation in episode._whole]
    taken = [before - now for before, now in zip(full, whole, strict=True)]
    assert all(now <= max(1, 0.5 * of) for now, of in zip(left, whole, strict=True))
    assert episode.trials == sum(taken) > 0
    for before, trials in zip(full, taken, strict=True):
        assert trials <= min(6, before // 2)
    actions = Rule(eta=1.0, alpha=4, last=1, rounds=9).actions(0, np.array(left, np.float32), CODEC)
    units = [unit.unit for unit in episode._units]
    step = episode.step(actions)
    for choice, unit in zip(step.choices, units, strict=True):
        assert choice.eta == pytest.approx(unit, rel=1e-4) or choice.eta == pytest.approx(
            0.3 * unit, rel=1e-4
        )


def test_a_client_that_affords_nothing_takes_no_part(monkeypatch):
    federation = SyntheticFederation(2, KIND, clients=5)
    episode = Episode(federation, CODEC, price=0.1, number=0, rounds=9)
    monkeypatch.setattr(
        type(episode._processes[0]), "at", lambda self, t: Resources(1.0, 9.0, 1.0), raising=True
    )
    episode = Episode(federation, CODEC, price=0.1, number=0, rounds=9)
    before = federation.weights
    episode.step(np.zeros((5, 2), np.float32))
    assert federation.weights is before


def test_the_gap_falls_with_loss_and_error_and_stays_finite(monkeypatch):
    federation = SyntheticFederation(1, KIND, clients=5)

    def at(loss: float, accuracy: float) -> float:
        monkeypatch.setattr(federation, "test", lambda: (loss, accuracy))
        return gap(federation)

    gaps = [at(math.nan, 0.0), at(2.3, 0.1), at(1.0, 0.1), at(1.0, 0.5), at(0.6, 0.88), at(0.0, 1.0)]
    assert np.isfinite(gaps).all()
    assert gaps == sorted(gaps, reverse=True)
    assert len(set(gaps)) == len(gaps)
    assert at(0.5, 0.8) == pytest.approx(0.25 * math.log(0.5) + math.log(0.2))


def test_a_rule_falls_along_a_cosine():
    rule = Rule(eta=1.0, alpha=6, last=0.1, rounds=10)
    affordable = np.array([12.0, 4.0])
    plans = [[CODEC.decode(row) for row in rule.actions(t, affordable, CODEC)] for t in (0, 5, 10, 50)]
    assert [strong.eta for strong, _ in plans] == pytest.approx([1.0, 0.55, 0.1, 0.1], rel=1e-4)
    assert {(strong.alpha, weak.alpha) for strong, weak in plans} == {(6, 4)}


def test_the_command_writes_weights_that_an_agent_can_start_from(
    tmp_path, monkeypatch, capsys, in_one_process
):
    monkeypatch.setattr(module, "Recipe", lambda: SMALL)
    path = tmp_path / "weights.msgpack"
    assert cli.main(["pretrain", "--out", str(path), "--seed", "3", "--federations", "1"]) == 0
    assert str(path) in capsys.readouterr().out
    origin = msgspec.json.decode((tmp_path / "weights.msgpack.json").read_bytes(), type=Origin)
    assert origin.command == "dapfl pretrain --seed 3 --federations 1"
    assert origin.recipe == replace(SMALL, seed=3, federations=1)
    assert origin.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    started = DDPG(LEARNER, ActionSpace(), stream(9, "x"))
    started.load_weights(weights.load(str(path)))
    assert started.weights().actor == pretrain(origin.recipe, quiet).weights().actor


@pytest.mark.parametrize(
    "arguments",
    [
        ["--out", "absent/w.msgpack"],
        ["--out", "w.msgpack", "--federations", "0"],
        ["--out", "w", "--seed", "-1"],
    ],
)
def test_a_mistake_in_the_command_is_one_sentence(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["pretrain", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# What the packaged weights promise --------------------------------------------------------------


@pytest.fixture(scope="module")
def packaged() -> DDPG:
    agent = DDPG(LEARNER, ActionSpace(), stream(0, "x"))
    agent.load_weights(weights.load("packaged"))
    return agent


def seen(round_: int, loss: float, accuracy: float, affordable: int) -> Situation:
    return Situation(
        round=round_,
        rounds=60,
        loss=loss,
        accuracy=accuracy,
        f1=accuracy,
        budget=affordable + 2.5,
        epoch_cost=1.0,
        transfer_cost=1.0,
        samples=600,
        reference_loss=math.log(10),
    )


def chosen(agent: DDPG, situation: Situation, price: float, history: History | None = None):
    state = rich_state(situation, history or History(), price, agent.codec)
    return agent.codec.decode(agent.act(state[None])[0])


def test_the_packaged_weights_are_small_and_say_where_they_come_from():
    folder = resources.files("dapfl.tuning")
    content = folder.joinpath(weights.PACKAGED).read_bytes()
    origin = msgspec.json.decode(folder.joinpath(weights.PACKAGED + ".json").read_bytes(), type=Origin)
    assert len(content) < 200_000
    assert origin.sha256 == hashlib.sha256(content).hexdigest()
    assert weights.load("packaged").made_by == origin.command
    assert origin.recipe == Recipe()  # what `dapfl pretrain` does today is what made the file


def test_the_first_round_is_not_timid(packaged):
    plan = chosen(packaged, seen(0, np.log(10), 0.1, affordable=30), price=0.1)
    assert plan.eta >= 0.2  # in the unit that the client found
    assert plan.alpha >= 4


def test_a_higher_price_buys_fewer_epochs(packaged):
    history = History(
        action=(0.8, 0.2), global_gain=0.05, local_gain=0.3, smoothed_gain=0.08, deviation=0.03, count=4
    )
    situations = [
        (seen(0, np.log(10), 0.1, 30), None),
        (seen(4, 0.5, 0.86, 30), history),
        (seen(4, 0.5, 0.86, 12), history),
    ]
    for situation, past in situations:
        cheap, usual, dear = (chosen(packaged, situation, price, past).alpha for price in (0.01, 0.1, 1.0))
        assert cheap > usual > dear
