"""What an agent keeps between rounds."""

import numpy as np
import pytest

from dapfl.config import ActionSpace, AgentConfig, Axis
from dapfl.errors import PolicyError
from dapfl.tuning.buffer import ReplayBuffer, Transitions
from dapfl.tuning.ddpg import DDPG
from dapfl.tuning.network import Network, NetworkPair


def transitions(agent: DDPG, count: int, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)
    states, actions = agent.actor.network.sizes[0], agent.codec.size
    return Transitions(
        rng.normal(size=(count, states)).astype(np.float32),
        rng.uniform(-1, 1, (count, actions)).astype(np.float32),
        rng.normal(size=count).astype(np.float32),
        rng.normal(size=(count, states)).astype(np.float32),
        np.column_stack(
            (
                rng.uniform(0.02, 0.2, (count, 1)),
                rng.uniform(0, 0.1, (count, 1)),
                rng.uniform(-1, 1, (count, 2)),
                np.ones((count, 1)),
            )
        ).astype(np.float32),
    )


def make(**changes: object) -> DDPG:
    return DDPG(AgentConfig(**changes), ActionSpace(), np.random.default_rng(5))  # type: ignore[arg-type]


@pytest.mark.parametrize("twin", [True, False])
@pytest.mark.parametrize("steps_before", [0, 3])
def test_restored_agent_continues_bit_for_bit(twin: bool, steps_before: int) -> None:
    agent = make(twin=twin)
    agent.store(transitions(agent, 9))
    agent.learn(np.random.default_rng(1), steps_before)
    other = make(twin=twin)
    other.restore(agent.saved_state())
    for each in (agent, other):
        each.store(transitions(agent, 2, seed=8))
        each.learn(np.random.default_rng(2), 5)
    assert agent.saved_state() == other.saved_state()


def test_agent_that_never_learned_saves_no_networks() -> None:
    agent = make()
    assert len(agent.saved_state()) < 100
    agent.store(transitions(agent, 1))
    agent.learn(np.random.default_rng(0), 1)
    assert len(agent.saved_state()) > 100_000


def test_state_of_another_agent_is_refused() -> None:
    agent = make()
    agent.store(transitions(agent, 1))
    agent.learn(np.random.default_rng(0), 1)
    with pytest.raises(PolicyError, match="weights"):
        make(hidden=(8, 8)).restore(agent.saved_state())
    with pytest.raises(PolicyError, match="not the state"):
        make().restore(b"nonsense")


def test_weights_start_another_agent_from_the_same_policy() -> None:
    agent = make()
    agent.store(transitions(agent, 20))
    agent.learn(np.random.default_rng(0), 20)
    other = DDPG(agent.config, ActionSpace(), np.random.default_rng(99))
    states = transitions(agent, 4).states
    assert not np.array_equal(agent.act(states), other.act(states))
    other.load_weights(agent.weights())
    assert np.array_equal(agent.act(states), other.act(states))
    assert other.critics[0].target is other.critics[0].main  # TargetNet is their copy, not the old one


def test_agents_that_start_from_the_same_weights_share_them_until_they_learn() -> None:
    weights = make().weights()
    first, second = make(), make()
    for agent in (first, second):
        agent.load_weights(weights)
    assert np.shares_memory(first.actor.main, second.actor.main)
    first.store(transitions(first, 3))
    first.learn(np.random.default_rng(0), 2)
    assert not np.shares_memory(first.actor.main, second.actor.main)
    assert second.weights() == weights


@pytest.mark.parametrize(
    ("space", "changes"),
    [
        (ActionSpace(eta=Axis(low=1e-4, high=1e-2, scale="log")), {}),
        (ActionSpace(), {"hidden": (8, 8)}),
        (ActionSpace(), {"activation": "tanh"}),
        (ActionSpace(), {"state": "paper"}),
    ],
)
def test_weights_of_another_shape_are_refused(space: ActionSpace, changes: dict[str, object]) -> None:
    other = DDPG(AgentConfig(**changes), space, np.random.default_rng(0))  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="learned with"):
        other.load_weights(make().weights())


def test_one_critic_cannot_start_twins() -> None:
    with pytest.raises(PolicyError, match="one critic"):
        make(twin=True).load_weights(make(twin=False).weights())
    make(twin=False).load_weights(make(twin=True).weights())


def test_full_buffer_overwrites_the_oldest() -> None:
    buffer = ReplayBuffer(4, 1, 1)
    for number in range(6):
        row = np.full((1, 1), number, np.float32)
        buffer.add(Transitions(row, row, row[:, 0], row, np.full((1, 5), number, np.float32)))
    assert len(buffer) == 4
    assert sorted(buffer.rows()[:, 0].tolist()) == [2, 3, 4, 5]


def test_sample_keeps_the_parts_of_a_transition_together() -> None:
    buffer = ReplayBuffer(10, 3, 2)
    for number in range(10):
        one = np.float32(number)
        buffer.add(
            Transitions.one(
                np.full(3, one), np.full(2, one + 20), number + 40, np.full(3, one + 60), np.full(5, one)
            )
        )
    batch = buffer.sample(50, np.random.default_rng(0))
    k = batch.states[:, 0]
    assert batch.states.shape == (50, 3) and batch.actions.shape == (50, 2) and batch.limits.shape == (50, 5)
    assert (batch.actions == k[:, None] + 20).all() and (batch.rewards == k + 40).all()
    assert (batch.next_states == k[:, None] + 60).all() and (batch.limits == k[:, None]).all()
    assert len(set(k.tolist())) > 5


def test_network_pair_refuses_weights_of_another_length() -> None:
    network = Network((2, 3, 1), "relu")
    with pytest.raises(PolicyError, match="13 weights, not 12"):
        NetworkPair(network, 1e-3, np.zeros(12, np.float32))
