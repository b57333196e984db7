"""The learning-rate finder: what its search promises, and how a client's unit of η changes."""

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapfl.tuning.finder import STEP, RateUnit, Search, correction
from dapfl.tuning.policy import Outcome, Situation

SEEN = Situation(0, 20, 2.3, 0.1, 0.1, 32.0, 1.0, 1.0, 600, math.log(10))  # affords 30 epochs
LOSSES = st.one_of(
    st.floats(1e-6, 50.0), st.just(0.0), st.just(math.nan), st.just(math.inf), st.just(-math.inf)
)


class World:
    """Trials whose losses are given by rate, in order of asking; counts what was asked."""

    def __init__(self, loss) -> None:
        self.loss, self.asked = loss, []

    def __call__(self, eta: float) -> float:
        self.asked.append(eta)
        return self.loss(eta)


def valley(best: float, depth: float = 1.5, before: float = 2.3):
    """A loss that is lowest at one rate, and rises above `before` far from it."""
    return lambda eta: before - depth + 0.8 * depth * abs(math.log10(eta / best)) ** 2


def rungs(rates: list[float], start: float = 0.3) -> list[int]:
    return [round(2 * math.log10(rate / start)) for rate in rates]


@given(st.lists(LOSSES, min_size=6, max_size=6), LOSSES)
@settings(max_examples=200, deadline=None)
def test_a_search_ends_and_never_leaps_whatever_the_losses(losses: list[float], before: float) -> None:
    answers = iter(losses)
    world, search = World(lambda _: next(answers)), Search()
    taken = search.go_on(world, before, most=99)
    assert taken == len(world.asked) <= 6
    assert search.next is None  # it has settled, and asks for nothing more
    assert search.go_on(world, before, most=99) == 0
    tried = rungs(world.asked)
    assert tried[0] == 0 and len(set(tried)) == taken  # no rate twice
    for place in range(1, taken):  # each is the neighbour of one tried before
        assert min(abs(tried[place] - earlier) for earlier in tried[:place]) == 1
    assert min(world.asked) * 0.99 <= STEP * search.found <= max(world.asked) * 1.01


@pytest.mark.parametrize("best", [0.3 * 10 ** (k / 2) for k in range(-3, 4)])
def test_it_finds_the_lowest_loss_and_stays_a_step_below(best: float) -> None:
    search = Search()
    search.go_on(World(valley(best)), 2.3, most=99)
    assert search.next is None
    assert search.found == pytest.approx(best / STEP)


def test_where_nothing_gains_the_best_is_taken_all_the_same() -> None:
    search = Search(gains={-1: -3.0, 0: -0.2, 1: -0.3}, promising=True)
    assert search.found == pytest.approx(0.3 / STEP)


@pytest.mark.parametrize("broken", [math.nan, math.inf, 99.0])
def test_a_rate_that_is_too_large_sends_the_search_down(broken: float) -> None:
    world = World(lambda eta: broken if eta > 0.004 else 1.0 + abs(math.log10(eta / 0.003)))
    search = Search()
    search.go_on(world, 2.3, most=99)
    assert rungs(world.asked)[:5] == [0, -1, -2, -3, -4]
    assert search.found == pytest.approx(0.3 / 10**2 / STEP)


def test_where_nothing_is_finite_it_ends_below_the_lowest_rate_tried() -> None:
    search = Search()
    assert search.go_on(World(lambda eta: math.nan), math.nan, most=99) == 6
    assert search.found == pytest.approx(0.3 / 10**2.5 / STEP)


def test_on_a_plateau_a_far_rate_is_never_tried() -> None:
    """Only rates from 3 on would gain; from a plateau the search looks at its neighbours and stays."""
    world = World(lambda eta: 1.0 if eta > 2.5 else 2.3 + 0.1 * abs(math.log10(eta / 0.3)))
    search = Search()
    search.go_on(world, 2.3, most=99)
    assert sorted(rungs(world.asked)) == [-1, 0, 1]
    assert search.found == pytest.approx(0.3 / STEP)


