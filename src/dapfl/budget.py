"""Eq. 19: what a client's round costs, and how many epochs its budget affords."""

import math
from bisect import bisect_right

EPOCH_LIMIT = 10**6
"""More epochs than anyone trains for: what a budget affords when an epoch costs next to nothing."""


def round_cost(alpha: float, epoch_cost: float, transfer_cost: float) -> float:
    """What α epochs and two transfers of the model cost: α·E^cpt + 2·E^cmu."""
    return alpha * epoch_cost + 2 * transfer_cost


def affordable_epochs(budget: float, epoch_cost: float, transfer_cost: float) -> int:
    """The largest α up to `EPOCH_LIMIT` whose `round_cost` is within the budget; 0 if there is none.

    Found by bisection over the cost as it is computed: a division could be off by one, and whoever
    trusts this number must not exceed the budget. Numbers that are not finite afford nothing.

    >>> affordable_epochs(32.0, 5.0, 1.0)
    6
    >>> affordable_epochs(20.299999999999997, 0.7, 0.0)
    29
    """
    if not all(map(math.isfinite, (budget, epoch_cost, transfer_cost))):
        return 0
    return bisect_right(
        range(1, EPOCH_LIMIT + 1), budget, key=lambda alpha: round_cost(alpha, epoch_cost, transfer_cost)
    )
