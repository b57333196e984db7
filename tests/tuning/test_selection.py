"""Who takes part."""

import math

import numpy as np
import pytest

from dapfl.errors import PolicyError
from dapfl.tuning.selection import (
    DDPGSelector,
    EveryClient,
    RandomClients,
    SelectionReport,
    build_selector,
)

CLIENTS = list(range(1, 21))


def report(client: int, round_: int) -> SelectionReport:
    """Clients 1..10 are cheap and accurate, 11..20 dear, and often too slow."""
    good = client <= 10
    return SelectionReport(
        client,
        completed=good or (client + round_) % 3 == 0,
        accuracy=0.5 + round_ / 200 + (0.1 if good else 0.0),
        cost=10.0 if good else 30.0,
    )


def live(selector: DDPGSelector, rounds: range) -> list[frozenset[int]]:
    chosen = []
    for round_ in rounds:
        chosen.append(selector.select(round_, CLIENTS))
        selector.observe([report(client, round_) for client in sorted(chosen[-1])])
    return chosen


def test_every_client_is_every_client() -> None:
    selector = build_selector("all", seed=0, minimum=3)
    assert isinstance(selector, EveryClient)
    assert selector.select(0, CLIENTS) == frozenset(CLIENTS)
    selector.observe([report(1, 0)])
    selector.restore(selector.saved_state())
    with pytest.raises(PolicyError, match="settings differ"):
        selector.restore(b"x")


def test_everyone_is_asked_first_and_half_after() -> None:
    chosen = live(DDPGSelector(0), range(6))
    assert chosen[0] == frozenset(CLIENTS)
    assert all(len(each) == 10 for each in chosen[1:])


def test_at_least_the_minimum_cohort_is_selected() -> None:
    chosen = live(DDPGSelector(0, minimum=15), range(3))
    assert [len(each) for each in chosen] == [20, 15, 15]
    few = DDPGSelector(0, minimum=15)
    few.select(0, [1, 2, 3])
    few.observe([report(1, 0)])
    assert few.select(1, [1, 2, 3]) == {1, 2, 3}


def test_accurate_and_cheap_clients_come_to_be_preferred() -> None:
    shares = []
    for seed in range(3):
        chosen = live(DDPGSelector(seed), range(50))
        shares.append(np.mean([len([c for c in each if c <= 10]) / 10 for each in chosen[-10:]]))
    assert np.mean(shares) > 0.8


def test_selection_depends_on_seed_and_reports_only() -> None:
    assert live(DDPGSelector(4), range(8)) == live(DDPGSelector(4), range(8))
    assert live(DDPGSelector(4), range(8)) != live(DDPGSelector(5), range(8))


@pytest.mark.parametrize("stop", [0, 1, 6])
@pytest.mark.parametrize("between", [True, False])
def test_restored_selector_continues_bit_for_bit(stop: int, between: bool) -> None:
    selector, other = DDPGSelector(2), DDPGSelector(2)
    live(selector, range(stop))
    if between:  # stopped after selecting, before the reports came
        chosen = selector.select(stop, CLIENTS)
    other.restore(selector.saved_state())
    if between:
        for each in (selector, other):
            each.observe([report(client, stop) for client in sorted(chosen)])
    assert live(selector, range(stop + 1, 12)) == live(other, range(stop + 1, 12))
    assert selector.saved_state() == other.saved_state()


def test_silence_of_a_selected_client_counts_as_not_finished() -> None:
    selector = DDPGSelector(0)
    selector.select(0, [1, 2])
    selector.observe([SelectionReport(1, completed=True, accuracy=0.5, cost=1.0)])
    assert selector.known[2].completion < selector.known[1].completion == 1.0


def test_lies_in_reports_stay_bounded() -> None:
    selector = DDPGSelector(0)
    for round_ in range(6):
        chosen = selector.select(round_, CLIENTS)
        liars = [
            SelectionReport(c, True, accuracy=math.nan, cost=1e300 if c < 4 else 5.0) for c in sorted(chosen)
        ]
        liars[-1] = SelectionReport(liars[-1].client, True, accuracy=1e9, cost=-math.inf)
        selector.observe(liars)
    assert np.isfinite(selector.agent.buffer.rows()).all()
    assert np.abs(selector.agent.buffer.rows()).max() < 20
    assert np.isfinite(selector.agent.actor.main).all()


def test_observing_before_selecting_is_an_error() -> None:
    with pytest.raises(PolicyError, match="none has been made"):
        DDPGSelector(0).observe([])
    with pytest.raises(PolicyError, match="not the state of a client selector"):
        DDPGSelector(0).restore(b"\x01")


def test_so_many_are_drawn_at_random_and_all_alike() -> None:
    selector = build_selector("all", seed=1, minimum=3, per_round=5)
    assert isinstance(selector, RandomClients)
    chosen = [selector.select(round_, CLIENTS) for round_ in range(400)]
    assert all(len(each) == 5 for each in chosen)
    counts = [sum(client in each for each in chosen) for client in CLIENTS]
    assert min(counts) > 70 and max(counts) < 130  # a hundred is expected
    assert chosen == [build_selector("all", 1, 3, 5).select(round_, CLIENTS) for round_ in range(400)]


def test_the_agent_of_cs_selects_as_many_as_asked_for_from_the_first_round_on() -> None:
    selector = build_selector("ddpg-client", seed=0, minimum=3, per_round=4)
    assert isinstance(selector, DDPGSelector)
    assert [len(each) for each in live(selector, range(5))] == [4] * 5
