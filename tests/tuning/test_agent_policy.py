"""The agent at work in a client: Phase 1 of the paper, round after round."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dapfl.config import ActionSpace, AgentConfig, Axis, PolicyConfig
from dapfl.errors import ConfigError, PolicyError
from dapfl.tuning import AgentRecord, Choice, HyperparameterPolicy, Outcome, Situation, build_policy
from dapfl.tuning.agent import AgentPolicy
from dapfl.tuning.ddpg import DDPG
from dapfl.tuning.mdp import price_of_work

# An agent with every part switched on, small and quick to change its mind.
EVERYTHING = AgentConfig(
    hidden=(8, 8), actor_rate=1e-2, critic_rate=1e-2, lambda_rate=0.1, lambda_start=0.5, gamma=0.9, beta=0.1,
    batch=4, steps=3, buffer=6, noise=0.3, noise_decay=0.8, noise_floor=0.1, random_rounds=1, price=0.2,
    share=1.0, saturation=1e-2, warm_start=None,
)  # fmt: skip


def situation(round_: int, **changes: float) -> Situation:
    seen = Situation(
        round=round_,
        rounds=20,
        loss=2.3 * 0.9**round_,
        accuracy=1 - 0.9 * 0.9**round_,
        f1=1 - 0.95 * 0.8**round_,
        budget=7.0 + 3 * (round_ % 5),
        epoch_cost=1.5,
        transfer_cost=1.0,
        samples=600,
    )
    return replace(seen, **changes)  # type: ignore[arg-type]


def policy_of(agent: AgentConfig = EVERYTHING, client: int = 1, **changes: object) -> AgentPolicy:
    policy = build_policy(PolicyConfig(agent=agent, **changes), seed=7, client=client)  # type: ignore[arg-type]
    assert isinstance(policy, AgentPolicy)
    return policy


def one_epoch(loss: float, eta: float) -> float:
    """The loss after a trial: η = 0.1 is best here."""
    return loss * (0.6 + 0.6 * abs(math.log10(eta / 0.1)))


def live(policy: HyperparameterPolicy, rounds: range) -> list[tuple[Choice, AgentRecord]]:
    """Rounds in which more work helps, but with a diminishing return; in one, training overshoots."""
    lived = []
    for round_ in rounds:
        seen = situation(round_)
        seen = seen.after(policy.prepare(seen, partial(one_epoch, seen.loss)))
        choice = policy.choose(seen)
        part = 2.2 if round_ == 5 else 0.5 + 0.4 / choice.alpha
        outcome = Outcome(True, seen.loss * part)
        again = policy.retry(seen.after(choice.alpha), choice, outcome)
        if again is not None:
            choice, outcome = again, Outcome(True, seen.loss * 0.9)
        policy.observe(outcome)
        lived.append((choice, policy.record))
    return lived


OTHER_VALUES = {
    "state": "paper", "hidden": (8, 9), "activation": "tanh", "actor_rate": 1e-3, "critic_rate": 1e-3,
    "lambda_rate": 0.2, "lambda_start": 0.6, "gamma": 0.5, "beta": 0.5, "batch": 3, "steps": 2, "buffer": 8,
    "noise": 0.4, "noise_decay": 0.7, "noise_floor": 0.2, "random_rounds": 2, "xi": (2.0, 1.0, 1.0),
    "twin": False, "project": False, "constraint": "linear", "tolerance": 0.3, "saturation": 0.1,
    "local_reward": 2.0, "standardise": False, "price": 0.4, "share": 0.2, "relative": False, "backoff": 0.1,
    "warm_start": "FILE",
}  # fmt: skip


@pytest.mark.parametrize("field", AgentConfig.__struct_fields__)
def test_every_field_of_the_config_changes_behaviour(field: str, tmp_path: Path) -> None:
    value = OTHER_VALUES[field]
    if value == "FILE":
        value = str(tmp_path / "weights")
        DDPG(EVERYTHING, ActionSpace(), np.random.default_rng(3)).weights().save(Path(value))
    changed = msgspec.structs.replace(EVERYTHING, **{field: value})
    assert live(policy_of(changed), range(12)) != live(policy_of(), range(12))


@pytest.mark.parametrize("stop", [0, 1, 2, 9])
@pytest.mark.parametrize("observed", [True, False])
def test_restored_policy_continues_bit_for_bit(stop: int, observed: bool) -> None:
    policy = policy_of()
    live(policy, range(stop))
    if not observed:  # stopped between choosing and training
        policy.choose(situation(stop))
    other = policy_of()
    other.restore(policy.saved_state())
    assert other.record == policy.record
    assert live(other, range(stop + 1, 14)) == live(policy, range(stop + 1, 14))
    assert other.saved_state() == policy.saved_state()


def test_state_is_bounded_by_the_buffer() -> None:
    policy = policy_of()
    live(policy, range(8))
    before = len(policy.saved_state())
    live(policy, range(8, 40))
    assert abs(len(policy.saved_state()) - before) < 200


def test_same_seed_same_choices_and_clients_differ() -> None:
    assert live(policy_of(), range(6)) == live(policy_of(), range(6))
    assert live(policy_of(client=2), range(6)) != live(policy_of(), range(6))


def test_first_choice_of_the_papers_agent_is_random() -> None:
    config = msgspec.structs.replace(EVERYTHING, random_rounds=1, noise=0.0, noise_floor=0.0)
    etas = [policy_of(config, client).choose(situation(0)).eta for client in range(1, 30)]
    assert min(etas) < 0.1 * 0.3 < 1.0 * 0.3 < max(etas)  # over the whole log range, in units of 0.3
    assert min(etas) >= 0.02 * 0.3 and max(etas) <= 2 * 0.3
    without = msgspec.structs.replace(config, random_rounds=0)
    etas = [policy_of(without, client).choose(situation(0)).eta for client in range(1, 30)]
    assert max(etas) / min(etas) < 1.2  # an untrained actor says the middle


def test_capped_agent_never_plans_over_budget_and_learns_from_what_was_executed() -> None:
    policy = policy_of()
    poor = situation(0, budget=5.0)  # affords 2 epochs
    choices = []
    for round_ in range(12):
        choice = policy.choose(replace(poor, round=round_))
        choices.append(choice)
        policy.observe(Outcome(True, 1.0))
    assert all(choice.alpha <= 2 for choice in choices)
    assert any(choice.planned_alpha > 2 for choice in choices)
    executed = policy.agent.codec.alpha.decode(
        policy.agent.buffer.rows()[:, policy.agent.buffer.edges[1] + 1]
    )
    assert executed.max() == pytest.approx(2, rel=1e-5)


@pytest.mark.parametrize(
    ("budget", "epochs"), [(62.0, 19), (33.5, 9), (11.0, 2), (5.0, 1), (3.6, 1), (3.4, 1)]
)
def test_an_agent_plans_with_a_share_of_its_budget_and_with_one_epoch_at_least(
    budget: float, epochs: int
) -> None:
    half = policy_of(msgspec.structs.replace(EVERYTHING, share=0.5))
    choices = [half.choose(situation(t, budget=budget, effort=9.0)) for t in range(1, 9)]
    assert max(choice.alpha for choice in choices) == epochs


def test_trials_take_a_share_of_the_budget_too_and_repeating_a_round_does_not() -> None:
    tried: list[float] = []
    half = policy_of(msgspec.structs.replace(EVERYTHING, share=0.5))
    seen = situation(0, budget=14.0)  # affords 8 epochs, and 3 with half of it

    def trial(eta: float) -> float:
        tried.append(eta)
        return one_epoch(seen.loss, eta)

    assert half.prepare(seen, trial) == len(tried) == 1
    choice = half.choose(seen.after(1))
    again = half.retry(seen.after(1 + choice.alpha), choice, Outcome(True, 9.0))
    assert again is not None and again.alpha == choice.alpha


def test_uncapped_agent_may_plan_over_budget() -> None:
    policy = policy_of(capped=False)
    choices = [policy.choose(situation(round_, budget=3.0)) for round_ in range(8)]
    assert any(choice.alpha > 1 for choice in choices)
    assert all(choice.alpha == choice.planned_alpha for choice in choices)


def test_effort_multiplies_the_epochs_that_are_chosen_up_to_those_that_are_affordable() -> None:
    seen = situation(1, budget=20.0)
    chosen = policy_of().choose(seen)
    for effort in (1.2, 1.7, 4.0):
        choice = policy_of().choose(replace(seen, effort=effort))
        assert choice.planned_alpha == round(effort * chosen.planned_alpha)
        assert choice.alpha == min(choice.planned_alpha, seen.affordable)


def test_reward_of_a_round_is_known_one_round_later() -> None:
    policy = policy_of(msgspec.structs.replace(EVERYTHING, standardise=False))
    choice = policy.choose(situation(0))
    assert policy.record.reward is None and policy.record.critic_loss is None
    policy.observe(Outcome(True, 1.15))
    policy.choose(situation(1))
    first, second = situation(0), situation(1)
    parts = policy.record.reward_parts
    assert parts["loss"] == pytest.approx(first.loss - second.loss)
    assert parts["local"] == pytest.approx(math.log(2.0))
    assert parts["work"] == pytest.approx(-price_of_work(0.2, choice.alpha / first.affordable, 0))
    assert policy.record.reward == pytest.approx(sum(parts.values()))
    assert policy.record.critic_loss is not None and policy.record.q is not None
    assert len(policy.agent.buffer) == 1


def test_lost_or_unreported_training_has_no_local_reward() -> None:
    for outcome in (Outcome(False), None):
        policy = policy_of()
        policy.choose(situation(0))
        if outcome:
            policy.observe(outcome)
        policy.choose(situation(1))
        assert policy.record.reward_parts["local"] == 0.0


CALM = msgspec.structs.replace(EVERYTHING, noise=0.0, noise_floor=0.0, random_rounds=0)


def test_the_learning_rate_is_the_agents_action_in_the_unit_that_trials_gave() -> None:
    policy = policy_of(CALM)
    seen = situation(0, budget=60.0)
    taken = policy.prepare(seen, partial(one_epoch, seen.loss))
    assert 0 < taken <= 6
    unit = policy.unit.unit
    assert 0.015 < unit < 0.13 and unit != 0.3
    for round_ in range(3):
        choice = policy.choose(situation(round_, budget=60.0))
        position = (float(policy.record.action[0]) + 1) / 2
        assert choice.eta == pytest.approx(unit * 0.02 * (2.0 / 0.02) ** position, rel=1e-5)
        assert policy.record.unit == unit
        policy.observe(Outcome(True, 0.1))


@pytest.mark.parametrize("after", [2.3 * 2.1, math.inf, math.nan])
def test_a_unit_that_overshot_is_halved_and_comes_back_with_good_rounds(after: float) -> None:
    policy = policy_of(CALM)
    policy.choose(situation(0))
    policy.observe(Outcome(True, after))
    units = []
    for round_ in range(1, 10):
        choice = policy.choose(situation(round_))
        position = (float(policy.record.action[0]) + 1) / 2
        units.append(choice.eta / (0.02 * 100**position))
        policy.observe(Outcome(True, 0.1))
    assert units == pytest.approx([min(0.3, 0.15 * 1.1**rounds) for rounds in range(9)], rel=1e-5)


@pytest.mark.parametrize(
    ("agent", "outcome"),
    [({"backoff": 1.0}, Outcome(True, 99.0)), ({}, Outcome(True, 2.3 * 1.9)), ({}, Outcome(False))],
    ids=["off", "hardly higher", "not trained"],
)
def test_otherwise_the_unit_stays(agent: dict[str, float], outcome: Outcome) -> None:
    policy = policy_of(msgspec.structs.replace(CALM, **agent))
    policy.choose(situation(0))
    policy.observe(outcome)
    assert policy.unit.unit == 0.3


@pytest.mark.parametrize("pinned", [True, False])
def test_an_agent_whose_rate_is_absolute_tries_and_repeats_nothing(pinned: bool) -> None:
    axis = Axis(low=1e-4, high=0.3, scale="log", pinned=0.2 if pinned else None)
    agent = msgspec.structs.replace(CALM, relative=pinned)
    policy = policy_of(agent, space=ActionSpace(eta=axis))
    seen = situation(0, budget=60.0)
    assert not policy.tries_rates
    assert policy.prepare(seen, partial(one_epoch, seen.loss)) == 0
    choice = policy.choose(seen)
    assert policy.retry(seen, choice, Outcome(True, 99.0)) is None
    policy.observe(Outcome(True, 99.0))
    again = policy.choose(situation(1, budget=60.0))
    position = (float(policy.record.action[0]) + 1) / 2
    expected = 0.2 if pinned else 1e-4 * 3000**position
    assert again.eta == pytest.approx(expected, rel=1e-5) and policy.record.unit is None


def test_backing_off_ends_at_the_lowest_rate() -> None:
    policy = policy_of(msgspec.structs.replace(CALM, backoff=0.01))
    for round_ in range(6):
        policy.choose(situation(round_))
        policy.observe(Outcome(True, math.inf))
    assert policy.unit.unit == 1e-9


@pytest.mark.parametrize("after", [2.3 * 2.1, math.inf, math.nan])
@pytest.mark.parametrize("capped", [True, False])
def test_training_that_overshot_is_repeated_smaller_with_what_is_left(after: float, capped: bool) -> None:
    policy = policy_of(CALM, capped=capped)
    seen = situation(0, budget=100.0)
    choice = policy.choose(seen)
    left = situation(0, budget=6.5)  # affords 3 epochs
    again = policy.retry(left, choice, Outcome(True, after))
    assert again is not None
    assert again.eta == pytest.approx(0.3 * choice.eta)
    assert again.alpha == min(choice.alpha, 3)  # never over the budget, not even without the cap
    assert policy.unit.unit == pytest.approx(0.15)
    policy.observe(Outcome(True, 1.0))
    policy.choose(situation(1))
    # What the agent learns from is the action that was executed, in the unit in which it was chosen.
    eta, alpha = policy.agent.buffer.rows()[0, policy.agent.buffer.edges[1] :][:2]
    assert policy.agent.codec.axes["eta"].decode(eta) == pytest.approx(again.eta / 0.3, rel=1e-4)
    assert policy.agent.codec.alpha.decode(alpha) == pytest.approx(again.alpha, rel=1e-4)


@pytest.mark.parametrize(
    ("round_", "loss", "works"), [(0, 2.0, False), (3, 2.0, True), (3, math.nan, True), (3, 1.9, False)]
)
def test_a_model_that_is_still_guessing_after_a_round_gets_work(
    round_: int, loss: float, works: bool
) -> None:
    """The untrained actor says about 5 epochs at 0.2 units; off a plateau only work leads."""
    policy = policy_of(CALM)
    now = replace(situation(round_, loss=loss, budget=100.0), guess_loss=2.0, f1=0.1)
    now = replace(now, reference_loss=math.log(10))
    choice = policy.choose(now)
    position, epochs = ((float(a) + 1) / 2 for a in policy.record.action)
    own = 0.3 * 0.02 * 100**position
    if works:
        assert choice.eta == pytest.approx(0.3) and choice.alpha == 20
    else:
        assert choice.eta == pytest.approx(own, rel=1e-5) and choice.alpha == round(30**epochs)


def test_training_that_went_well_or_cannot_be_repeated_stands() -> None:
    policy = policy_of(CALM)
    choice = policy.choose(situation(0))
    assert policy.retry(situation(0), choice, Outcome(True, 2.3)) is None
    assert policy.retry(situation(0, budget=3.0), choice, Outcome(True, math.inf)) is None
    assert policy.unit.unit == 0.3


def test_a_task_without_a_loss_of_guessing_is_measured_by_its_first_loss() -> None:
    policy = policy_of(CALM)
    policy.choose(situation(0, loss=400.0))
    policy.observe(Outcome(True, 300.0))
    assert policy.record.state[0] == pytest.approx(0.0)
    policy.choose(situation(1, loss=100.0))
    assert policy.record.state[0] == pytest.approx(math.log(0.25))
    given = policy_of(CALM)
    given.choose(replace(situation(0, loss=1.0), reference_loss=math.log(10)))
    assert given.record.state[0] == pytest.approx(-math.log(math.log(10)))


def test_diverged_models_never_poison_the_networks() -> None:
    policy = policy_of(capped=False)
    for round_ in range(15):
        broken = math.nan if round_ % 3 == 1 else math.inf if round_ % 3 == 2 else 2.0
        choice = policy.choose(situation(round_, loss=broken, accuracy=broken, f1=broken))
        assert math.isfinite(choice.eta) and 1 <= choice.alpha <= 30
        policy.observe(Outcome(True, broken))
    for pair in (policy.agent.actor, *policy.agent.critics):
        assert np.isfinite(pair.main).all() and np.isfinite(pair.target).all()
    assert np.isfinite(policy.agent.buffer.rows()).all()


def test_agent_learns_which_learning_rate_pays() -> None:
    """A world where only η near 0.03 lowers the loss: the agent must find it within tens of rounds."""
    agent = AgentConfig(
        hidden=(32, 32), actor_rate=1e-2, critic_rate=1e-2, gamma=0.0, beta=0.1, steps=16, twin=False,
        noise=0.3, random_rounds=10, price=0.0, standardise=False, xi=(0.0, 0.0, 0.0), relative=False,
        warm_start=None,
    )  # fmt: skip
    space = ActionSpace(eta=Axis(low=1e-4, high=0.3, scale="log"))
    policy = policy_of(agent, space=space)
    etas = []
    for round_ in range(80):
        choice = policy.choose(situation(round_, loss=2.0, budget=100.0))
        gain = 1 - abs(math.log10(choice.eta) - math.log10(0.03))
        policy.observe(Outcome(True, 2.0 * math.exp(-gain)))
        etas.append(choice.eta)
    late = [abs(math.log10(eta) - math.log10(0.03)) for eta in etas[-15:]]
    early = [abs(math.log10(eta) - math.log10(0.03)) for eta in etas[:10]]
    assert np.mean(late) < 0.35 < np.mean(early)


def test_a_price_of_work_makes_the_agent_work_less() -> None:
    """Same world, two prices: where epochs bring nothing, the dearer agent learns to do fewer."""
    epochs = []
    for price in (0.0, 5.0):
        agent = AgentConfig(
            hidden=(32, 32), actor_rate=1e-2, critic_rate=1e-2, gamma=0.0, beta=0.1, steps=16, twin=False,
            noise=0.3, random_rounds=10, price=price, standardise=False, xi=(0.0, 0.0, 0.0), local_reward=0.0,
            lambda_start=0.0, lambda_rate=0.0, warm_start=None,
        )  # fmt: skip
        policy = policy_of(agent)
        lived = [policy.choose(situation(round_ % 5, loss=2.0, budget=100.0)) for round_ in range(60)]
        epochs.append(np.mean([choice.alpha for choice in lived[-15:]]))
    assert epochs[1] < 2.5 < epochs[0]


def test_observing_before_choosing_is_an_error() -> None:
    with pytest.raises(PolicyError, match="none has been made"):
        policy_of().observe(Outcome(True))


def test_state_of_something_else_is_refused() -> None:
    with pytest.raises(PolicyError, match="not the state of a DDPG policy"):
        policy_of().restore(b"\x01\x02")


def test_local_loss_is_asked_for_only_when_it_is_used() -> None:
    assert policy_of().needs_local_loss
    assert policy_of(AgentConfig(state="paper", local_reward=1.0, warm_start=None)).needs_local_loss
    assert policy_of(AgentConfig(state="paper", local_reward=0.0, warm_start=None)).needs_local_loss
    without = AgentConfig(state="paper", local_reward=0.0, relative=False, warm_start=None)
    assert not policy_of(without).needs_local_loss


def test_agent_with_three_axes_chooses_the_batch_size_too() -> None:
    space = ActionSpace(batch_size=Axis(low=8, high=128, scale="log", integer=True))
    lived = live(policy_of(space=space), range(8))
    assert len({choice.batch_size for choice, _ in lived}) > 3


def test_agent_without_a_free_axis_is_refused() -> None:
    space = ActionSpace(
        eta=Axis(low=1e-4, high=1e-1, pinned=0.1), alpha=Axis(low=1, high=30, integer=True, pinned=6)
    )
    with pytest.raises(ConfigError, match="at least one free axis"):
        policy_of(space=space)


@pytest.mark.parametrize("content", [None, b"not weights"])
def test_unusable_warm_start_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "weights"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PolicyError, match="weights"):
        policy_of(AgentConfig(warm_start=str(path)))


def test_other_clients_are_told_the_unit_as_training_has_left_it() -> None:
    policy = policy_of(CALM)
    choice = policy.choose(situation(0, budget=60.0))
    assert policy.rate(choice) == policy.unit.unit == 0.3
    again = policy.retry(situation(0, budget=60.0), choice, Outcome(True, math.inf))
    assert again is not None and policy.rate(again) == pytest.approx(0.15)


def test_a_policy_without_a_unit_tells_its_learning_rate() -> None:
    pinned = msgspec.structs.replace(CALM, relative=False)
    policy = policy_of(pinned)
    choice = policy.choose(situation(0))
    assert policy.rate(choice) == choice.eta
