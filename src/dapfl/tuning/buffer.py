"""The replay buffer 𝓑_i: bounded, one flat row per transition, the oldest overwritten first."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from dapfl.arrays import Floats

LIMITS = 5  # the columns of `Transitions.limits`


@dataclass(frozen=True)
class Transitions:
    """Experience tuples (s(k), a(k), r(k), s(k+1)), one per row, and what limited the actions.

    `limits` is what `mdp.limits` makes: E_cpt/E, 2·E_cmu/E, the cap on α as an action at k and at k+1, and
    whether the run goes on after k+1 (1 or 0).
    """

    states: Floats
    actions: Floats
    rewards: Floats
    next_states: Floats
    limits: Floats

    @classmethod
    def one(cls, state: Floats, action: Floats, reward: float, next_state: Floats, limits: Floats) -> Self:
        """A single experience as a batch of one."""
        return cls(state[None], action[None], np.array([reward], np.float32), next_state[None], limits[None])


class ReplayBuffer:
    """Up to `capacity` transitions. Memory is taken at the first transition, and never grows after."""

    def __init__(self, capacity: int, state_size: int, action_size: int) -> None:
        self.capacity = capacity
        widths = (state_size, action_size, 1, state_size, LIMITS)
        self.edges = np.cumsum((0, *widths)).tolist()
        self.count = 0  # transitions held
        self.added = 0  # transitions ever added: the next one goes to row `added % capacity`
        self._rows: Floats | None = None

    def __len__(self) -> int:
        return self.count

    def add(self, new: Transitions) -> None:
        """Store a batch of transitions."""
        if self._rows is None:
            self._rows = np.zeros((self.capacity, self.edges[-1]), np.float32)
        rows = np.column_stack((new.states, new.actions, new.rewards, new.next_states, new.limits))
        places = (self.added + np.arange(len(rows))) % self.capacity
        self._rows[places] = rows
        self.added += len(rows)
        self.count = min(self.capacity, self.added)

    def sample(self, size: int, rng: np.random.Generator) -> Transitions:
        """`size` transitions drawn with replacement."""
        assert self._rows is not None, "an empty buffer has nothing to sample"
        rows = self._rows[rng.integers(0, self.count, size)]
        a, b, c, d, e, f = self.edges
        return Transitions(rows[:, a:b], rows[:, b:c], rows[:, c], rows[:, d:e], rows[:, e:f])

    def rows(self) -> Floats:
        """The rows held, as they lie."""
        return (
            self._rows[: self.count] if self._rows is not None else np.zeros((0, self.edges[-1]), np.float32)
        )

    def refill(self, rows: Floats, added: int) -> None:
        """Put back what `rows` and `added` gave."""
        self._rows = np.zeros((self.capacity, self.edges[-1]), np.float32) if added else None
        if self._rows is not None:
            self._rows[: len(rows)] = rows
        self.count, self.added = len(rows), added
