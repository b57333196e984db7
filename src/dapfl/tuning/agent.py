"""Dap-FL's own policy: each round the client's DDPG agent learns from the last one and chooses.

This is Phase 1 of the paper (Section V-B): from s_i(t) comes r_i(t-1), the experience goes into the
replay buffer, DDPG.train (Eq. 32) takes its steps, and the actor gives a_i(t) = (η, α).
"""

import math
from dataclasses import replace

import msgspec
import numpy as np

from dapfl.arrays import Floats
from dapfl.config import PolicyConfig
from dapfl.errors import PolicyError
from dapfl.randomness import stream
from dapfl.tuning import weights
from dapfl.tuning.buffer import Transitions
from dapfl.tuning.ddpg import DDPG
from dapfl.tuning.finder import RateUnit, Trial
from dapfl.tuning.mdp import History, Reward, Standardiser, limits, paper_state, reward, rich_state
from dapfl.tuning.policy import AgentRecord, Choice, HyperparameterPolicy, Outcome, Situation, decide

PLATEAU_EPOCHS = 20  # of a model that is still at guessing after a round: only work leads off a plateau
RETRY = 0.3  # of the η that overshot: what the same round is tried again with


class _Pending(msgspec.Struct, frozen=True):
    """A choice whose reward is not known yet: the next situation will tell."""

    situation: Situation
    choice: Choice
    state: list[float]
    action: list[float]
    unit: float  # in which the action has its η
    outcome: Outcome | None = None


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    """The whole policy between two calls."""

    choices: int
    history: History
    standardiser: Standardiser
    pending: _Pending | None
    record: AgentRecord
    agent: bytes
    unit: RateUnit
    reference: float | None


