import functools
import hashlib
from dataclasses import replace
from importlib import resources

import msgspec
import numpy as np
import pytest

from dapfl import cli
from dapfl.config import ActionSpace, PolicyConfig
from dapfl.experiments import pretrain as module
from dapfl.experiments.episode import Episode, Rule
from dapfl.experiments.pretrain import (
    LEARNER,
    Exploration,
    Graded,
    Origin,
    Recipe,
    graded_federations,
    pretrain,
)
from dapfl.experiments.synthetic import SyntheticFederation
from dapfl.randomness import stream
from dapfl.resources import Resources
from dapfl.tuning import weights
from dapfl.tuning.action_space import ActionCodec
from dapfl.tuning.build import build_policy
from dapfl.tuning.ddpg import DDPG
from dapfl.tuning.mdp import History, rich_state
from dapfl.tuning.policy import Situation

SMALL = Recipe(
    episodes=4,
    federations=2,
    clients=5,
    lengths=(4, 2),
    lessons=1,
    averaged=0.5,
    agent=msgspec.structs.replace(LEARNER, batch=8, steps=1),
)
CODEC = ActionCodec(ActionSpace())


def quiet(advance: float = 1, note: str = "") -> None:
    del advance, note


@pytest.fixture(autouse=True)
def early_learning(monkeypatch):
    monkeypatch.setattr(module, "WARM_UP", 5)
    monkeypatch.setattr(module, "REFERENCE_ROUNDS", 2)


@functools.cache
def usual() -> weights.Weights:
    return pretrain(SMALL, quiet).weights()


def test_the_same_recipe_gives_the_same_weights():
    assert pretrain(SMALL, quiet).weights() == usual()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"episodes": 5},
        {"federations": 1},
        {"lengths": (2, 4)},
        {"prices": (0.5, 1.0)},
        {"lessons": 0},
        {"noise": 0.1},
        {"noise_decay": 0.5},
        {"noise_floor": 0.6},
        {"shared_noise": 0.1},
        {"hold": 1},
        {"averaged": 0.0},
    ],
)
def test_every_part_of_a_recipe_matters(change):
    assert pretrain(replace(SMALL, **change), quiet).weights() != usual()


def test_progress_counts_federations_and_episodes():
    moves = []
    pretrain(SMALL, lambda advance=1, note="": moves.append(advance))
    assert sum(moves) == SMALL.federations + SMALL.episodes


def test_an_episode_shows_each_client_what_its_own_policy_would_see():
    federation = SyntheticFederation(1, clients=5)
    episode = Episode(federation, CODEC, price=0.1, number=0)
    policy = build_policy(PolicyConfig(agent=msgspec.structs.replace(LEARNER, price=0.1)), seed=0, client=1)
    actions = np.tile(Rule(eta=0.1, alpha=4, last=1, rounds=9).action(0, CODEC), (5, 1))
    for _ in range(3):
        situation = episode.situations[2]
        policy.choose(situation)
        np.testing.assert_allclose(policy.record.state[:4], episode.states[2, :4], rtol=1e-6)
        step = episode.step(actions)
        assert step.choices[2].alpha == min(4, situation.affordable)
        assert np.array_equal(step.next_states, episode.states)
    assert episode.round == 3
    assert episode.states[2, 8] == pytest.approx(3 / 50)


def test_a_client_that_affords_nothing_takes_no_part(monkeypatch):
    federation = SyntheticFederation(2, clients=5)
    episode = Episode(federation, CODEC, price=0.1, number=0)
    monkeypatch.setattr(
        type(episode._processes[0]), "at", lambda self, t: Resources(1.0, 9.0, 1.0), raising=True
    )
    episode = Episode(federation, CODEC, price=0.1, number=0)
    before = federation.weights
    episode.step(np.zeros((5, 2), np.float32))
    assert federation.weights is before


def test_the_gap_falls_with_loss_and_error_and_stays_finite(monkeypatch):
    graded = Graded(SyntheticFederation(1, clients=5), best_loss=0.5, best_error=0.1)

    def gap(loss: float, accuracy: float) -> float:
        monkeypatch.setattr(graded.federation, "test", lambda: (loss, accuracy))
        return graded.gap()

    gaps = [
        gap(float("nan"), 0.0),
        gap(2.3, 0.1),
        gap(1.0, 0.1),
        gap(1.0, 0.5),
        gap(0.6, 0.88),
        gap(0.0, 1.0),
    ]
    assert np.isfinite(gaps).all()
    assert gaps == sorted(gaps, reverse=True)
    assert len(set(gaps)) == len(gaps)


def test_federations_alternate_between_kinds():
    recipe = replace(SMALL, federations=8)
    kinds = [graded.federation.hidden > 0 for graded in graded_federations(recipe, quiet)]
    assert kinds == [number % 4 in (1, 2) for number in range(8)]


def test_exploration_is_shared_and_held():
    recipe = replace(Recipe(), shared_noise=1.0, hold=2, noise=0.2, noise_decay=1.0)
    explore, rng = Exploration(recipe), stream(0, "noise")
    first, second, third = (explore(np.zeros((3, 2), np.float32), t, rng) for t in range(3))
    assert (first == first[0]).all()
    assert np.array_equal(first, second)
    assert not np.array_equal(second, third)


def test_a_rule_falls_along_a_cosine():
    rule = Rule(eta=0.1, alpha=6, last=0.1, rounds=10)
    plans = [CODEC.decode(rule.action(t, CODEC)) for t in (0, 5, 10, 50)]
    assert [plan.eta for plan in plans] == pytest.approx([0.1, 0.055, 0.01, 0.01], rel=1e-4)
    assert {plan.alpha for plan in plans} == {6}


def test_the_command_writes_weights_that_an_agent_can_start_from(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "Recipe", lambda: SMALL)
    path = tmp_path / "weights.msgpack"
    assert cli.main(["pretrain", "--out", str(path), "--seed", "3", "--episodes", "2"]) == 0
    assert str(path) in capsys.readouterr().out
    origin = msgspec.json.decode((tmp_path / "weights.msgpack.json").read_bytes(), type=Origin)
    assert origin.command == "dapfl pretrain --seed 3 --episodes 2 --federations 2"
    assert origin.recipe == replace(SMALL, seed=3, episodes=2)
    assert origin.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    started = DDPG(LEARNER, ActionSpace(), stream(9, "x"))
    started.load_weights(weights.load(str(path)))
    assert started.weights().actor == pretrain(origin.recipe, quiet).weights().actor


@pytest.mark.parametrize(
    "arguments",
    [
        ["--out", "absent/w.msgpack"],
        ["--out", "w.msgpack", "--episodes", "0"],
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
    plan = chosen(packaged, seen(0, np.log(10), 0.1, affordable=30), price=0.2)
    assert plan.eta >= 0.05
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
        cheap, usual, dear = (chosen(packaged, situation, price, past).alpha for price in (0.2, 0.4, 0.8))
        assert cheap > usual > dear
