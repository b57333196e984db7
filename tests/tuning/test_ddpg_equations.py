"""Eqs 24-29 against arithmetic written out here in float64, with derivatives by finite differences.

Nothing of `dapfl.tuning.network` is used to compute an expected value.
"""

import math
from itertools import pairwise

import numpy as np
import pytest

from dapfl.config import ActionSpace, AgentConfig, Axis
from dapfl.tuning.buffer import Transitions
from dapfl.tuning.ddpg import DDPG

PAPER_SPACE = ActionSpace(
    eta=Axis(low=1e-4, high=1e-2, scale="log"), alpha=Axis(low=1, high=40, integer=True)
)
LOG_SPACE = ActionSpace()
PAPER = AgentConfig(
    state="paper", hidden=(10, 5), activation="tanh", actor_rate=1e-3, critic_rate=1e-3, lambda_rate=1e-2,
    gamma=0.99, beta=0.1, twin=False, project=False, constraint="linear", saturation=0.0, lambda_start=0.7,
    warm_start=None,
)  # fmt: skip
BEYOND = AgentConfig(
    state="paper", hidden=(10, 5), actor_rate=1e-3, critic_rate=1e-3, lambda_rate=1e-2, gamma=0.9, beta=0.1,
    twin=False, project=True, constraint="hinge", tolerance=0.05, saturation=0.02, lambda_start=0.7,
    warm_start=None,
)  # fmt: skip
CASES = pytest.mark.parametrize(
    ("config", "space"),
    [(PAPER, PAPER_SPACE), (PAPER, LOG_SPACE), (BEYOND, PAPER_SPACE), (BEYOND, LOG_SPACE)],
)


# The arithmetic, by hand -----------------------------------------------------------------------


def net(theta: np.ndarray, sizes: list[int], activation: str, x: list[float]) -> list[float]:
    """One row through a network whose weights lie as matrix, bias, matrix, bias..."""
    at, row = 0, np.array(x, np.float64)
    for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        columns = theta[at : at + fan_in * fan_out].reshape(fan_in, fan_out)
        at += fan_in * fan_out
        row = (row[:, None] * columns).sum(axis=0) + theta[at : at + fan_out]
        at += fan_out
        if layer < len(sizes) - 2:
            row = np.tanh(row) if activation == "tanh" else np.where(row > 0, row, 0.0)
    return row.tolist()


def mu(agent: DDPG, theta: np.ndarray, state: list[float]) -> list[float]:
    raw = net(theta, [3, 10, 5, 2], agent.config.activation, state)
    return [math.tanh(v) for v in raw]


def q(agent: DDPG, theta: np.ndarray, state: list[float], action: list[float]) -> float:
    return net(theta, [5, 10, 5, 1], agent.config.activation, [*state, *action])[0]


def alpha_of(agent: DDPG, a: float) -> float:
    axis = agent.codec.space.alpha
    position = (a + 1) / 2
    if axis.scale == "log":
        return axis.low * (axis.high / axis.low) ** position
    return axis.low + position * (axis.high - axis.low)


def b(agent: DDPG, action: list[float], limits: list[float]) -> float:
    """(α·E_cpt + 2·E_cmu - E)/E."""
    return alpha_of(agent, action[1]) * limits[0] + limits[1] - 1


def capped(agent: DDPG, action: list[float], cap: float) -> list[float]:
    return [action[0], min(action[1], cap)] if agent.config.project else action


def objective(agent: DDPG, theta: np.ndarray, batch: Transitions) -> float:
    """J = mean Q(s, μ(s)) - λ·b, for the configured form of the penalty."""
    total = 0.0
    for s, limits in zip(batch.states.tolist(), batch.limits.tolist(), strict=True):
        action = mu(agent, theta, s)
        over = b(agent, action, limits)
        if agent.config.constraint == "hinge":
            over = max(over, 0.0)
        raw = net(theta, [3, 10, 5, 2], agent.config.activation, s)
        total += q(agent, agent.critics[0].main, s, capped(agent, action, limits[2]))
        total -= agent.lambda_ * over + agent.config.saturation * sum(v * v for v in raw)
    return total / len(batch.rewards)


def numerical_gradient(function, theta: np.ndarray) -> np.ndarray:
    theta = theta.astype(np.float64)
    gradient, step = np.zeros_like(theta), 1e-5
    for i in range(len(theta)):
        up, down = theta.copy(), theta.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (function(up) - function(down)) / (2 * step)
    return gradient


def first_adam_step(gradient: np.ndarray, rate: float) -> np.ndarray:
    """Adam's first step: the corrected moments are the gradient and its square."""
    return rate * gradient / (np.abs(gradient) + 1e-8)