class AgentPolicy(HyperparameterPolicy):
    """One client's agent: memory of the last round, reward, exploration, and the DDPG that learns."""

    def __init__(self, config: PolicyConfig, seed: int = 0, client: int = 1) -> None:
        super().__init__(config, seed, client)
        self.agent = DDPG(config.agent, config.space, stream(seed, "agent", client))
        if config.agent.warm_start is not None:
            self.agent.load_weights(weights.load(config.agent.warm_start))
        self.tries_rates = config.agent.relative and config.space.eta.pinned is None
        self.needs_local_loss = (
            config.agent.state == "rich" or config.agent.local_reward > 0 or self.tries_rates
        )
        self.choices = 0
        self.history = History()
        self.standardiser = Standardiser()
        self.unit = RateUnit() if self.tries_rates else RateUnit(unit=1.0)
        self.reference: float | None = None  # the first loss, for tasks without a loss of guessing
        self._pending: _Pending | None = None
        self._record = AgentRecord()

    def prepare(self, situation: Situation, trial: Trial) -> int:
        """Look for the unit of η where it is not known, or training has stalled."""
        return self.unit.prepare(self._planned(situation), trial) if self.tries_rates else 0

    def choose(self, situation: Situation) -> Choice:
        """Reward the last choice, learn, and act (Fig. 2). Every draw depends on seed, client and round."""
        situation = self._with_reference(self._planned(situation))
        rng = stream(self.seed, "agent", self.client, situation.round)
        earned, learned = None, None
        if self._pending is not None:
            earned = self._remember(self._pending, situation)
        state = self._state(situation)
        if self._pending is not None and earned is not None:
            self.agent.store(self._experience(self._pending, earned, state, situation))
            learned = self.agent.learn(rng)  # Eq. 32
        mean = self.agent.act(state[None])[0]
        plan = self.agent.codec.decode(self._explore(mean, rng))
        if self.tries_rates and situation.guessing and situation.round:
            plan = replace(plan, eta=1.0, alpha=max(plan.alpha, PLATEAU_EPOCHS))
        elif self.config.space.alpha.pinned is None:
            plan = replace(plan, alpha=round(situation.effort * plan.alpha))
        choice = decide(replace(plan, eta=plan.eta * self.unit.unit), situation, self.config.capped)
        executed = self._executed(choice, self.unit.unit)
        self._pending = _Pending(situation, choice, state.tolist(), executed.tolist(), self.unit.unit)
        self.choices += 1
        self._record = AgentRecord(
            state=tuple(state.tolist()),
            action=tuple(mean.tolist()),
            reward=earned.total if earned else None,
            reward_parts=earned.parts if earned else {},
            critic_loss=learned.critic_loss if learned else None,
            actor_loss=learned.actor_loss if learned else None,
            q=float(self.agent.value(state[None], executed[None])[0]),
            lambda_=self.agent.lambda_,
            unit=self.unit.unit if self.tries_rates else None,
        )
        return choice

    def retry(self, situation: Situation, choice: Choice, outcome: Outcome) -> Choice | None:
        """Training that overshot is repeated with smaller steps, while the budget lasts."""
        if not self.tries_rates or self._pending is None or situation.affordable < 1:
            return None
        if not self.unit.overshot(self._pending.situation, outcome):
            return None
        self.unit.observe(self._pending.situation, outcome, self.config.agent.backoff)
        again = decide(replace(choice, eta=RETRY * choice.eta), situation, capped=True)
        executed = self._executed(again, self._pending.unit)
        self._pending = msgspec.structs.replace(self._pending, choice=again, action=executed.tolist())
        return again

    def rate(self, choice: Choice) -> float:
        """The unit, as training has left it."""
        return self.unit.unit if self.tries_rates else choice.eta

    def observe(self, outcome: Outcome) -> None:
        """Keep how it went until the next global model shows what it was worth."""
        if self._pending is None:
            raise PolicyError("A policy observes the outcome of a choice, and none has been made yet.")
        if self.tries_rates:
            self.unit.observe(self._pending.situation, outcome, self.config.agent.backoff)
        self._pending = msgspec.structs.replace(self._pending, outcome=outcome)

    def _executed(self, choice: Choice, unit: float) -> Floats:
        """The action that was executed, η in its unit."""
        return self.agent.codec.encode(replace(choice, eta=choice.eta / unit))

    def _planned(self, situation: Situation) -> Situation:
        """With the part of the budget that is planned with: what is left shortens the round."""
        return situation.within(self.config.agent.share)

    def _with_reference(self, situation: Situation) -> Situation:
        if situation.reference_loss is not None:
            return situation
        if self.reference is None and 0 < situation.loss < math.inf:
            self.reference = situation.loss
        return replace(situation, reference_loss=self.reference)

    @property
    def record(self) -> AgentRecord:
        """State, reward, losses, Q and λ of the last choice."""
        return self._record

    def _state(self, situation: Situation) -> Floats:
        if self.config.agent.state == "paper":
            return paper_state(situation)
        return rich_state(situation, self.history, self.config.agent.price, self.agent.codec)

    def _remember(self, last: _Pending, now: Situation) -> Reward:
        """r_i(t-1), and the history with that round in it."""
        outcome = last.outcome or Outcome(completed=False)  # never reported: it did not finish
        earned, self.standardiser = reward(
            self.config.agent, self.standardiser, last.situation, last.choice, outcome, now
        )
        self.history = self.history.after(last.situation, outcome, np.array(last.action, np.float32), now)
        return earned

    def _experience(self, last: _Pending, earned: Reward, state: Floats, now: Situation) -> Transitions:
        return Transitions.one(
            np.array(last.state, np.float32),
            np.array(last.action, np.float32),
            earned.total,
            state,
            limits(last.situation, now, self.agent.codec),
        )

    def _explore(self, mean: Floats, rng: np.random.Generator) -> Floats:
        """The first choices at random, later ones with Gaussian noise that decays to a floor."""
        config = self.config.agent
        if self.choices < config.random_rounds:
            return rng.uniform(-1.0, 1.0, mean.shape).astype(np.float32)
        noise = max(config.noise_floor, config.noise * config.noise_decay**self.choices)
        noisy: Floats = np.clip(mean + noise * rng.standard_normal(mean.shape, dtype=np.float32), -1.0, 1.0)
        return noisy

    def saved_state(self) -> bytes:
        """Everything this client has learned and not yet learned from."""
        return msgspec.msgpack.encode(
            _Saved(
                self.choices,
                self.history,
                self.standardiser,
                self._pending,
                self._record,
                self.agent.saved_state(),
                self.unit,
                self.reference,
            )
        )

    def restore(self, state: bytes) -> None:
        """Go on bit for bit from what `saved_state` gave a policy that was made with the same arguments."""
        try:
            saved = msgspec.msgpack.decode(state, type=_Saved)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PolicyError(f"This is not the state of a DDPG policy: {error}.") from None
        self.agent.restore(saved.agent)
        self.choices, self.history, self.standardiser = saved.choices, saved.history, saved.standardiser
        self._pending, self._record = saved.pending, saved.record
        self.unit, self.reference = saved.unit, saved.reference
