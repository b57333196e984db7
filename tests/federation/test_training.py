"""Trials and repeated training within a client's round, and what they cost."""

from typing import Any

import numpy as np
import pytest

from dapfl.arrays import Vector
from dapfl.config import ActionSpace, AgentConfig, PolicyConfig
from dapfl.federation.training import MOST_REPEATS
from dapfl.hyperparameters import Hyperparameters
from dapfl.tuning import Choice, HyperparameterPolicy
from dapfl.tuning.policy import Outcome
from tests.federation.small import Learner, Small, initial_weights

BUDGETS = {1: 2.5, 2: 4.0, 3: 6.5, 4: 33.0}  # of which two transfers take 2: 0, 2, 4 and 31 epochs


class Touchy(Learner):
    """Learns at small rates; a larger one leads away from its target, or nowhere at all."""

    def __init__(self, client: int, bears: float, nowhere: bool = False) -> None:
        super().__init__(client)
        self.bears, self.nowhere = bears, nowhere
        self.trained: list[Hyperparameters] = []

    def train(self, weights: Vector, chosen: Hyperparameters, rng: np.random.Generator) -> Vector:
        self.trained.append(chosen)
        if chosen.eta <= self.bears:
            return super().train(weights, chosen, rng)
        return np.full_like(weights, np.nan) if self.nowhere else 3 * weights - 2 * self.target


def federation(policy: PolicyConfig, bears: float, nowhere: bool = False) -> Small:
    learners = {client: Touchy(client, bears, nowhere) for client in range(1, 5)}
    return Small(encryption="none", policy=policy, learners=learners, budgets=BUDGETS, min_cohort=2)


@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize("nowhere", [True, False])
@pytest.mark.parametrize("bears", [10.0, 0.1, 1e-3, 0.0])
def test_trials_training_and_repeats_never_cost_more_than_the_budget(
    bears: float, nowhere: bool, capped: bool
) -> None:
    policy = PolicyConfig(kind="ddpg", capped=capped, agent=AgentConfig(warm_start=None))
    small = federation(policy, bears, nowhere)
    done = dict.fromkeys(small.learners, 0)
    for record in small.federation.rounds(3):
        reports = {client.id: client for client in record.clients}
        for client, learner in small.learners.items():
            trained = learner.trained[done[client] :]  # type: ignore[attr-defined]
            done[client] += len(trained)
            epochs = sum(each.alpha for each in trained)
            assert not trained or epochs + 2 <= BUDGETS[client]
            report = reports[client]
            if len(trained) > (report.trial_epochs or 0):
                assert report.trial_epochs == sum(each.alpha == 1 for each in trained[: report.trial_epochs])
                assert (report.eta, report.alpha) == (trained[-1].eta, trained[-1].alpha)


def trained_by(small: Small, client: int) -> list[Hyperparameters]:
    next(iter(small.federation.rounds(1)))
    return small.learners[client].trained  # type: ignore[attr-defined]


def test_training_that_overshot_is_repeated_at_a_smaller_rate_before_anything_is_sent() -> None:
    # Every trial fails, so the unit ends at 0.3/√10⁵ and the first training overshoots still.
    policy = PolicyConfig(kind="ddpg", agent=AgentConfig(warm_start=None))
    trained = trained_by(federation(policy, bears=2e-5), 4)
    trials, rest = trained[:6], trained[6:]
    assert [each.alpha for each in trials] == [1] * 6
    assert [each.eta for each in trials] == pytest.approx([0.3 * 10 ** (-k / 2) for k in range(6)])
    etas = [each.eta for each in rest]
    assert len(etas) >= 2 and etas == pytest.approx([etas[0] * 0.3**k for k in range(len(etas))])
    assert all(eta > 2e-5 for eta in etas[:-1])


class Stubborn(HyperparameterPolicy):
    """Repeats for ever, always with the same."""

    needs_local_loss = True

    def choose(self, situation: Any) -> Choice:
        return Choice(0.1, 2, 8, planned_alpha=2)

    def retry(self, situation: Any, choice: Choice, outcome: Any) -> Choice:
        return choice


@pytest.mark.parametrize(("budget", "times"), [(6.5, 2), (1e9, 1 + MOST_REPEATS)])
def test_a_policy_that_never_has_enough_is_stopped(budget: float, times: int) -> None:
    learner = Touchy(1, bears=1.0)
    small = Small(encryption="none", learners={1: learner}, budgets={1: budget}, min_cohort=2)
    small.parts[1]._training.policy = Stubborn()
    next(iter(small.federation.rounds(1)))
    assert len(learner.trained) == times


class Watching(Stubborn):
    """Notes how far training moved the weights."""

    def __init__(self) -> None:
        self.moved: list[float | None] = []

    def observe(self, outcome: Outcome) -> None:
        self.moved.append(outcome.moved)


class Fixed(Learner):
    """Always arrives at the same weights."""

    def train(self, weights: Vector, chosen: Hyperparameters, rng: np.random.Generator) -> Vector:
        return np.full_like(weights, 3)


def test_a_policy_learns_how_far_training_moved_the_weights() -> None:
    small = Small(encryption="none", learners={1: Fixed(1)}, budgets={1: 4.5}, min_cohort=2)
    policy = small.parts[1]._training.policy = Watching()
    next(iter(small.federation.rounds(1)))
    start = initial_weights().tolist()
    expected = sum((3 - w) ** 2 for w in start) ** 0.5 / sum(w * w for w in start) ** 0.5
    assert policy.moved == pytest.approx([expected], rel=1e-5)


def test_trials_and_repeats_draw_from_streams_of_their_own() -> None:
    """What a client trains does not depend on how many trials there were: no stream is used twice."""
    draws = []

    class Watched(Touchy):
        def train(self, weights: Vector, chosen: Hyperparameters, rng: np.random.Generator) -> Vector:
            draws.append(rng.bit_generator.state["state"]["state"])
            return super().train(weights, chosen, rng)

    learner = Watched(4, bears=2e-5)
    policy = PolicyConfig(kind="ddpg", space=ActionSpace(), agent=AgentConfig(warm_start=None))
    small = Small(encryption="none", policy=policy, learners={4: learner}, budgets=BUDGETS, min_cohort=2)
    next(iter(small.federation.rounds(1)))
    assert len(draws) > 6 and len({str(draw) for draw in draws}) == len(draws)
