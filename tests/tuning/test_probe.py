"""`probe-capped`: the rate that the finder gives, without an agent."""

import math
from dataclasses import replace

import pytest

from dapfl.config import ActionSpace, Axis, PolicyConfig
from dapfl.errors import PolicyError
from dapfl.tuning import Choice, Outcome, Situation, build_policy
from dapfl.tuning.finder import STEP, Probe

SEEN = Situation(0, 20, 2.3, 0.1, 0.1, 20.0, 1.0, 1.0, 600, math.log(10))  # affords 18 epochs


def probe(eta: float = 1.0, alpha: int = 25) -> Probe:
    space = ActionSpace(
        eta=Axis(low=0.1, high=10, scale="log", pinned=eta),
        alpha=Axis(low=1, high=30, integer=True, pinned=alpha),
    )
    policy = build_policy(PolicyConfig(kind="probe", capped=True, space=space), seed=3, client=2)
    assert isinstance(policy, Probe)
    return policy


def one_epoch(eta: float) -> float:
    """0.03 is best; 0.3 is far too much."""
    return math.nan if eta > 0.2 else 1.0 + 4 * math.log10(eta / 0.03) ** 2


def live(policy: Probe, rounds: range) -> list[tuple[int, Choice, float | None]]:
    """Rounds of a client that affords three epochs now and then; in one, training overshoots."""
    lived = []
    for t in rounds:
        now = replace(SEEN, round=t, loss=2.3 * 0.95**t, budget=20.0 if t % 3 == 2 else 5.0)
        trials = policy.prepare(now, one_epoch)
        choice = policy.choose(now.after(trials))
        policy.observe(Outcome(True, 99.0 if t == 6 else 0.5 * now.loss))
        lived.append((trials, choice, policy.record.unit))
    return lived


def test_the_rate_is_what_trials_gave_and_alpha_is_capped_by_what_they_left() -> None:
    policy = probe()
    assert policy.tries_rates and policy.needs_local_loss
    trials = policy.prepare(SEEN, one_epoch)
    assert 3 <= trials <= 6
    choice = policy.choose(SEEN.after(trials))
    assert choice == Choice(policy.unit.unit, 18 - trials, 32, planned_alpha=25)
    assert choice.eta == pytest.approx(0.03 / STEP, rel=1e-6)
    assert policy.record.unit == choice.eta


def test_a_pinned_eta_is_a_multiple_of_the_rate() -> None:
    policy = probe(eta=0.5)
    policy.prepare(SEEN, one_epoch)
    assert policy.choose(SEEN).eta == pytest.approx(0.015 / STEP, rel=1e-6)


def test_a_rate_that_overshot_is_halved() -> None:
    policy = probe()
    policy.prepare(SEEN, one_epoch)
    found = policy.choose(SEEN).eta
    policy.observe(Outcome(True, math.inf))
    assert policy.choose(SEEN).eta == pytest.approx(found / 2)
    policy.observe(Outcome(True, 1.0))
    assert policy.choose(SEEN).eta == pytest.approx(found / 2 * 1.1)


@pytest.mark.parametrize("stop", range(9))
def test_a_restored_probe_continues_bit_for_bit(stop: int) -> None:
    whole, parted, resumed = probe(), probe(), probe()
    expected = live(whole, range(12))
    first = live(parted, range(stop))
    resumed.restore(parted.saved_state())
    assert first + live(resumed, range(stop, 12)) == expected
    assert resumed.saved_state() == whole.saved_state()
    assert sum(trials for trials, _, _ in expected) > 2 and expected[0][0] == 1  # the search took rounds


def test_what_is_not_its_state_is_refused() -> None:
    with pytest.raises(PolicyError, match="not the state of a learning-rate finder"):
        probe().restore(b"\x01")
    with pytest.raises(PolicyError, match="none has been made"):
        probe().observe(Outcome(True, 1.0))
