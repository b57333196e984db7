"""The Markov decision process of a client (Section IV-B): state, reward and constraint.

Everything here is a function of what one client knows of itself. A model that diverged (a loss that
is infinite or not a number) is the worst state and the worst reward, never a number that would
poison a network: all values that leave this module are finite and bounded.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dapfl.arrays import Floats
from dapfl.config import AgentConfig
from dapfl.tuning.action_space import ActionCodec
from dapfl.tuning.policy import Choice, Outcome, Situation

LOSS_FLOOR, LOSS_LIMIT = 1e-3, 20.0
REWARD_LIMIT = 10.0
COST_LIMIT = 10.0  # a budget too small for anything counts as ten times overspent, not infinitely
HORIZON = 50.0  # rounds after which a federation counts as long under way


def bounded_loss(loss: float | None) -> float:
    """A loss in [0, 20]; a diverged one is 20."""
    return min(max(loss, 0.0), LOSS_LIMIT) if loss is not None and math.isfinite(loss) else LOSS_LIMIT


def bounded_share(share: float) -> float:
    """An accuracy or F1 in [0, 1]; 0 if it is not a number."""
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def log_loss(loss: float | None, reference: float | None) -> float:
    """ln(loss / reference), bounded: a loss without a unit, near 0 for a model that has learned nothing."""
    scale = reference if reference is not None and 0 < reference < math.inf else 1.0
    share = loss / scale if loss is not None and math.isfinite(loss) else LOSS_LIMIT
    return math.log(min(max(share, LOSS_FLOOR), LOSS_LIMIT))


# State -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """What the rich state remembers of the rounds before: a client's own, and only numbers."""

    action: tuple[float, ...] = ()  # the last executed action, free axes; () before the first
    global_gain: float = 0.0  # ln(loss(t-1)/loss(t)) of the global model
    local_gain: float = 0.0  # ln(loss before/after own training)
    smoothed_gain: float = 0.0  # running mean of the global gain
    deviation: float = 0.0  # and its running deviation
    count: int = 0  # rounds remembered

    def after(self, before: Situation, outcome: Outcome, executed: Floats, now: Situation) -> "History":
        """The history one round on: what was seen, executed and came out, and what is seen now."""
        gain = log_loss(before.loss, before.reference_loss) - log_loss(now.loss, now.reference_loss)
        surprise = gain - self.smoothed_gain
        return History(
            action=tuple(executed.tolist()),
            global_gain=gain,
            local_gain=local_gain(before, outcome),
            smoothed_gain=self.smoothed_gain + surprise * max(0.25, 1 / (self.count + 1)),
            deviation=math.sqrt(0.75 * self.deviation**2 + 0.25 * surprise**2) if self.count else 0.0,
            count=self.count + 1,
        )


def local_gain(before: Situation, outcome: Outcome) -> float:
    """ln(loss before / after own training); 0 if it did not finish or was not measured."""
    if not outcome.completed or outcome.loss_after is None:
        return 0.0
    scale = before.reference_loss
    return log_loss(before.loss, scale) - log_loss(outcome.loss_after, scale)


def paper_state(now: Situation) -> Floats:
    """s_i(t) = [loss, accuracy, F1] of W(t) on D_i (Eq. 20)."""
    return np.array([bounded_loss(now.loss), bounded_share(now.accuracy), bounded_share(now.f1)], np.float32)


def rich_state(now: Situation, history: History, price: float, codec: ActionCodec) -> Floats:
    """Eq. 20 and what else a client knows: 13 features and one for each free axis (15 for η and α).

    None has a unit and each lies within a few units of 0, so that one set of weights serves every task.
    """
    action = history.action or (0.0,) * codec.size
    return np.array(
        [
            log_loss(now.loss, now.reference_loss),
            bounded_share(now.accuracy),
            bounded_share(now.f1),
            codec.alpha.encode(now.affordable),
            *action,
            min(max(5 * history.global_gain, -2.0), 2.0),
            min(max(history.local_gain, -2.0), 3.0),
            min(now.round / HORIZON, 1.5),
            min(max(10 * history.smoothed_gain, -2.0), 2.0),
            min(10 * history.deviation, 2.0),
            price_feature(price),
            2 * min(now.round / max(now.rounds, 1), 1.0) - 1,  # how much of the run is over
            min(max(math.log10(max(now.samples, 1)) - 2.5, -1.5), 1.5),  # how many steps an epoch has
            min((now.reference_loss or 2.0) / 2 - 1, 2.0),  # how many classes there are
        ],
        np.float32,
    )