# The agent under test --------------------------------------------------------------------------


def agent_and_batch(config: AgentConfig, space: ActionSpace, count: int = 6) -> tuple[DDPG, Transitions]:
    rng = np.random.default_rng(3)
    agent = DDPG(config, space, rng)
    for pair in (agent.actor, *agent.critics):  # MainNet and TargetNet apart, and far from zero
        pair.load(rng.normal(0, 0.4, pair.network.size).astype(np.float32))
        pair.target = rng.normal(0, 0.4, pair.network.size).astype(np.float32)
    batch = Transitions(
        rng.normal(0, 1, (count, 3)).astype(np.float32),
        rng.uniform(-1, 1, (count, 2)).astype(np.float32),
        rng.normal(0, 1, count).astype(np.float32),
        rng.normal(0, 1, (count, 3)).astype(np.float32),
        np.column_stack(
            (
                rng.uniform(0.02, 0.2, count),
                rng.uniform(0, 0.1, count),
                rng.uniform(-0.9, 0.9, (count, 2)),
                np.arange(count) % 3 != 1,  # in some rows the run ends
            )
        ).astype(np.float32),
    )
    return agent, batch


@CASES
def test_target_value_is_equation_24(config: AgentConfig, space: ActionSpace) -> None:
    agent, batch = agent_and_batch(config, space)
    y = agent.targets(batch, np.random.default_rng(0))
    for k in range(len(y)):
        s2 = batch.next_states[k].tolist()
        a2 = capped(agent, mu(agent, agent.actor.target, s2), float(batch.limits[k, 3]))
        expected = float(batch.rewards[k])
        if k % 3 != 1:  # nothing follows the last round
            expected += config.gamma * q(agent, agent.critics[0].target, s2, a2)
        assert y[k] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_target_value_of_twins_is_the_smaller_one_near_the_target_action() -> None:
    config = AgentConfig(**{**{f: getattr(PAPER, f) for f in PAPER.__struct_fields__}, "twin": True})
    agent, batch = agent_and_batch(config, PAPER_SPACE)
    y = agent.targets(batch, np.random.default_rng(0))
    noise = np.clip(0.1 * np.random.default_rng(0).standard_normal((6, 2), dtype=np.float32), -0.3, 0.3)
    for k in range(len(y)):
        s2 = batch.next_states[k].tolist()
        a2 = [
            min(max(a + float(n), -1), 1)
            for a, n in zip(mu(agent, agent.actor.target, s2), noise[k], strict=True)
        ]
        values = [q(agent, critic.target, s2, a2) for critic in agent.critics]
        later = 0.0 if k % 3 == 1 else config.gamma * min(values)
        assert y[k] == pytest.approx(float(batch.rewards[k]) + later, rel=1e-5, abs=1e-5)
        assert values[0] != pytest.approx(values[1])


@CASES
def test_critic_step_is_equations_25_and_26(config: AgentConfig, space: ActionSpace) -> None:
    agent, batch = agent_and_batch(config, space)
    y = np.linspace(-1, 1, 6).astype(np.float32)
    before = agent.critics[0].main.copy()

    def loss(theta: np.ndarray) -> float:
        errors = [
            float(y[k]) - q(agent, theta, batch.states[k].tolist(), batch.actions[k].tolist())
            for k in range(6)
        ]
        return sum(e * e for e in errors) / 6

    gradient = numerical_gradient(loss, before)
    assert agent.update_critics(batch, y) == pytest.approx(loss(before), rel=1e-5)
    assert agent.critics[0].main == pytest.approx(
        before - first_adam_step(gradient, config.critic_rate), abs=2e-5
    )
    # Adam's first moment is a tenth of the gradient itself, sign and size:
    assert agent.critics[0].mean == pytest.approx(0.1 * gradient, abs=1e-5)


@CASES
def test_actor_step_is_equation_27_with_the_penalty(config: AgentConfig, space: ActionSpace) -> None:
    agent, batch = agent_and_batch(config, space)
    before = agent.actor.main.copy()
    ascent = numerical_gradient(lambda theta: objective(agent, theta, batch), before)
    expected = objective(agent, before, batch)
    violations, actor_loss = agent.update_actor(batch)
    assert actor_loss == pytest.approx(-expected, rel=1e-5)
    assert agent.actor.mean == pytest.approx(-0.1 * ascent, abs=1e-5)
    assert objective(agent, agent.actor.main, batch) > expected  # a step up
    for k in range(6):
        action = mu(agent, before, batch.states[k].tolist())
        assert violations[k] == pytest.approx(b(agent, action, batch.limits[k].tolist()), abs=1e-5)


