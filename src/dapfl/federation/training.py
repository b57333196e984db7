"""Phases 1 and 2 of a client's round: look at W(t), choose η and α, train, encode.

Nothing here knows of messages or keys. What may leave the device leaves by `Trained`.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from dapfl.crypto.packing import Encoded
from dapfl.errors import EncodingError
from dapfl.federation.models import GlobalModel, Shape, Vector
from dapfl.federation.records import ClientReport
from dapfl.federation.suite import Rows, encoded_count
from dapfl.learning.metrics import Metrics
from dapfl.randomness import stream
from dapfl.resources import MeasuredResources, ResourceProcess, Resources
from dapfl.tuning.policy import Choice, HyperparameterPolicy, Outcome, Situation


class Stopwatch:
    """Seconds spent in each named phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time inside towards this phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


class Learns(Protocol):
    """What a client needs of `dapfl.learning.sgd.Learner`."""

    @property
    def samples(self) -> int:
        """|D_i|."""

    def evaluate(self, weights: Vector) -> Metrics:
        """The state s_i(t) of Eq. 20."""

    def train(
        self, weights: Vector, eta: float, alpha: int, batch_size: int, rng: np.random.Generator
    ) -> Vector:
        """Eq. 2."""


Lost = Literal["over-budget", "diverged"]


@dataclass(frozen=True)
class Trained:
    """What came of a client's round: |D_i|·ŵ_i(t), encoded but not yet encrypted, or why there is none."""

    contribution: Rows | Lost
    report: ClientReport


@dataclass
class LocalTraining:
    """One client's data, resources and agent, and what they remember from round to round."""

    client: int
    seed: int
    rounds: int
    capability: float
    shape: Shape
    learner: Learns
    resources: ResourceProcess
    policy: HyperparameterPolicy
    residual: Vector | None = field(default=None, repr=False)

    def run(self, t: int, model: GlobalModel, watch: Stopwatch) -> Trained:
        """Phases 1 and 2 of round t, from W(t) to what is to be encrypted."""
        encoded_count(self.learner.samples, self.shape.codec)  # no use in training what may not be sent
        with watch.phase("evaluate"):
            state = self.learner.evaluate(model.weights)  # s_i(t), Eq. 20
        now = self.resources.at(t)
        with watch.phase("agent"):
            choice = self.policy.choose(self._situation(t, state, now))  # Eqs 14-17, 21-29
        if now.cost(choice.alpha) > now.budget:  # Eq. 19 does not hold: the device gives out on the way
            self.policy.observe(Outcome(completed=False))
            report = self._report("over-budget", state, now, choice, epochs=_started(now, choice))
            return Trained("over-budget", report)

        with watch.phase("train"):
            rng = stream(self.seed, "sgd", self.client, t)
            local = self.learner.train(
                model.weights, choice.eta, choice.alpha, choice.batch_size, rng
            )  # Eq. 2
        if isinstance(self.resources, MeasuredResources):
            self.resources.record_epochs(watch.seconds["train"], choice.alpha)
        loss_after = None
        if self.policy.needs_local_loss:
            with watch.phase("evaluate"):
                loss_after = self.learner.evaluate(local).loss
        encoded = self._encode(local, model, watch)
        # Weights that cannot be sent have diverged, whatever their loss was.
        outcome = Outcome(completed=True, loss_after=math.inf if isinstance(encoded, str) else loss_after)
        self.policy.observe(outcome)
        if isinstance(encoded, str):
            report = self._report("diverged", state, now, choice, choice.alpha, loss_after=loss_after)
            return Trained(encoded, report)
        report = self._report(
            "trained", state, now, choice, choice.alpha, loss_after=loss_after, deferred=encoded.deferred
        )
        return Trained(encoded.plaintexts, report)

    def _situation(self, t: int, state: Metrics, now: Resources) -> Situation:
        return Situation(
            round=t,
            rounds=self.rounds,
            loss=state.loss,
            accuracy=state.accuracy,
            f1=state.f1,
            budget=now.budget,
            epoch_cost=now.epoch_cost,
            transfer_cost=now.transfer_cost,
            samples=self.learner.samples,
        )

    def _encode(self, local: Vector, model: GlobalModel, watch: Stopwatch) -> Encoded | Lost:
        """The contribution, unless training has diverged: such weights are not numbers to add."""
        codec = self.shape.codec
        with watch.phase("encode"):
            try:
                encoded = codec.encode(local, self.learner.samples, self.shape.context(model), self.residual)
            except EncodingError:
                return "diverged"
        self.residual = encoded.residual
        return encoded

    def _report(
        self,
        outcome: Literal["trained", "over-budget", "diverged"],
        state: Metrics,
        now: Resources,
        choice: Choice,
        epochs: int,
        *,
        loss_after: float | None = None,
        deferred: int | None = None,
    ) -> ClientReport:
        agent = self.policy.record
        return ClientReport(
            outcome=outcome,
            capability=_number(self.capability),
            samples=self.learner.samples,
            eta=_number(choice.eta),
            alpha=int(choice.alpha),
            planned_alpha=int(choice.planned_alpha),
            batch_size=int(choice.batch_size),
            lambda_=_number(agent.lambda_),
            budget=_number(now.budget),
            cost=_number(now.cost(choice.alpha)),
            epoch_cost=_number(now.epoch_cost),
            transfer_cost=_number(now.transfer_cost),
            reward=_number(agent.reward),
            reward_parts={name: _number(value) for name, value in agent.reward_parts.items()},
            state=(float(state.loss), float(state.accuracy), float(state.f1)),
            critic_loss=_number(agent.critic_loss),
            actor_loss=_number(agent.actor_loss),
            q=_number(agent.q),
            local_loss=_number(loss_after),
            epochs=int(epochs),
            deferred=deferred,
        )


def _started(now: Resources, choice: Choice) -> int:
    """The epochs that a plan over the budget got through before the device gave out."""
    return min(now.affordable, choice.alpha)


def _number(value: float | None) -> float | None:
    """A plain float: a policy may hand out integers or NumPy numbers, but a message has one encoding."""
    return None if value is None else float(value)
