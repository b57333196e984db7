"""The rival DQN: each client picks its epochs α from a few levels by a deep Q-network, η is pinned.

After Sun et al., who let a DQN set the frequency of aggregation under a resource limit. The paper uses
their scheme as "the local training epochs are adjusted by a DQN model" and says no more, so this is a
reconstruction: the state is Eq. 20, the reward Eq. 22 less a penalty when the plan exceeds the budget.
"""

import msgspec
import numpy as np

from dapfl.arrays import Floats
from dapfl.config import DQNConfig, PolicyConfig
from dapfl.errors import ConfigError, PolicyError
from dapfl.randomness import stream
from dapfl.tuning.action_space import ActionCodec
from dapfl.tuning.buffer import LIMITS, ReplayBuffer, Transitions
from dapfl.tuning.mdp import contribution, paper_state
from dapfl.tuning.network import Network, NetworkPair, SavedPair
from dapfl.tuning.policy import AgentRecord, Choice, HyperparameterPolicy, Situation, decide

STATES = 3


class DQN:
    """Q(s, ·; θ) over the levels, its slowly following target, and a replay buffer."""

    def __init__(self, config: DQNConfig, rng: np.random.Generator) -> None:
        self.config = config
        network = Network((STATES, *config.hidden, config.levels), config.activation)
        self.q = NetworkPair(network, config.rate, network.initial(rng))
        self.buffer = ReplayBuffer(config.buffer, STATES, 1)

    def values(self, states: Floats) -> Floats:
        """Q(s, ·; θ): a row for each state, a column for each level."""
        return self.q.network(self.q.main, states)

    def learn(self, rng: np.random.Generator) -> float | None:
        """Some steps of temporal differences; the mean squared error, None without anything to learn from."""
        losses = []
        for _ in range(self.config.steps if len(self.buffer) else 0):
            batch = self.buffer.sample(min(self.config.batch, len(self.buffer)), rng)
            best = self.q.network(self.q.target, batch.next_states).max(axis=1)
            y = batch.rewards + np.float32(self.config.gamma) * best
            q, tape = self.q.network.forward(self.q.main, batch.states)
            rows, taken = np.arange(len(y)), batch.actions[:, 0].astype(np.intp)
            error = q[rows, taken] - y
            at_outputs = np.zeros_like(q)
            at_outputs[rows, taken] = 2.0 / len(y) * error
            self.q.descend(self.q.network.backward(self.q.main, tape, at_outputs)[0])
            self.q.follow(self.config.beta)
            losses.append(float(np.mean(error * error)))
        return float(np.mean(losses)) if losses else None


class _Pending(msgspec.Struct, frozen=True):
    """A choice whose reward is not known yet."""

    situation: Situation
    choice: Choice
    level: int


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    """The whole policy between two calls."""

    choices: int
    pending: _Pending | None
    record: AgentRecord
    network: SavedPair | None
    rows: bytes
    added: int


class DQNPolicy(HyperparameterPolicy):
    """ε-greedy on one client's DQN."""

    def __init__(self, config: PolicyConfig, seed: int = 0, client: int = 1) -> None:
        super().__init__(config, seed, client)
        self.codec = ActionCodec(config.space)
        if self.codec.free != ("alpha",):
            raise ConfigError(
                "A DQN chooses α and nothing else: pin eta and batch_size, and leave alpha free."
            )
        self.levels = np.linspace(-1.0, 1.0, config.dqn.levels)
        self.dqn = DQN(config.dqn, stream(seed, "dqn", client))
        self.choices = 0
        self._pending: _Pending | None = None
        self._record = AgentRecord()

    def choose(self, situation: Situation) -> Choice:
        """Reward the last choice, learn, and pick a level."""
        rng = stream(self.seed, "dqn", self.client, situation.round)
        state = paper_state(situation)
        parts: dict[str, float] = {}
        critic_loss = None
        if self._pending is not None:
            parts = self._reward(self._pending, situation)
            self._store(self._pending, sum(parts.values()), state)
            critic_loss = self.dqn.learn(rng)
        values = self.dqn.values(state[None])[0]
        level = self._explore(int(values.argmax()), rng)
        choice = decide(self.codec.decode([self.levels[level]]), situation, self.config.capped)
        self._pending = _Pending(situation, choice, level)
        self.choices += 1
        self._record = AgentRecord(
            state=tuple(state.tolist()),
            action=(float(self.levels[level]),),
            reward=sum(parts.values()) if parts else None,
            reward_parts=parts,
            critic_loss=critic_loss,
            q=float(values[level]),
        )
        return choice

    @property
    def record(self) -> AgentRecord:
        """State, reward, loss and Q of the last choice."""
        return self._record

    def _reward(self, last: _Pending, now: Situation) -> dict[str, float]:
        """Eq. 22, less a penalty if what was planned cost more than the budget."""
        parts = contribution(last.situation, now, self.config.dqn.xi)
        if last.situation.cost(last.choice.planned_alpha) > last.situation.budget:
            parts["penalty"] = -self.config.dqn.penalty
        return parts

    def _store(self, last: _Pending, reward: float, state: Floats) -> None:
        level = np.array([last.level], np.float32)
        unlimited = np.zeros(LIMITS, np.float32)
        self.dqn.buffer.add(Transitions.one(paper_state(last.situation), level, reward, state, unlimited))

    def _explore(self, best: int, rng: np.random.Generator) -> int:
        config = self.config.dqn
        chance = max(config.explore_floor, config.explore * config.explore_decay**self.choices)
        return int(rng.integers(config.levels)) if rng.random() < chance else best

    def saved_state(self) -> bytes:
        """Everything this client has learned and not yet learned from."""
        buffer = self.dqn.buffer
        return msgspec.msgpack.encode(
            _Saved(
                self.choices,
                self._pending,
                self._record,
                self.dqn.q.saved_state(),
                buffer.rows().tobytes(),
                buffer.added,
            )
        )

    def restore(self, state: bytes) -> None:
        """Go on bit for bit from what `saved_state` gave a policy that was made with the same arguments."""
        try:
            saved = msgspec.msgpack.decode(state, type=_Saved)
            rows = np.frombuffer(saved.rows, np.float32).reshape(-1, self.dqn.buffer.edges[-1])
        except (msgspec.MsgspecError, ValueError) as error:
            raise PolicyError(f"This is not the state of a DQN policy: {error}.") from None
        self.dqn.q.restore(saved.network)
        self.dqn.buffer.refill(rows, saved.added)
        self.choices, self._pending, self._record = saved.choices, saved.pending, saved.record
