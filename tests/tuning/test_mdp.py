"""State, reward and constraint (Eqs 14-23)."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dapfl.config import ActionSpace, AgentConfig, Axis
from dapfl.tuning.action_space import ActionCodec
from dapfl.tuning.mdp import (
    LOSS_FLOOR,
    LOSS_LIMIT,
    History,
    Standardiser,
    contribution,
    limits,
    log_loss,
    paper_state,
    price_of_work,
    reward,
    rich_state,
    share_of_affordable,
    state_size,
    violation,
)
from dapfl.tuning.policy import Choice, Outcome, Situation

CODEC = ActionCodec(ActionSpace())
BEFORE = Situation(4, 20, 2.0, 0.4, 0.35, 32.0, 1.5, 1.0, 600)
NOW = Situation(5, 20, 1.5, 0.5, 0.48, 20.0, 2.0, 1.5, 600)
CHOICE = Choice(0.01, 6, 32, planned_alpha=9)
PLAIN = AgentConfig(local_reward=0.0, standardise=False, price=0.0)


def earned(
    config: AgentConfig, before: Situation = BEFORE, now: Situation = NOW, loss_after: float | None = 1.0
):
    return reward(config, Standardiser(), before, CHOICE, Outcome(loss_after is not None, loss_after), now)[0]


def test_paper_state_is_equation_20() -> None:
    assert paper_state(NOW).tolist() == pytest.approx([1.5, 0.5, 0.48])


def test_reward_is_equation_22() -> None:
    config = AgentConfig(xi=(2.0, 3.0, 5.0), local_reward=0.0, standardise=False, price=0.0)
    result = earned(config)
    assert result.total == pytest.approx(2 * 0.5 + 3 * 0.1 + 5 * 0.13)
    assert result.parts == pytest.approx({"loss": 1.0, "accuracy": 0.3, "f1": 0.65})
    assert contribution(NOW, BEFORE, (1, 1, 1))["loss"] == pytest.approx(-0.5)


def test_local_term_is_the_log_ratio_of_ones_own_training() -> None:
    config = AgentConfig(local_reward=0.5, standardise=False, price=0.0)
    assert earned(config).parts["local"] == pytest.approx(0.5 * math.log(2.0 / 1.0))
    assert earned(config, loss_after=None).parts["local"] == 0.0  # lost: nothing of one's own to show


def test_price_of_work_falls_with_the_rounds_and_rises_with_the_share_of_affordable_epochs() -> None:
    assert price_of_work(0.2, 1.0, 7) == pytest.approx(0.02)
    assert price_of_work(0.2, 0.5, 7) == pytest.approx(0.01)
    assert price_of_work(0.2, 1.0, 57) == pytest.approx(0.2 / 60)
    config = AgentConfig(local_reward=0.0, standardise=False, price=0.2)
    work = 0.2 / 7 * 6 / BEFORE.affordable
    assert earned(config).parts["work"] == pytest.approx(-work)
    assert earned(config).total == pytest.approx(earned(PLAIN).total - work)


def test_a_share_of_affordable_epochs_is_at_most_all_of_them() -> None:
    assert share_of_affordable(BEFORE.affordable, BEFORE) == 1.0
    assert share_of_affordable(2 * BEFORE.affordable, BEFORE) == 1.0
    assert share_of_affordable(1, replace(BEFORE, budget=0.0)) == 1.0


def test_standardised_rewards_have_mean_zero_and_unit_spread() -> None:
    rng = np.random.default_rng(0)
    statistics, seen = Standardiser(), []
    for value in rng.normal(5, 0.01, 400):
        statistics, scaled = statistics.push(float(value))
        seen.append(scaled)
    assert seen[0] == 0.0 and max(map(abs, seen)) <= 3
    assert np.mean(seen[50:]) == pytest.approx(0, abs=0.2) and np.std(seen[50:]) == pytest.approx(1, abs=0.2)


def test_standardiser_is_a_clients_own() -> None:
    config = AgentConfig(standardise=True, local_reward=0.0, price=0.0)
    first, statistics = reward(config, Standardiser(), BEFORE, CHOICE, Outcome(True), NOW)
    assert first.total == 0.0 and statistics.mean == pytest.approx(0.73)
    second, _ = reward(config, statistics, NOW, CHOICE, Outcome(True), BEFORE)
    assert second.total < 0 and second.parts["standardised"] == second.total


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["loss", "accuracy", "f1"])
def test_diverged_model_gives_a_bad_but_finite_reward_and_state(field: str, broken: float) -> None:
    now = replace(NOW, **{field: broken})
    for config in (AgentConfig(), PLAIN):
        result = earned(config, now=now, loss_after=math.nan)
        assert math.isfinite(result.total) and abs(result.total) <= 10
    assert earned(PLAIN, now=now).total < earned(PLAIN).total
    history = History().after(BEFORE, Outcome(True, math.inf), np.zeros(2, np.float32), now)
    for state in (paper_state(now), rich_state(now, history, 0.2, CODEC)):
        assert np.isfinite(state).all() and np.abs(state).max() <= 20


def test_rich_state_holds_what_a_client_knows() -> None:
    executed = np.array([0.25, -0.5], np.float32)
    history = History().after(BEFORE, Outcome(True, 1.0), executed, NOW)
    now = replace(NOW, reference_loss=math.log(10))
    state = rich_state(now, history, price=0.1, codec=CODEC)
    gain = math.log(2.0 / 1.5)
    affordable = math.floor((20 - 3) / 2)
    assert state.tolist() == pytest.approx(
        [
            math.log(1.5 / math.log(10)), 0.5, 0.48, 2 * math.log(affordable) / math.log(30) - 1, 0.25, -0.5,
            5 * gain, math.log(2.0), 5 / 50, 2.0, 0.0, 0.0,
            2 * 5 / 20 - 1, math.log10(600) - 2.5, math.log(10) / 2 - 1,
        ],
        abs=1e-6,
    )  # fmt: skip
    assert len(state) == state_size("rich", CODEC) == 15
    assert rich_state(NOW, History(), 0.1, CODEC)[4:8].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("price", "feature"), [(0.0, -1.0), (0.01, -1.0), (0.1, 0.0), (1.0, 1.0), (100.0, 1.5)]
)
def test_price_is_a_feature_on_a_log_scale(price: float, feature: float) -> None:
    assert rich_state(NOW, History(), price, CODEC)[11] == pytest.approx(feature)


def test_rich_state_grows_with_the_free_axes() -> None:
    three = ActionCodec(ActionSpace(batch_size=Axis(low=8, high=128, scale="log", integer=True)))
    assert len(rich_state(NOW, History(), 0.1, three)) == state_size("rich", three) == 16


def test_history_smooths_the_gains() -> None:
    history, losses = History(), [2.0, 1.6, 1.4, 1.3]
    gains = [math.log(a / b) for a, b in pairwise(losses)]
    for before, now in pairwise(losses):
        history = history.after(
            replace(BEFORE, loss=before), Outcome(True, 1.0), np.zeros(2, np.float32), replace(NOW, loss=now)
        )
    assert history.smoothed_gain == pytest.approx(np.mean(gains))
    second = math.sqrt(0.25 * (gains[1] - gains[0]) ** 2)
    third = gains[2] - (gains[0] + gains[1]) / 2
    assert history.deviation == pytest.approx(math.sqrt(0.75 * second**2 + 0.25 * third**2))


def test_violation_is_the_left_side_of_equation_19_less_the_right() -> None:
    found = limits(BEFORE, NOW, CODEC)
    for alpha in (6.0, 20.0, 25.0):
        expected = (alpha * 1.5 + 2 * 1.0 - 32.0) / 32.0
        assert violation(np.array([alpha], np.float32), found[None])[0] == pytest.approx(expected, abs=1e-6)
    caps = CODEC.alpha.decode(found[2:4])
    assert caps.tolist() == pytest.approx([20, 8], rel=1e-5)  # affordable at t-1 and at t


@pytest.mark.parametrize("broken", [{"budget": 0.0}, {"epoch_cost": math.inf}, {"transfer_cost": math.nan}])
def test_limits_stay_finite_whatever_the_resources(broken: dict[str, float]) -> None:
    found = limits(replace(BEFORE, **broken), NOW, CODEC)
    assert np.isfinite(found).all() and found.max() <= 10


def test_limits_say_whether_the_run_goes_on() -> None:
    assert limits(BEFORE, replace(NOW, round=19), CODEC)[4] == 1
    assert limits(BEFORE, replace(NOW, round=20), CODEC)[4] == 0  # W(T): nobody trains from it


@pytest.mark.parametrize(
    ("loss", "reference", "expected"),
    [
        (math.log(10), math.log(10), 0.0),  # a network that guesses, of any number of classes
        (math.log(2), math.log(2), 0.0),
        (0.23, 2.3, -math.log(10)),
        (1.5, None, math.log(1.5)),
        (1.5, 0.0, math.log(1.5)),
        (1.5, math.inf, math.log(1.5)),
        (0.0, 2.3, math.log(LOSS_FLOOR)),
        (math.nan, 2.3, math.log(LOSS_LIMIT)),
        (math.inf, None, math.log(LOSS_LIMIT)),
        (None, 2.3, math.log(LOSS_LIMIT)),
    ],
)
def test_a_loss_has_no_unit(loss: float | None, reference: float | None, expected: float) -> None:
    assert log_loss(loss, reference) == pytest.approx(expected, abs=1e-9)


def test_the_state_does_not_know_the_unit_of_the_loss() -> None:
    """A loss in other units, with its reference in the same: every feature but the last stays as it is."""
    executed, features = np.array([0.25, -0.5], np.float32), []
    for unit in (1.0, 3.0):
        before = replace(BEFORE, loss=2.0 * unit, reference_loss=1.2 * unit)
        now = replace(NOW, loss=1.5 * unit, reference_loss=1.2 * unit)
        history = History().after(before, Outcome(True, 1.0 * unit), executed, now)
        features.append(rich_state(now, history, 0.2, CODEC)[:-1])
    assert features[0] == pytest.approx(features[1], abs=1e-5)