@pytest.mark.parametrize(("guess", "moves"), [(None, True), (2.0, True), (1.0, False)])
def test_the_rate_stays_where_no_trial_is_better_than_a_constant_guess(
    guess: float | None, moves: bool
) -> None:
    """Trials end at 1.5 at best: better than a guess of 2.0, and not of 1.0."""
    search = Search()
    search.go_on(World(lambda eta: 1.5 + abs(math.log10(eta / 0.03))), 2.3, most=99, guess=guess)
    assert search.found == pytest.approx(0.03 / STEP if moves else 0.3, rel=1e-6)


def test_a_global_model_that_is_broken_is_not_tried_on() -> None:
    unit, world = RateUnit(), World(valley(0.3))
    for loss in (math.nan, math.inf):
        assert unit.prepare(replace(SEEN, loss=loss), world) == 0
    assert not world.asked and unit.unit == 0.3


def test_guessing_is_being_no_better_than_the_best_constant() -> None:
    now = replace(SEEN, guess_loss=2.0)
    assert replace(now, loss=1.97).guessing and replace(now, loss=math.nan).guessing
    assert not replace(now, loss=1.95).guessing and not replace(now, guess_loss=None).guessing
    assert not replace(now, loss=1.97, f1=0.2).guessing  # one class for all ten would have an F1 of 0.1


def test_a_client_with_few_of_the_classes_cannot_tell_guessing() -> None:
    """The best constant guess on its data is better than a good model of all classes."""
    assert not replace(SEEN, guess_loss=0.3, loss=0.5).guessing
    assert replace(SEEN, guess_loss=0.3).plateau_loss is None


def test_a_client_with_few_of_the_classes_never_climbs() -> None:
    """Where all labels are the same, a larger rate always gains."""
    unit, world = RateUnit(), World(lambda eta: 1 / (1 + eta))
    unit.prepare(replace(SEEN, guess_loss=0.3), world)
    assert max(world.asked) == 0.3 and unit.unit == pytest.approx(0.3 / STEP)
    unit, world = RateUnit(), World(valley(0.03))
    unit.prepare(replace(SEEN, guess_loss=0.3), world)
    assert unit.unit <= 0.1  # but it goes down where it must


# The unit of a client ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("affordable", "most"), [(30, 6), (12, 6), (11, 5), (5, 2), (4, 2), (3, 1), (2, 1), (1, 0), (0, 0)]
)
def test_trials_take_half_of_what_is_affordable_at_most(affordable: int, most: int) -> None:
    situation = replace(SEEN, budget=2.0 + affordable)
    assert situation.affordable == affordable
    world, unit = World(valley(0.3 * 10**3.5)), RateUnit()  # too far for one search
    assert unit.prepare(situation, world) == len(world.asked) == most
    left = situation.after(most)
    assert left.affordable == affordable - most >= min(affordable, 1)  # there is something left to train with


@pytest.mark.parametrize("affordable", [2, 3, 4, 5])
@pytest.mark.parametrize("best", [0.3 / 10, 0.3, 0.3 * 10**0.5])
def test_a_weak_client_goes_on_in_the_next_round_and_finds_the_same(affordable: int, best: float) -> None:
    strong, weak, world = RateUnit(), RateUnit(), World(valley(best))
    total = strong.prepare(SEEN, World(valley(best)))
    taken = []
    for t in range(8):
        loss = 2.3 * 0.9**t  # the global model learns meanwhile; what a trial gains stays in proportion
        world.loss = lambda eta, share=0.9**t: share * valley(best)(eta)
        taken.append(weak.prepare(replace(SEEN, round=t, loss=loss, budget=2.0 + affordable), world))
        weak.observe(SEEN, Outcome(True, 0.1), 0.5)
    assert max(taken) == affordable // 2 and sum(taken) == total and taken[-1] == 0
    assert len(set(rungs(world.asked))) == total  # nothing was tried twice
    assert weak.search.found == pytest.approx(strong.search.found)
    assert weak.unit == pytest.approx(strong.unit)


def test_a_unit_that_is_known_takes_no_more_trials() -> None:
    unit, world = RateUnit(), World(valley(0.1))
    assert unit.prepare(SEEN, world) > 0
    for t in range(1, 15):
        assert unit.prepare(replace(SEEN, round=t, loss=2.3 * 0.97**t), world) == 0