@pytest.mark.parametrize("space", [PAPER_SPACE, LOG_SPACE])
def test_penalty_adds_minus_lambda_db_dalpha_to_the_actor_gradient(space: ActionSpace) -> None:
    """The difference that λ makes is -λ·∂b/∂α·∂α/∂θ, and it touches the α output only."""
    gradients = []
    for lambda_ in (0.0, 2.5):
        agent, batch = agent_and_batch(PAPER, space)
        agent.lambda_ = lambda_
        agent.update_actor(batch)
        gradients.append(-agent.actor.mean / 0.1)

    def mean_b(theta: np.ndarray) -> float:
        pairs = zip(batch.states.tolist(), batch.limits.tolist(), strict=True)
        return sum(b(agent, mu(agent, theta, s), limits) for s, limits in pairs) / 6

    fresh, _ = agent_and_batch(PAPER, space)
    expected = -2.5 * numerical_gradient(mean_b, fresh.actor.main)
    assert gradients[1] - gradients[0] == pytest.approx(expected, abs=2e-5)
    assert np.abs(expected).max() > 0.05
    eta_bias = -2  # the last layer's biases are (η, α)
    assert expected[eta_bias] == 0.0 and expected[-1] != 0.0


def test_violation_of_a_pinned_alpha_has_no_gradient() -> None:
    space = ActionSpace(alpha=Axis(low=1, high=40, integer=True, pinned=16))
    agent = DDPG(PAPER, space, np.random.default_rng(0))
    limits = np.array([[0.1, 0.05, 0, 0, 1]], np.float32)
    violations, slope = agent.constraint(np.zeros((1, 1), np.float32), limits)
    assert violations == pytest.approx([16 * 0.1 + 0.05 - 1])
    assert not slope.any()


@pytest.mark.parametrize(
    ("config", "lambda_", "b_values", "expected"),
    [
        (PAPER, 0.7, [0.5, -0.1], 0.7 + 1e-2 * 0.2),  # over budget: dearer
        (PAPER, 0.7, [-0.5, -0.3], 0.7 - 1e-2 * 0.4),  # within: cheaper
        (PAPER, 0.001, [-0.5, -0.5], 0.0),  # projected
        (BEYOND, 0.7, [0.5, -0.1], 0.7 + 1e-2 * (0.25 - 0.05)),
        (BEYOND, 0.0001, [-0.5, -0.5], 0.0),
    ],
)
def test_dual_step_is_equation_29_projected(
    config: AgentConfig, lambda_: float, b_values: list[float], expected: float
) -> None:
    agent, _ = agent_and_batch(config, PAPER_SPACE)
    agent.lambda_ = lambda_
    agent.update_lambda(np.array(b_values, np.float32))
    assert agent.lambda_ == pytest.approx(expected, abs=1e-7)


def test_soft_update_is_equation_28() -> None:
    agent, batch = agent_and_batch(PAPER, PAPER_SPACE)
    agent.update_critics(batch, batch.rewards)
    agent.update_actor(batch)
    for pair in (agent.actor, *agent.critics):
        pair.target = np.random.default_rng(1).normal(size=pair.network.size).astype(np.float32)
        main, target = pair.main.copy(), pair.target.copy()
        pair.follow(0.1)
        assert pair.target == pytest.approx(0.1 * main + 0.9 * target, abs=1e-6)
        assert np.array_equal(pair.main, main)


def test_learn_is_these_steps_in_the_papers_order() -> None:
    agent, batch = agent_and_batch(PAPER, PAPER_SPACE)
    other, _ = agent_and_batch(PAPER, PAPER_SPACE)
    for each in (agent, other):
        for pair in (each.actor, *each.critics):
            pair.target = pair.main
        each.store(batch)
    learned = agent.learn(np.random.default_rng(4), steps=3)
    rng, losses = np.random.default_rng(4), []
    for _ in range(3):
        sample = other.buffer.sample(6, rng)
        losses.append(other.update_critics(sample, other.targets(sample, rng)))
        violations, _ = other.update_actor(sample)
        other.update_lambda(violations)
        for pair in (other.actor, *other.critics):
            pair.follow(PAPER.beta)
    assert learned is not None and learned.critic_loss == pytest.approx(np.mean(losses))
    assert agent.lambda_ == other.lambda_ != PAPER.lambda_start
    assert np.array_equal(agent.actor.target, other.actor.target)
    assert np.array_equal(agent.critics[0].main, other.critics[0].main)
