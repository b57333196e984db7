"""The rival DQN."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from dapfl.config import ActionSpace, Axis, DQNConfig, PolicyConfig
from dapfl.errors import ConfigError, PolicyError
from dapfl.tuning import AgentRecord, Choice, Outcome, Situation, build_policy
from dapfl.tuning.buffer import Transitions
from dapfl.tuning.dqn import DQN, DQNPolicy

SPACE = ActionSpace(
    eta=Axis(low=1e-4, high=1e-2, scale="log", pinned=1e-3), alpha=Axis(low=1, high=28, integer=True)
)
QUICK = DQNConfig(hidden=(8, 8), rate=1e-2, batch=4, steps=2, buffer=6, explore=0.5, explore_decay=0.9)


def policy_of(dqn: DQNConfig = QUICK, client: int = 1) -> DQNPolicy:
    config = PolicyConfig(kind="dqn", capped=False, space=SPACE, dqn=dqn)
    policy = build_policy(config, seed=1, client=client)
    assert isinstance(policy, DQNPolicy)
    return policy


def situation(round_: int) -> Situation:
    return Situation(round_, 20, 2.3 * 0.9**round_, 0.1 + round_ / 30, 0.1 + round_ / 40, 20.0, 1.5, 1.0, 600)


def live(policy: DQNPolicy, rounds: range) -> list[tuple[Choice, AgentRecord]]:
    lived = []
    for round_ in rounds:
        choice = policy.choose(situation(round_))
        policy.observe(Outcome(True))
        lived.append((choice, policy.record))
    return lived


def test_levels_span_the_axis_and_eta_is_pinned() -> None:
    choices = [choice for choice, _ in live(policy_of(DQNConfig(explore=1.0, explore_decay=1.0)), range(80))]
    assert {choice.alpha for choice in choices} == {1, 4, 7, 10, 13, 16, 19, 22, 25, 28}
    assert {choice.eta for choice in choices} == {1e-3}


def test_plan_over_budget_is_penalised() -> None:
    for choice, later in zip(live(policy_of(), range(20)), live(policy_of(), range(20))[1:], strict=False):
        over = situation(0).cost(choice[0].planned_alpha) > 20.0
        parts = later[1].reward_parts
        assert parts.get("penalty", 0.0) == (-0.5 if over else 0.0)
        assert later[1].reward == pytest.approx(sum(parts.values()))


def test_one_step_is_the_temporal_difference_of_the_level_taken() -> None:
    dqn = DQN(
        DQNConfig(hidden=(6,), levels=3, steps=1, batch=1, gamma=0.8, rate=1e-3), np.random.default_rng(0)
    )
    theta = np.random.default_rng(1).normal(0, 0.5, dqn.q.network.size).astype(np.float32)
    dqn.q.load(theta)
    s, s2 = np.array([1.0, 0.5, 0.2], np.float32), np.array([0.5, 0.7, 0.4], np.float32)
    dqn.buffer.add(Transitions.one(s, np.array([2.0], np.float32), 0.3, s2, np.zeros(5, np.float32)))

    def q(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
        hidden = np.maximum(x @ weights[:18].reshape(3, 6) + weights[18:24], 0)
        return hidden @ weights[24:42].reshape(6, 3) + weights[42:]

    y = 0.3 + 0.8 * q(theta, s2).max()
    assert dqn.learn(np.random.default_rng(0)) == pytest.approx((q(theta, s)[2] - y) ** 2, rel=1e-4)
    step = np.zeros(45)
    for i in range(45):
        up, down = theta.astype(np.float64), theta.astype(np.float64)
        up[i] += 1e-6
        down[i] -= 1e-6
        step[i] = ((q(up, s)[2] - y) ** 2 - (q(down, s)[2] - y) ** 2) / 2e-6
    assert dqn.q.mean == pytest.approx(0.1 * step, abs=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    {
        "levels": 5, "hidden": (8, 9), "activation": "tanh", "rate": 1e-3, "gamma": 0.5, "beta": 0.5,
        "batch": 3, "steps": 1, "buffer": 9, "explore": 0.8, "explore_decay": 0.5, "explore_floor": 0.4,
        "xi": (2.0, 1.0, 1.0), "penalty": 1.0,
    }.items(),
)  # fmt: skip
def test_every_field_of_the_config_changes_behaviour(field: str, value: object) -> None:
    assert field in DQNConfig.__struct_fields__ and len(DQNConfig.__struct_fields__) == 14
    changed = msgspec.structs.replace(QUICK, **{field: value})
    assert live(policy_of(changed), range(25)) != live(policy_of(), range(25))


@pytest.mark.parametrize("stop", [0, 1, 9])
def test_restored_policy_continues_bit_for_bit(stop: int) -> None:
    policy, other = policy_of(), policy_of()
    live(policy, range(stop))
    other.restore(policy.saved_state())
    assert live(other, range(stop, 14)) == live(policy, range(stop, 14))
    assert other.saved_state() == policy.saved_state()


def test_dqn_learns_the_level_that_pays() -> None:
    """A world where 10 epochs are best; its loss resets every round, so only the choice matters."""
    dqn = DQNConfig(
        hidden=(32,), rate=1e-2, gamma=0.0, steps=16, explore=1.0, explore_decay=0.95, penalty=0.0
    )
    policy = policy_of(dqn)
    loss, chosen = 2.0, []
    for round_ in range(90):
        choice = policy.choose(replace(situation(0), round=round_, loss=loss, budget=100.0))
        chosen.append(choice.alpha)
        loss = 2.0 + 0.1 * abs(choice.alpha - 10)  # next round's loss judges this choice
    assert (
        np.mean([abs(alpha - 10) for alpha in chosen[-20:]]) < 4 < np.mean([abs(a - 10) for a in chosen[:20]])
    )


def test_diverged_models_never_poison_the_network() -> None:
    policy = policy_of()
    for round_ in range(10):
        policy.choose(replace(situation(round_), loss=math.nan, accuracy=math.inf, f1=-math.inf))
    assert np.isfinite(policy.dqn.q.main).all()


def test_dqn_that_should_choose_eta_is_refused() -> None:
    with pytest.raises(ConfigError, match="chooses α and nothing else"):
        build_policy(PolicyConfig(kind="dqn"), 0, 1)


def test_state_of_something_else_is_refused() -> None:
    with pytest.raises(PolicyError, match="not the state of a DQN"):
        policy_of().restore(b"\x01")
