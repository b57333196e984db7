"""What every policy promises, and the simple ones."""

import pytest

from dapfl.config import ActionSpace, Axis, PolicyConfig
from dapfl.errors import ConfigError, PolicyError
from dapfl.hyperparameters import Hyperparameters
from dapfl.tuning import AgentRecord, Choice, Fixed, Outcome, Situation, build_policy, decide


def situation(round_: int = 0, budget: float = 32.0, epoch_cost: float = 1.5) -> Situation:
    return Situation(round_, 20, 2.0, 0.4, 0.4, budget, epoch_cost, 1.0, 600)


def pinned(kind: str = "fixed", capped: bool = False, eta: float = 0.1, alpha: int = 25) -> PolicyConfig:
    space = ActionSpace(
        eta=Axis(low=1e-4, high=1e-1, scale="log", pinned=eta),
        alpha=Axis(low=1, high=30, integer=True, pinned=alpha),
    )
    return PolicyConfig(kind=kind, capped=capped, space=space)  # type: ignore[arg-type]


def test_free_epochs_are_affordable_in_any_number() -> None:
    assert situation(epoch_cost=0.0).affordable == 10**6


def test_cap_lowers_alpha_to_what_the_budget_affords_and_no_further() -> None:
    plan = Hyperparameters(0.1, 25, 32)
    assert decide(plan, situation(budget=32.0), capped=True) == Choice(0.1, 20, 32, planned_alpha=25)
    assert decide(plan, situation(budget=32.0), capped=False) == Choice(0.1, 25, 32, planned_alpha=25)
    assert decide(plan, situation(budget=320.0), capped=True) == Choice(0.1, 25, 32, planned_alpha=25)
    assert decide(plan, situation(budget=1.0), capped=True).alpha == 1  # one epoch, and over budget


def test_fixed_policy_never_changes_its_mind() -> None:
    policy = build_policy(pinned(), seed=0, client=1)
    for round_ in range(3):
        assert policy.choose(situation(round_)) == Choice(0.1, 25, 32, planned_alpha=25)
        policy.observe(Outcome(completed=True))
    assert policy.record == AgentRecord() and not policy.needs_local_loss


def test_cosine_falls_from_eta_to_a_tenth_over_the_planned_rounds() -> None:
    policy = build_policy(pinned("cosine", capped=True), seed=0, client=1)
    choices = [policy.choose(situation(round_)) for round_ in range(21)]
    etas = [choice.eta for choice in choices]
    assert (
        etas[0] == pytest.approx(0.1) and etas[10] == pytest.approx(0.055) and etas[20] == pytest.approx(0.01)
    )
    assert etas == sorted(etas, reverse=True)
    assert {choice.alpha for choice in choices} == {20} and {c.planned_alpha for c in choices} == {25}


def test_fixed_policy_with_a_free_axis_is_refused() -> None:
    with pytest.raises(ConfigError, match="eta and alpha has no fixed value"):
        Fixed(PolicyConfig(kind="fixed"))


def test_random_policy_depends_on_seed_client_and_round_only() -> None:
    config = PolicyConfig(kind="random")
    first, second = build_policy(config, 3, 1), build_policy(config, 3, 1)
    second.choose(situation(0))
    assert first.choose(situation(5)) == second.choose(situation(5))
    others = [build_policy(config, 3, 2), build_policy(config, 4, 1)]
    assert all(other.choose(situation(5)) != first.choose(situation(5)) for other in others)
    drawn = {first.choose(situation(round_)).planned_alpha for round_ in range(60)}
    assert min(drawn) == 1 and max(drawn) > 20


def test_policy_without_memory_restores_nothing_only() -> None:
    policy = build_policy(pinned(), seed=0, client=1)
    policy.restore(policy.saved_state())
    with pytest.raises(PolicyError, match="another policy"):
        policy.restore(b"learned")