def test_after_five_rounds_without_progress_the_unit_is_found_again() -> None:
    unit = RateUnit()
    unit.prepare(SEEN, World(valley(0.3)))
    before = unit.unit
    world = World(valley(before / 10))  # what suited once is too much now
    taken = [unit.prepare(replace(SEEN, round=t, loss=2.3 * 0.999**t), world) for t in range(1, 6)]
    assert taken[:4] == [0, 0, 0, 0] and taken[4] > 0
    assert world.asked[0] == pytest.approx(before)  # the search starts from where it was
    assert unit.unit < before / 2


def test_progress_in_between_starts_the_count_anew() -> None:
    unit = RateUnit()
    unit.prepare(SEEN, World(valley(0.3)))
    losses = [2.3, 2.3, 2.3, 2.3, 2.2, 2.2, 2.2, 2.2, 2.2]
    world = World(valley(0.3))
    taken = [unit.prepare(replace(SEEN, loss=loss), world) for loss in losses]
    assert taken == [0] * 9
    assert unit.prepare(replace(SEEN, loss=2.25), world) > 0


@pytest.mark.parametrize("after", [2.3 * 2.1, math.inf, math.nan])
def test_overshooting_halves_the_unit_and_good_rounds_bring_it_back(after: float) -> None:
    unit = RateUnit()
    unit.prepare(SEEN, World(valley(0.3)))
    found = unit.unit
    unit.observe(SEEN, Outcome(True, after), 0.5)
    assert unit.unit == pytest.approx(found / 2)
    for rounds in range(1, 12):
        unit.observe(SEEN, Outcome(True, 0.1), 0.5)
        assert unit.unit == pytest.approx(min(found, found / 2 * 1.1**rounds))


def test_what_counts_as_overshooting() -> None:
    """What may be noise of a client's last steps does not: the mean of all clients has less of it."""
    unit = RateUnit()
    assert unit.overshot(SEEN, Outcome(True, 2.01 * 2.3)) and unit.overshot(SEEN, Outcome(True, math.nan))
    assert not unit.overshot(SEEN, Outcome(True, 1.99 * 2.3))
    assert not unit.overshot(SEEN, Outcome(False))


@pytest.mark.parametrize(("before", "most"), [(0.5, 1.0), (1.8, 1.05 * 2.0), (2.4, 1.05 * 2.4)])
def test_what_is_worse_than_guessing_is_no_noise(before: float, most: float) -> None:
    seen = replace(SEEN, loss=before, guess_loss=2.0)
    assert not RateUnit().overshot(seen, Outcome(True, 0.99 * most))
    assert RateUnit().overshot(seen, Outcome(True, 1.01 * most))


def test_what_larger_rates_reach_says_nothing_of_steps_that_are_too_large() -> None:
    plateau = replace(SEEN, loss=4.1, accuracy=0.02, f1=0.0, guess_loss=3.0)
    unit = RateUnit()
    assert unit.prepare(plateau, lambda eta: 4.0 if eta < 0.5 else 3.2) > 1
    assert unit.unit == 0.3 and unit.trial_loss == 4.0
    assert not unit.overshot(plateau, Outcome(True, 3.9))


def test_training_that_ends_above_an_epoch_of_its_trials_overshot() -> None:
    unit = RateUnit()
    unit.prepare(SEEN, World(valley(0.3)))
    assert unit.trial_loss < 1.1
    assert unit.overshot(
        SEEN, Outcome(True, 2.3)
    )  # as a network that died does: its loss is that of guessing
    assert not unit.overshot(SEEN, Outcome(True, 1.9 * unit.trial_loss))
    unit.prepare(SEEN, World(valley(0.3)))  # the search is over: the next round has no trials
    assert not unit.overshot(SEEN, Outcome(True, 2.3))


@pytest.mark.parametrize(
    ("loss", "moved", "dead"),
    [
        (1.01, 136.0, True),  # measured: one client like this killed a federation
        (1.05, 1.1, True),
        (1.05, 0.2, False),  # a plateau: weights hardly move
        (0.5, 7.0, False),  # far from small first weights, and well trained
        (1.05, None, False),
        (1.05, math.nan, False),
    ],
)
def test_a_network_that_moved_far_and_hardly_does_better_than_guessing_is_dead(
    loss: float, moved: float | None, dead: bool
) -> None:
    seen = replace(SEEN, loss=1.14, reference_loss=math.log(3), guess_loss=1.04)
    assert RateUnit().overshot(seen, Outcome(True, loss, moved)) is dead
    assert not RateUnit().overshot(replace(seen, guess_loss=None), Outcome(True, loss, moved))


