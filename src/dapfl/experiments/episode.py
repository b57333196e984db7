"""One life of a synthetic federation, round by round, as the agents of its clients see it."""

import math
from dataclasses import dataclass

import numpy as np

from dapfl.experiments.synthetic import Floats, SyntheticFederation
from dapfl.randomness import stream
from dapfl.tuning.action_space import ActionCodec, Hyperparameters
from dapfl.tuning.mdp import History, limits, rich_state
from dapfl.tuning.policy import Choice, Outcome, Situation, decide


@dataclass(frozen=True)
class Rule:
    """A simple schedule: constant α, and η that falls along half a cosine to a part of itself."""

    eta: float
    alpha: float
    last: float
    rounds: int

    def action(self, t: int, codec: ActionCodec) -> Floats:
        """The action of round t."""
        part = self.last + (1 - self.last) * (1 + math.cos(math.pi * min(1.0, t / self.rounds))) / 2
        pair = (codec.axes["eta"].encode(self.eta * part), codec.alpha.encode(self.alpha))
        return np.array(pair, np.float32)

    @classmethod
    def drawn(cls, rng: np.random.Generator, rounds: int) -> "Rule":
        """Any such schedule."""
        eta, alpha, last = rng.uniform((-2.5, 0.0, -1.0), (-0.5, 1.3, 0.0))
        return cls(10**eta, 10**alpha, 10**last, rounds)


@dataclass(frozen=True)
class Step:
    """One round of all clients: their choices, and what the agent learns from."""

    choices: list[Choice]
    states: Floats
    executed: Floats
    limits: Floats
    next_states: Floats


class Episode:
    """One synthetic federation from W(0) on, stepped round by round."""

    def __init__(
        self, federation: SyntheticFederation, codec: ActionCodec, price: float, number: int
    ) -> None:
        federation.reset()
        self.federation, self.codec, self.price = federation, codec, price
        self.round = 0
        self._rng = stream(federation.seed, "episode", number)
        self._processes = federation.resources(number)
        self.situations = self._look()
        self._histories = [History() for _ in self.situations]
        self.states = self._states()

    def _look(self) -> list[Situation]:
        """What every client sees: W(t) on its own data, and its resources."""
        scores = self.federation.evaluate()
        resources = [process.at(self.round) for process in self._processes]
        return [
            Situation(
                round=self.round,
                rounds=0,
                loss=float(scores.loss[i]),
                accuracy=float(scores.accuracy[i]),
                f1=float(scores.f1[i]),
                budget=now.budget,
                epoch_cost=now.epoch_cost,
                transfer_cost=now.transfer_cost,
                samples=int(self.federation.samples[i]),
            )
            for i, now in enumerate(resources)
        ]

    def _states(self) -> Floats:
        """s_i(t) of every client, a row each."""
        seen = zip(self.situations, self._histories, strict=True)
        return np.stack([rich_state(now, history, self.price, self.codec) for now, history in seen])

    def step(self, actions: Floats) -> Step:
        """One round with these actions, capped by what each client affords."""
        codec, before, states = self.codec, self.situations, self.states
        choices = [decide(codec.decode(a), s, capped=True) for a, s in zip(actions, before, strict=True)]
        able = np.array([situation.affordable >= 1 for situation in before])
        alpha = np.array([choice.alpha for choice in choices]) * able
        eta = np.array([choice.eta for choice in choices], np.float32)
        local = self.federation.train(eta, alpha, self._rng)
        losses = self.federation.evaluate_local(local)
        self.federation.aggregate(local, able)
        executed = np.stack([codec.encode(Hyperparameters(c.eta, c.alpha, c.batch_size)) for c in choices])
        self.round += 1
        self.situations = self._look()
        for i, now in enumerate(self.situations):
            outcome = Outcome(completed=bool(able[i]), loss_after=float(losses[i]))
            self._histories[i] = self._histories[i].after(before[i], outcome, executed[i], now)
        self.states = self._states()
        bounds = [limits(s, now, codec) for s, now in zip(before, self.situations, strict=True)]
        return Step(choices, states, executed, np.stack(bounds), self.states)
