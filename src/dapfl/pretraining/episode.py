"""One life of a synthetic federation, round by round, as the agents of its clients see it."""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from dapfl.arrays import Floats
from dapfl.config import AgentConfig
from dapfl.pretraining.perceptron import Weights
from dapfl.pretraining.synthetic import SyntheticFederation
from dapfl.randomness import stream
from dapfl.tuning.action_space import ActionCodec
from dapfl.tuning.agent import RETRY
from dapfl.tuning.finder import STEP, RateUnit
from dapfl.tuning.mdp import History, limits, rich_state, share_of_affordable
from dapfl.tuning.policy import Choice, Outcome, Situation, decide

AGENT = AgentConfig()


@dataclass(frozen=True)
class Rule:
    """A simple schedule: so many epochs, as far as a client can afford them, and η that falls along half a
    cosine to a part of itself, in units."""

    eta: float
    alpha: int
    last: float
    rounds: int

    def actions(self, t: int, affordable: Floats, codec: ActionCodec) -> Floats:
        """The actions of round t, one row for each client, by the epochs that they can afford."""
        part = self.last + (1 - self.last) * (1 + math.cos(math.pi * min(1.0, t / self.rounds))) / 2
        alpha = codec.alpha.encode(np.minimum(self.alpha, affordable))
        eta = np.full_like(alpha, codec.axes["eta"].encode(self.eta * part))
        return np.stack([eta, alpha], axis=-1).astype(np.float32)


@dataclass(frozen=True)
class Step:
    """One round of all clients: their choices, and what the agent learns from."""

    choices: list[Choice]
    shares: Floats  # of the affordable epochs that were executed
    states: Floats
    executed: Floats
    limits: Floats
    next_states: Floats


class Episode:
    """One synthetic federation from W(0) on, stepped round by round."""

    def __init__(
        self, federation: SyntheticFederation, codec: ActionCodec, price: float, number: int, rounds: int
    ) -> None:
        federation.reset()
        self.federation, self.codec, self.price, self.rounds = federation, codec, price, rounds
        self.round = 0
        self.trials = 0  # epochs that the finders took, of all clients
        self._rng = stream(federation.seed, "episode", number)
        self._processes = federation.resources(number)
        self._units = [RateUnit() for _ in self._processes]
        self._histories = [History() for _ in self._processes]
        self._shared: float | None = None  # the mean unit of the last round
        self._start_round()

    def _start_round(self) -> None:
        self._whole = self._look()
        self._find_units()
        self.situations = [now.within(AGENT.share) for now in self._whole]
        seen = zip(self.situations, self._histories, strict=True)
        self.states = np.stack([rich_state(now, history, self.price, self.codec) for now, history in seen])

    def _look(self) -> list[Situation]:
        """What every client sees: W(t) on its own data, and its resources."""
        scores = self.federation.evaluate()
        resources = [process.at(self.round) for process in self._processes]
        return [
            Situation(
                round=self.round,
                rounds=self.rounds,
                loss=float(scores.loss[i]),
                accuracy=float(scores.accuracy[i]),
                f1=float(scores.f1[i]),
                budget=now.budget,
                epoch_cost=now.epoch_cost,
                transfer_cost=now.transfer_cost,
                samples=int(self.federation.samples[i]),
                reference_loss=math.log(self.federation.kind.classes),
                guess_loss=float(self.federation.guess_loss[i]),
                shared_unit=self._shared,
                alignment=self.federation.alignment,
            )
            for i, now in enumerate(resources)
        ]

    def _find_units(self) -> None:
        """Clients that do not know their unit look for it: trials of all of them at once."""
        # For each rung, the clients' losses after an epoch: computed for all of them when the first asks.
        known: dict[int, Floats] = {}
        starts = np.array([unit.search.start for unit in self._units], np.float32)

        def trial(client: int, eta: float) -> float:
            rung = round(math.log(eta / float(starts[client])) / math.log(STEP))
            if rung not in known:
                rates = starts * np.float32(STEP**rung)
                once = np.ones(len(rates), np.int64)
                known[rung] = self.federation.evaluate_local(self.federation.train(rates, once, self._rng))
            return float(known[rung][client])

        for client, (unit, now) in enumerate(zip(self._units, self._whole, strict=True)):
            taken = unit.prepare(now.within(AGENT.share), partial(trial, client))
            self._whole[client] = now.after(taken)
            self.trials += taken

    def step(self, actions: Floats) -> Step:
        """One round with these actions, capped by what each client affords."""
        codec, before, whole, states = self.codec, self.situations, self._whole, self.states
        scale = [unit.unit for unit in self._units]
        plans = [codec.decode(action) for action in actions]
        choices = [
            decide(replace(plan, eta=plan.eta * unit), now, capped=True)
            for plan, unit, now in zip(plans, scale, before, strict=True)
        ]
        able = np.array([situation.affordable >= 1 for situation in whole])
        local, losses = self._train(choices, able)
        outcomes = [Outcome(bool(a), float(loss)) for a, loss in zip(able, losses, strict=True)]
        again = np.array(
            [
                a and unit.overshot(now, outcome) and now.after(choice.alpha).affordable >= 1
                for a, unit, now, outcome, choice in zip(
                    able, self._units, whole, outcomes, choices, strict=True
                )
            ]
        )
        if again.any():
            for client in np.flatnonzero(again):
                now, choice = whole[client], choices[client]
                self._units[client].observe(now, outcomes[client], AGENT.backoff)
                smaller = replace(choice, eta=RETRY * choice.eta)
                choices[client] = decide(smaller, now.after(choice.alpha), capped=True)
            repeated, repeated_losses = self._train(choices, again)
            for part, new in zip(local, repeated, strict=True):
                part[again] = new[again]
            losses = np.where(again, repeated_losses, losses)
            outcomes = [Outcome(bool(a), float(loss)) for a, loss in zip(able, losses, strict=True)]
        usable = able & np.isfinite(losses)
        self._share_units(usable)
        steps = self.federation.steps(np.array([choice.alpha for choice in choices]))
        self.federation.aggregate(local, usable, steps)
        executed = np.stack(
            [codec.encode(replace(c, eta=c.eta / unit)) for c, unit in zip(choices, scale, strict=True)]
        )
        for unit, now, outcome in zip(self._units, before, outcomes, strict=True):
            unit.observe(now, outcome, AGENT.backoff)
        self.round += 1
        for i, now in enumerate(self._look()):
            self._histories[i] = self._histories[i].after(before[i], outcomes[i], executed[i], now)
        self._start_round()
        bounds = [limits(s, now, codec) for s, now in zip(before, self.situations, strict=True)]
        shares = [share_of_affordable(c.alpha, s) for c, s in zip(choices, before, strict=True)]
        return Step(choices, np.array(shares, np.float32), states, executed, np.stack(bounds), self.states)

    def _share_units(self, usable: npt.NDArray[np.bool_]) -> None:
        """What clients know of the unit becomes everyone's: the mean of its logarithms."""
        weights = self.federation.rows * usable
        if weights.any():
            units = np.log([unit.unit for unit in self._units])
            self._shared = math.exp(np.average(units, weights=weights))

    def _train(self, choices: list[Choice], who: npt.NDArray[np.bool_]) -> tuple[Weights, Floats]:
        """The local models of some clients, and their losses; the others keep the global model."""
        alpha = np.array([choice.alpha for choice in choices]) * who
        eta = np.array([choice.eta for choice in choices], np.float32)
        local = self.federation.train(eta, alpha, self._rng)
        return local, self.federation.evaluate_local(local)