def test_the_unit_ends_at_the_lowest_rate() -> None:
    unit = RateUnit()
    for _ in range(40):
        unit.observe(SEEN, Outcome(True, math.inf), 0.5)
    assert unit.unit == 1e-9


@given(st.lists(LOSSES, min_size=3, max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_unit_survives_being_saved_in_any_state(losses: list[float]) -> None:
    unit = RateUnit()
    for t, loss in enumerate(losses):
        unit.prepare(replace(SEEN, round=t, loss=loss, budget=6.0), lambda eta, loss=loss: loss * 0.9)
        unit.observe(replace(SEEN, loss=loss), Outcome(True, losses[t - 1]), 0.5)
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(unit), type=RateUnit)
        assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode(unit)
        assert 1e-9 <= unit.unit <= 1e3


# What all clients know together --------------------------------------------------------------------------


def searched() -> RateUnit:
    """A unit whose search has ended."""
    unit = RateUnit()
    assert unit.prepare(SEEN, World(valley(0.3))) > 0 and unit.search.next is None
    return unit


def test_the_shared_unit_takes_the_place_of_ones_own_without_trials() -> None:
    unit = searched()
    assert unit.prepare(replace(SEEN, round=1, shared_unit=0.02), pytest.fail) == 0
    assert unit.unit == 0.02


def test_a_client_that_has_not_found_its_unit_yet_takes_the_shared_one() -> None:
    unit, weak = RateUnit(), replace(SEEN, budget=6.0)
    unit.prepare(weak, World(valley(0.03)))
    assert unit.search.next is not None
    unit.prepare(replace(weak, round=1, shared_unit=5.0), pytest.fail)
    assert unit.unit == 5.0


def test_without_a_shared_unit_a_client_goes_on_looking() -> None:
    unit, weak = RateUnit(), replace(SEEN, budget=6.0)
    world = World(valley(0.03))
    while unit.search.next is not None:
        unit.prepare(weak, world)
    assert world.asked and unit.unit < 0.1


@pytest.mark.parametrize(
    ("alignment", "loss", "factor"),
    [
        (None, 1.0, 1.0), (1.0, 1.0, 2.0), (0.8, 1.0, 2.0**0.5), (1.0, 2.0 * math.exp(-0.015), 2.0**0.5),
        (0.6, 1.0, 1.0), (0.0, 1.0, 1.0), (-0.25, 2.0, 0.4**0.5), (-0.5, 2.0, 0.4), (-1.0, 2.0, 0.4),
        (-1.0, 1.0, 1.0), (-1.0, 2.0 * math.exp(-0.015), 0.4**0.5),
        (1.0, 2.0, 1.0), (0.5, 2.09, 1.0), (0.5, 2.11, 0.4), (None, 3.0, 0.4), (1.0, math.inf, 0.4),
        (1.0, math.nan, 0.4),
    ],
)  # fmt: skip
def test_going_fast_straight_on_raises_the_unit_and_turning_back_or_getting_worse_lowers_it(
    alignment: float | None, loss: float, factor: float
) -> None:
    seen = replace(SEEN, round=3, loss=loss, alignment=alignment)
    assert correction(seen, last_loss=2.0) == pytest.approx(factor)


def test_a_shared_unit_grows_no_further_than_the_rate_that_won_the_trials() -> None:
    unit = searched()
    for t in range(1, 9):
        seen = replace(SEEN, round=t, rounds=30, loss=0.5**t, alignment=1.0)
        unit.prepare(replace(seen, shared_unit=unit.unit), pytest.fail)
    assert unit.unit == pytest.approx(0.3)


@given(st.floats(-1, 1), st.integers(0, 30), st.floats(1e-12, 1e6))
def test_the_unit_follows_by_a_bounded_factor_and_rises_no_more_towards_the_end(
    alignment: float, round_: int, shared: float
) -> None:
    unit = searched()
    unit.prepare(replace(SEEN, round=round_, shared_unit=shared, alignment=alignment), pytest.fail)
    assert 1e-9 <= unit.unit <= 1e3
    if shared > 1e-6:
        factor = 2.01 if round_ <= 12 else 1
        assert min(0.399 * shared, unit.most) <= unit.unit <= min(factor * shared, unit.most)
