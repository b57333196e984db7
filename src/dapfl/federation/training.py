"""Phases 1 and 2 of a client's round: evaluate W(t), choose η and α, train, encode.

Nothing here knows about messages or keys. Only what is in `Trained` may leave the device.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Literal, Protocol

import msgspec
import numpy as np

from dapfl.arrays import Rows, Vector
from dapfl.crypto.packing import Encoded
from dapfl.errors import EncodingError
from dapfl.federation.global_model.models import GlobalModel
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.global_model.server_step import Signals
from dapfl.federation.protection.base import encoded_count
from dapfl.federation.records import LARGEST, ClientReport, Metric
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.metrics import Metrics
from dapfl.randomness import stream
from dapfl.resources import MeasuredResources, ResourceProcess, Resources
from dapfl.system.stopwatch import Stopwatch
from dapfl.tuning.policy import Choice, HyperparameterPolicy, Outcome, Situation

log = logging.getLogger("dapfl.client")

MOST_REPEATS = 8  # of a round's training: where epochs cost nothing, the budget sets no end


class LocalLearner(Protocol):
    """What a client needs of `dapfl.learning.sgd.Learner`."""

    step_size: float | None
    """The last step size of an optimiser that goes on from it in the next round."""

    @property
    def sample_count(self) -> int:
        """|D_i|."""

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """What the last training tells besides its loss."""

    @property
    def reference_loss(self) -> float | None:
        """The loss of guessing, where there is such a thing."""

    @property
    def guess_loss(self) -> float | None:
        """The loss of the best constant guess on D_i, where there is such a thing."""

    def evaluate(self, weights: Vector) -> Metrics:
        """The state s_i(t) of Eq. 20."""

    def train(self, weights: Vector, hyperparameters: Hyperparameters, rng: np.random.Generator) -> Vector:
        """Eq. 2."""


NoContribution = Literal["over-budget", "diverged"]


@dataclass(frozen=True)
class Trained:
    """What came of a client's round: |D_i|·ŵ_i(t), encoded but not yet encrypted, or why there is none."""

    contribution: Rows | NoContribution
    report: ClientReport


@dataclass(frozen=True)
class _Spent:
    """What a round cost a client; None where that is not known."""

    cost: float | None
    epoch: float | None
    transfer: float | None


