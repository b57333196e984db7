"""Deep deterministic policy gradient under a constraint (Section IV-C, Fig. 2).

`ActorCritic` is the method, `DDPG` the agent of a client that applies it to (η, α) and b_i(t).

MainNet is an actor μ(s; θ^μ) and a critic Q(s, a; θ^Q), TargetNet a slowly following copy of both;
λ ≥ 0 prices a plan over budget. `learn` is Eqs 24-29 in the paper's order. What goes beyond the paper
is switched by `AgentConfig`: a second critic (`twin`), judging the action that the cap leaves
(`project`), a one-sided penalty (`constraint`), weights learned elsewhere (`load_weights`).

States and actions are rows of arrays, so the same class is one client's agent and, in pre-training,
the one agent of many clients. Random draws come from the generator that the caller passes.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

from dapfl.arrays import Floats
from dapfl.config import ActionSpace, AgentConfig
from dapfl.errors import ConfigError, PolicyError
from dapfl.tuning.action_space import ActionCodec
from dapfl.tuning.buffer import ReplayBuffer, Transitions
from dapfl.tuning.mdp import state_size, violation
from dapfl.tuning.network import Network, NetworkPair, SavedPair
from dapfl.tuning.weights import Weights

# With twin critics, as TD3 does: noise on the target's action, and an actor that learns half as often.
SMOOTHING, SMOOTHING_LIMIT, ACTOR_EVERY = 0.1, 0.3, 2


@dataclass(frozen=True)
class Learned:
    """Means over the steps of one `learn`."""

    critic_loss: float  # Eq. 25
    actor_loss: float | None  # -J of Eq. 27; None if the actor was not trained


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    """The whole agent between two rounds."""

    updates: int
    lambda_: float
    pairs: list[SavedPair | None]
    rows: bytes
    added: int


class ActorCritic:
    """MainNet and TargetNet of an actor and one or two critics, a replay buffer, and λ."""

    def __init__(self, config: AgentConfig, states: int, actions: int, rng: np.random.Generator) -> None:
        self.config = config
        actor = Network((states, *config.hidden, actions), config.activation)
        critic = Network((states + actions, *config.hidden, 1), config.activation)
        self.actor = NetworkPair(actor, config.actor_rate, actor.initial(rng))
        self.critics = [
            NetworkPair(critic, config.critic_rate, critic.initial(rng))
            for _ in range(2 if config.twin else 1)
        ]
        self.lambda_ = config.lambda_start
        self.buffer = ReplayBuffer(config.buffer, states, actions)
        self.updates = 0

    def act(self, states: Floats) -> Floats:
        """a = μ(s; θ^μ) in [-1, 1], a row for each state."""
        return np.tanh(self.actor.network(self.actor.main, states))

    def value(self, states: Floats, actions: Floats) -> Floats:
        """Q(s, a; θ^Q), of the first critic."""
        critic = self.critics[0]
        return critic.network(critic.main, np.hstack((states, actions)))[:, 0]

    def store(self, transitions: Transitions) -> None:
        """𝓑 ← 𝓑 ∪ {(s, a, r, s')}; a is the action that was executed."""
        self.buffer.add(transitions)

    def learn(
        self, rng: np.random.Generator, steps: int | None = None, train_actor: bool = True
    ) -> Learned | None:
        """Apply Eqs 24-29 `steps` times (the configured number if None); None if there was nothing to do."""
        steps = self.config.steps if steps is None else steps
        if not steps or not len(self.buffer):
            return None
        critic_losses, actor_losses = [], []
        for _ in range(steps):
            batch = self.buffer.sample(min(self.config.batch, len(self.buffer)), rng)
            critic_losses.append(self.update_critics(batch, self.targets(batch, rng)))
            self.updates += 1
            if train_actor and (not self.config.twin or self.updates % ACTOR_EVERY == 0):
                b, actor_loss = self.update_actor(batch)
                self.update_lambda(b)
                actor_losses.append(actor_loss)
            for pair in (self.actor, *self.critics):
                pair.follow(self.config.beta)  # Eq. 28
        return Learned(float(np.mean(critic_losses)), float(np.mean(actor_losses)) if actor_losses else None)

    def targets(self, batch: Transitions, rng: np.random.Generator) -> Floats:
        """y(k) = r(k) + γ·Q'(s(k+1), μ'(s(k+1))) (Eq. 24); of two critics, the smaller value.

        At the end of a run nothing comes after r(k).
        """
        action = np.tanh(self.actor.network(self.actor.target, batch.next_states))
        if self.config.twin:
            noise = SMOOTHING * rng.standard_normal(action.shape, dtype=np.float32)
            action = np.clip(action + np.clip(noise, -SMOOTHING_LIMIT, SMOOTHING_LIMIT), -1.0, 1.0)
        inputs = np.hstack((batch.next_states, self.executed(action, batch.limits[:, 3])))
        q = np.min([critic.network(critic.target, inputs)[:, 0] for critic in self.critics], axis=0)
        y: Floats = batch.rewards + np.float32(self.config.gamma) * batch.limits[:, 4] * q
        return y

    def update_critics(self, batch: Transitions, y: Floats) -> float:
        """Loss = mean (y - Q(s, a))² (Eq. 25) and a gradient step on it (Eq. 26), for each critic."""
        inputs, losses = np.hstack((batch.states, batch.actions)), []
        for critic in self.critics:
            q, tape = critic.network.forward(critic.main, inputs)
            error = q - y[:, None]
            losses.append(np.mean(error * error))
            gradient, _ = critic.network.backward(critic.main, tape, 2.0 / len(y) * error)
            critic.descend(gradient)
        return float(np.mean(losses))

    def update_actor(self, batch: Transitions) -> tuple[Floats, float]:
        """A step up J = mean Q(s, μ(s)) - λ·b(α) (Eqs 23 and 27); gives b and -J."""
        config, count, critic = self.config, len(batch.rewards), self.critics[0]
        raw, tape = self.actor.network.forward(self.actor.main, batch.states)
        action = np.tanh(raw)
        executed = self.executed(action, batch.limits[:, 2])
        q, critic_tape = critic.network.forward(critic.main, np.hstack((batch.states, executed)))
        ones = np.full((count, 1), 1.0 / count, np.float32)
        _, at_inputs = critic.network.backward(critic.main, critic_tape, ones, weights=False)
        gradient = at_inputs[:, -action.shape[1] :] * (executed == action)  # ∂Q/∂a; none beyond the cap
        b, slope = self.constraint(action, batch.limits)
        if config.constraint == "linear":
            penalty = b
        else:
            penalty, slope = np.maximum(b, 0.0), slope * (b > 0)[:, None]
        gradient -= self.lambda_ / count * slope  # -λ·∂b/∂a
        gradient *= 1.0 - action * action  # through the tanh
        gradient -= 2.0 * config.saturation / count * raw
        theta_gradient, _ = self.actor.network.backward(self.actor.main, tape, gradient)
        self.actor.descend(-theta_gradient)
        objective = q.mean() - self.lambda_ * penalty.mean() - config.saturation * (raw * raw).sum() / count
        return b, -float(objective)

    def update_lambda(self, b: Floats) -> None:
        """λ' = λ - l^L·∂J/∂λ with ∂J/∂λ = -b (Eq. 29), projected to λ ≥ 0."""
        if self.config.constraint == "linear":
            slack = float(b.mean())
        else:  # max(b, 0) is never negative: without a tolerance λ could only grow
            slack = float(np.maximum(b, 0.0).mean()) - self.config.tolerance
        self.lambda_ = max(0.0, self.lambda_ + self.config.lambda_rate * slack)

    def executed(self, action: Floats, cap: Floats) -> Floats:
        """The action that is left of a wished one; here, all of it."""
        del cap
        return action

    def constraint(self, action: Floats, limits: Floats) -> tuple[Floats, Floats]:
        """b (Eq. 23) at an action, and ∂b/∂a; here there is no constraint."""
        del limits
        return np.zeros(len(action), np.float32), np.zeros_like(action)

    def saved_state(self) -> bytes:
        """The whole agent. Networks that never learned are left out: they are made again as they were."""
        pairs = [pair.saved_state() for pair in (self.actor, *self.critics)]
        rows = self.buffer.rows().tobytes()
        return msgspec.msgpack.encode(_Saved(self.updates, self.lambda_, pairs, rows, self.buffer.added))

    def restore(self, state: bytes) -> None:
        """Go on bit for bit from what `saved_state` gave an agent that was made with the same arguments."""
        try:
            saved = msgspec.msgpack.decode(state, type=_Saved)
            rows = np.frombuffer(saved.rows, np.float32).reshape(-1, self.buffer.edges[-1])
        except (msgspec.MsgspecError, ValueError) as error:
            raise PolicyError(f"This is not the state of this DDPG agent: {error}.") from None
        pairs = (self.actor, *self.critics)
        if len(saved.pairs) != len(pairs):
            raise PolicyError("This is the state of a DDPG agent with another number of critics.")
        for pair, each in zip(pairs, saved.pairs, strict=True):
            pair.restore(each)
        self.updates, self.lambda_ = saved.updates, saved.lambda_
        self.buffer.refill(rows, saved.added)


class DDPG(ActorCritic):
    """The agent that chooses a client's hyper-parameters, within its budget."""

    def __init__(self, config: AgentConfig, space: ActionSpace, rng: np.random.Generator) -> None:
        self.codec = ActionCodec(space)
        if not self.codec.size:
            raise ConfigError("An agent needs at least one free axis to choose; all of them are pinned.")
        super().__init__(config, state_size(config.state, self.codec), self.codec.size, rng)

    def executed(self, action: Floats, cap: Floats) -> Floats:
        """The action that the cap leaves: α at most what the budget affords."""
        if not self.config.project or self.codec.alpha_index is None:
            return action
        executed = action.copy()
        column = executed[:, self.codec.alpha_index]
        np.minimum(column, cap, out=column)
        return executed

    def constraint(self, action: Floats, limits: Floats) -> tuple[Floats, Floats]:
        """b of Eq. 19 at an action (α not rounded), and ∂b/∂a = ∂b/∂α·∂α/∂a."""
        codec, index, slope = self.codec.alpha, self.codec.alpha_index, np.zeros_like(action)
        if index is None:
            alpha = np.full(len(action), codec.axis.pinned, np.float64)
        else:
            alpha = codec.decode(action[:, index])
            slope[:, index] = codec.slope(alpha) * limits[:, 0]
        return violation(alpha.astype(np.float32), limits), slope

    def weights(self, made_by: str = "") -> Weights:
        """What MainNet has learned, to start other agents from."""
        return Weights(
            state=self.config.state,
            hidden=self.config.hidden,
            activation=self.config.activation,
            axes={name: getattr(self.codec.space, name) for name in self.codec.free},
            actor=self.actor.main.tobytes(),
            critics=tuple(critic.main.tobytes() for critic in self.critics),
            made_by=made_by,
        )

    def load_weights(self, weights: Weights) -> None:
        """Start from weights learned elsewhere; TargetNet becomes their copy, Adam starts anew."""
        weights.check_fit(self.weights())
        for pair, theta in zip((self.actor, *self.critics), (weights.actor, *weights.critics), strict=False):
            pair.load(np.frombuffer(theta, np.float32))