def price_feature(price: float) -> float:
    """κ as the networks see it: .01 -> -1, .1 -> 0, 1 -> 1."""
    return min(max(math.log10(max(price, 1e-9)) + 1, -1.0), 1.5)


def price_place(codec: ActionCodec) -> int:
    """Where κ stands in a rich state."""
    return 9 + codec.size


def action_places(codec: ActionCodec) -> slice:
    """Where the last action stands in a rich state."""
    return slice(4, 4 + codec.size)


def state_size(kind: Literal["paper", "rich"], codec: ActionCodec) -> int:
    """The length of a state."""
    return 3 if kind == "paper" else 13 + codec.size


# Reward ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standardiser:
    """Running mean and variance of one client's own reward; each new value returns standardised."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def push(self, value: float) -> tuple["Standardiser", float]:
        """The statistics with this value, and the value in deviations from the mean, within ±3."""
        weight = max(0.05, 1 / (self.count + 1))
        mean = (1 - weight) * self.mean + weight * value
        variance = (1 - weight) * self.variance + weight * (value - mean) ** 2
        scaled = (value - mean) / math.sqrt(variance + 1e-6)
        return Standardiser(self.count + 1, mean, variance), min(max(scaled, -3.0), 3.0)


@dataclass(frozen=True)
class Reward:
    """r_i(t) and what it is made of."""

    total: float
    parts: dict[str, float] = field(default_factory=dict)


def contribution(before: Situation, now: Situation, xi: tuple[float, float, float]) -> dict[str, float]:
    """ξ₁ψ₁, ξ₂ψ₂ and ξ₃ψ₃ (Eqs 14-17), whose sum is the paper's reward (Eq. 22)."""
    return {
        "loss": xi[0] * (bounded_loss(before.loss) - bounded_loss(now.loss)),  # Eq. 14
        "accuracy": xi[1] * (bounded_share(now.accuracy) - bounded_share(before.accuracy)),  # Eq. 15
        "f1": xi[2] * (bounded_share(now.f1) - bounded_share(before.f1)),  # Eq. 16
    }


def share_of_affordable(alpha: float, situation: Situation) -> float:
    """The part of the affordable epochs that α is: about the part of the round's time that a client takes."""
    return min(alpha / max(situation.affordable, 1), 1.0)


def price_of_work(price: float, share: float, round_: int) -> float:
    """What κ asks for a share of the affordable epochs.

    It prices time, not epochs: a strong client may train five times as long as a weak one while the round
    waits for both. The gain of a round falls about as 1/t; a price that did not fall with it would forbid all
    late work.
    """
    return price * share / (round_ + 3)


def reward(
    config: AgentConfig,
    standardiser: Standardiser,
    before: Situation,
    choice: Choice,
    outcome: Outcome,
    now: Situation,
) -> tuple[Reward, Standardiser]:
    """r_i(t-1) from two situations and what lay between (Eq. 22 and what goes beyond it)."""
    parts = contribution(before, now, config.xi)
    total = sum(parts.values())  # Eq. 22
    if config.standardise:
        standardiser, total = standardiser.push(total)
        parts["standardised"] = total
    if config.local_reward:
        parts["local"] = config.local_reward * local_gain(before, outcome)
        total += parts["local"]
    if config.price:
        share = share_of_affordable(choice.alpha, before)
        parts["work"] = -price_of_work(config.price, share, before.round)
        total += parts["work"]
    return Reward(min(max(total, -REWARD_LIMIT), REWARD_LIMIT), parts), standardiser


# Constraint ------------------------------------------------------------------------------------


def limits(before: Situation, now: Situation, codec: ActionCodec) -> Floats:
    """What bounded α at t-1, and the cap at t: E_cpt/E, 2·E_cmu/E, cap(t-1), cap(t), caps as actions; and
    whether there is anything to gain after t."""
    budget = max(before.budget, 1e-9)
    return np.array(
        [
            np.nan_to_num(min(before.epoch_cost / budget, COST_LIMIT), nan=COST_LIMIT),
            np.nan_to_num(min(2 * before.transfer_cost / budget, COST_LIMIT), nan=COST_LIMIT),
            codec.alpha.encode(before.affordable),
            codec.alpha.encode(now.affordable),
            float(now.round < now.rounds),
        ],
        np.float32,
    )


def violation(alpha: Floats, limits: Floats) -> Floats:
    """b_i(t) = (α·E_cpt + 2·E_cmu - E) / E (Eqs 19 and 23), as a part of the budget: free of units."""
    return alpha * limits[:, 0] + limits[:, 1] - 1.0
