"""What a budget affords is decided by the cost as it is computed, to the last bit."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dapfl.budget import EPOCH_LIMIT, affordable_epochs, round_cost
from dapfl.resources import Resources
from dapfl.tuning import Situation

amounts = st.floats(0, 1e9)


@given(budget=amounts, epoch_cost=amounts, transfer_cost=amounts)
@example(budget=20.299999999999997, epoch_cost=0.7, transfer_cost=0.0)
@example(budget=1e9, epoch_cost=1e-12, transfer_cost=5e8)
def test_the_affordable_epochs_are_the_most_whose_cost_fits(
    budget: float, epoch_cost: float, transfer_cost: float
) -> None:
    most = affordable_epochs(budget, epoch_cost, transfer_cost)
    assert 0 <= most <= EPOCH_LIMIT
    assert most == 0 or round_cost(most, epoch_cost, transfer_cost) <= budget
    assert most == EPOCH_LIMIT or round_cost(most + 1, epoch_cost, transfer_cost) > budget


@given(alpha=st.integers(1, 200), epoch_cost=st.floats(1e-3, 1e3), transfer_cost=st.floats(0, 1e3))
def test_a_budget_of_exactly_the_cost_affords_it(alpha: int, epoch_cost: float, transfer_cost: float) -> None:
    assert affordable_epochs(round_cost(alpha, epoch_cost, transfer_cost), epoch_cost, transfer_cost) >= alpha


@given(budget=amounts, epoch_cost=st.floats(1e-9, 1e9), transfer_cost=amounts)
@example(budget=20.299999999999997, epoch_cost=0.7, transfer_cost=0.0)
def test_a_policy_and_a_device_count_the_same(budget: float, epoch_cost: float, transfer_cost: float) -> None:
    device = Resources(budget, epoch_cost, transfer_cost)
    seen = Situation(0, 1, 1.0, 0.5, 0.5, budget, epoch_cost, transfer_cost, 600)
    assert device.affordable == seen.affordable and device.cost(7) == seen.cost(7)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(3))
def test_nothing_is_affordable_when_a_number_is_not_finite(number: float, place: int) -> None:
    numbers = [32.0, 1.0, 1.0]
    numbers[place] = number
    assert affordable_epochs(*numbers) == 0