@dataclass
class LocalTraining:
    """One client's data, resources and agent, and what they remember from round to round."""

    client: int
    seed: int
    rounds: int
    capability: float | None  # None where nothing is simulated
    parameters: PublicParameters
    learner: LocalLearner
    resources: ResourceProcess
    policy: HyperparameterPolicy
    gradients_per_step: int = 1  # of the optimiser; the budget and all counts of epochs are for one
    residual: Vector | None = field(default=None, repr=False)
    divergence: EncodingError | None = None  # why the last contribution could not be encoded

    def run(self, t: int, model: GlobalModel, watch: Stopwatch) -> Trained:
        """Phases 1 and 2 of round t, from W(t) to what is to be encrypted."""
        encoded_count(
            self.learner.sample_count, self.parameters.codec
        )  # no training for what may not be sent
        with watch.phase("evaluate"):
            state = self.learner.evaluate(model.weights)  # s_i(t), Eq. 20
        now = self.resources.at(t).with_gradients(self.gradients_per_step)
        situation = self._situation(t, state, now, self.parameters.step.signals(model))
        trials = 0
        if self.policy.tries_rates:
            trials = self.policy.prepare(situation, partial(self._trial, t, model, watch, count()))
            situation = situation.after(trials)
        with watch.phase("agent"):
            choice = self.policy.choose(situation)  # Eqs 14-17, 21-29
        epochs = trials + choice.alpha
        if now.cost(epochs) > now.budget:  # Eq. 19 does not hold: the device gives out on the way
            self.policy.observe(Outcome(completed=False))
            report = self._report("over-budget", t, state, now, choice, min(now.affordable, epochs), trials)
            return Trained("over-budget", report)

        local, outcome = self._train(t, model, choice, watch)
        # Training that went badly may be repeated with another choice, while the budget lasts.
        repeats = 0
        for attempt in range(1, MOST_REPEATS + 1):
            left = situation.after(epochs - trials)
            again = self.policy.retry(left, choice, outcome)
            if again is None or left.cost(again.alpha) > left.budget:
                break
            choice, epochs, repeats = again, epochs + again.alpha, attempt
            local, outcome = self._train(t, model, choice, watch, attempt)
        if isinstance(self.resources, MeasuredResources):
            self.resources.record_epochs(watch.seconds["train"], self.gradients_per_step * epochs)
        encoded = self._encode(local, choice, model, watch)
        loss_after = outcome.loss_after
        if isinstance(encoded, str):
            # Weights that cannot be sent have diverged, whatever their loss was.
            self.policy.observe(replace(outcome, loss_after=math.inf))
            report = self._report("diverged", t, state, now, choice, epochs, trials, loss_after=loss_after)
            return Trained(encoded, report)
        self.policy.observe(outcome)
        report = self._report(
            "trained", t, state, now, choice, epochs, trials, loss_after=loss_after, deferred=encoded.deferred
        )
        return Trained(encoded.plaintexts, msgspec.structs.replace(report, repeats=repeats))

    def _train(
        self, t: int, model: GlobalModel, choice: Choice, watch: Stopwatch, attempt: int = 0
    ) -> tuple[Vector, Outcome]:
        """ŵ_i(t) (Eq. 2), and, if the policy wants to know, its loss on D_i and how far it is from W(t)."""
        with watch.phase("train"):
            again = ("again", attempt) if attempt else ()
            rng = stream(self.seed, "sgd", self.client, t, *again)
            local = self.learner.train(model.weights, choice, rng)
        if not self.policy.needs_local_loss:
            return local, Outcome(completed=True)
        with watch.phase("evaluate"):
            return local, Outcome(True, self.learner.evaluate(local).loss, _moved(local, model.weights))

    def _trial(
        self, t: int, model: GlobalModel, watch: Stopwatch, numbers: Iterator[int], eta: float
    ) -> float:
        """The loss on D_i after one epoch at η from W(t), which is then forgotten."""
        with watch.phase("train"):
            rng = stream(self.seed, "trial", self.client, t, next(numbers))
            once = Hyperparameters(eta, 1, self.policy.batch_size)
            local = self.learner.train(model.weights, once, rng)
        with watch.phase("evaluate"):
            return self.learner.evaluate(local).loss

    def _situation(self, t: int, state: Metrics, now: Resources, told: Signals) -> Situation:
        return Situation(
            round=t,
            rounds=self.rounds,
            loss=state.loss,
            accuracy=state.accuracy,
            f1=state.f1,
            budget=now.budget,
            epoch_cost=now.epoch_cost,
            transfer_cost=now.transfer_cost,
            samples=self.learner.sample_count,
            reference_loss=self.learner.reference_loss,
            guess_loss=self.learner.guess_loss,
            shared_unit=told.rate,
            alignment=told.alignment,
            effort=told.effort,
        )

    def _spent(self, t: int, now: Resources, epochs: int) -> _Spent:
        """What the round cost. A device tells only what it has measured, not what it had assumed before."""
        if not isinstance(self.resources, MeasuredResources):
            return _Spent(now.cost(epochs), now.epoch_cost, now.transfer_cost)
        after = self.resources.at(t)
        epoch = after.epoch_cost if self.resources.knows_epochs else None
        transfer = after.transfer_cost if self.resources.knows_transfers else None
        known = epoch is not None and transfer is not None
        return _Spent(after.cost(epochs) if known else None, epoch, transfer)

    def _encode(
        self, local: Vector, choice: Choice, model: GlobalModel, watch: Stopwatch
    ) -> Encoded | NoContribution:
        """The contribution, unless training has diverged: such weights cannot be encoded."""
        codec, samples = self.parameters.codec, self.learner.sample_count
        steps = choice.alpha * math.ceil(samples / choice.batch_size)
        with watch.phase("encode"):
            numbers = self.parameters.step.contribution(model, local, steps, self.policy.rate(choice))
            try:
                encoded = codec.encode(numbers, samples, self.parameters.references(model), self.residual)
            except EncodingError as error:
                log.info("client %d sends nothing: %s", self.client, error)
                self.divergence = error
                return "diverged"
        self.residual = encoded.residual
        return encoded

    def _report(
        self,
        outcome: Literal["trained", "over-budget", "diverged"],
        t: int,
        state: Metrics,
        now: Resources,
        choice: Choice,
        epochs: int,
        trials: int,
        *,
        loss_after: float | None = None,
        deferred: int | None = None,
    ) -> ClientReport:
        agent = self.policy.record
        planned = trials + choice.alpha if outcome == "over-budget" else epochs
        spent = self._spent(t, now, planned)
        return ClientReport(
            outcome=outcome,
            capability=_number(self.capability),
            samples=self.learner.sample_count,
            **choice.plain(),
            lambda_=_number(agent.lambda_),
            budget=_number(now.budget),
            cost=_number(spent.cost),
            epoch_cost=_number(spent.epoch),
            transfer_cost=_number(spent.transfer),
            reward=_number(agent.reward),
            reward_parts={name: _number(value) for name, value in agent.reward_parts.items()},
            state=(_number(state.loss), _number(state.accuracy), _number(state.f1)),
            critic_loss=_number(agent.critic_loss),
            actor_loss=_number(agent.actor_loss),
            q=_number(agent.q),
            local_loss=_number(loss_after),
            unit=_number(agent.unit),
            epochs=self.gradients_per_step * int(epochs),
            trial_epochs=self.gradients_per_step * int(trials),
            deferred=deferred,
            metrics=dict(self.learner.metrics) or None,
        )


def _moved(local: Vector, start: Vector) -> float | None:
    """‖ŵ_i(t) − W(t)‖ / ‖W(t)‖; None where W(t) is zero. Weights that diverged may have no length."""
    with np.errstate(over="ignore", invalid="ignore"):
        length = float(np.linalg.norm(start))
        return float(np.linalg.norm(local - start)) / length if length else None


def _number(value: float | None) -> float | None:
    """A plain float: policies may return integers or NumPy numbers, but a message has one encoding.

    None for what is not finite, or too large to be added up."""
    return float(value) if value is not None and abs(value) <= LARGEST else None
