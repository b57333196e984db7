"""Another server step than the paper's: it has a memory, which must reach everyone that has the model."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from dapfl.config import ServerStepConfig
from dapfl.errors import ProtocolError
from dapfl.federation.global_model.models import GlobalModel
from dapfl.federation.global_model.server_step import (
    FedAdam,
    NormalisedAverage,
    Signals,
    TakeAverage,
    server_step,
)
from dapfl.federation.server_state.state_file import StateFile
from dapfl.hyperparameters import Hyperparameters
from dapfl.tuning.policy import HyperparameterPolicy, decide
from tests.federation.small import Dropping, Learner, Small, initial_weights, stream


class Momentum(TakeAverage):
    """Server momentum (FedAvgM): the memory is the velocity."""

    relative = True

    def initial_memory(self, size):
        return np.zeros(size, np.float32)

    def apply(self, current, average, contributors):
        velocity = np.float32(0.5) * current.memory + (average - current.weights)
        return current.weights + velocity, velocity


ADAM = FedAdam(ServerStepConfig(kind="fedadam", rate=0.05, tau=0.01), learned=50)  # 10 are statistics
NORMALISED = NormalisedAverage(learned=50)
STEPS = [Momentum(), ADAM, NORMALISED]

CHOSEN = Hyperparameters(eta=0.1, alpha=3, batch_size=32)


def with_momentum(rounds: int) -> np.ndarray:
    """The same in plain floating point."""
    weights, velocity = initial_weights(), np.zeros_like(initial_weights())
    for t in range(rounds):
        learners = {i: Learner(i) for i in range(1, 5)}
        local = {i: learners[i].train(weights, CHOSEN, stream(7, "sgd", i, t)) for i in learners}
        total = sum(learner.sample_count for learner in learners.values())
        mean = sum(learners[i].sample_count * local[i].astype(np.float64) for i in learners) / total
        velocity = 0.5 * velocity + (mean.astype(np.float32) - weights)
        weights = weights + velocity
    return weights


@pytest.mark.parametrize("one_exchange_per_round", [False, True])
def test_a_step_with_a_memory_takes_its_steps(one_exchange_per_round):
    small = Small(step=Momentum(), one_exchange_per_round=one_exchange_per_round)
    assert all(record.participants == 4 and record.rejected == 0 for record in small.play(4))
    np.testing.assert_allclose(small.federation.weights, with_momentum(4), atol=1e-6)


@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_a_client_that_missed_rounds_gets_the_memory_too(codec):
    def offline(exchange, client):
        return "offline" if client == 4 and 2 <= exchange < 8 else None

    def play(step):
        small = Small(step=step, codec=codec, wrap=lambda _, transport: Dropping(transport, offline))
        return small, small.play(7)

    small, records = play(Momentum())
    assert records[3].cohort == (1, 2, 3)
    assert records[-1].cohort == (1, 2, 3, 4)
    assert all(record.rejected == 0 for record in records)
    assert small.parts[4]._model.memory.any()
    assert small.parts[4]._model.commitment == small.parts[1]._model.commitment
    plain, _ = play(Small().step)
    assert (small.federation.weights != plain.federation.weights).any()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
@pytest.mark.parametrize("codec", ["exact", "compact"])
@pytest.mark.parametrize("standalone", [False, True])
def test_a_restored_run_goes_on_with_the_memory(codec, standalone, step, tmp_path):
    options = {"step": step, "codec": codec, "standalone": standalone}
    whole = Small(**options)
    expected = [msgspec.structs.replace(record, seconds={}) for record in whole.play(5)]

    first = Small(**options, state_file=StateFile(tmp_path / "server.state"))
    records = list(first.federation.rounds(2))
    state = first.state_file.read()
    spare = Small(**options)
    spare.federation.restore(state)
    second = Small(**options, primer=spare.federation.primer())
    second.federation.restore(state)
    for client, part in first.parts.items():
        second.parts[client].restore(part.saved_state())
    records += second.federation.rounds(5)
    assert [msgspec.structs.replace(record, seconds={}) for record in records] == expected
    np.testing.assert_array_equal(second.federation.weights, whole.federation.weights)


def test_a_step_that_leaves_no_numbers_loses_the_round_and_not_the_run():
    class Explosive(Momentum):
        """Divides by zero at the first step from W(0) only."""

        def apply(self, current, average, contributors):
            weights, memory = super().apply(current, average, contributors)
            with np.errstate(divide="ignore"):
                return weights / np.float32(not np.array_equal(current.weights, initial_weights())), memory

    small = Small(step=Explosive())
    first, second = small.play(2)
    assert first.participants == second.participants == 0
    assert {client.status for client in first.clients} == {"failed:aggregate-refused"}
    np.testing.assert_array_equal(small.federation.weights, initial_weights())


def test_the_memory_is_part_of_what_clients_agree_on():
    small = Small(step=Momentum())
    model = GlobalModel(b"", initial_weights(), memory=np.ones(60, np.float32))
    assert small.parameters.read_contents(model.contents)[1].tolist() == [1.0] * 60
    assert model.commitment != GlobalModel(b"", initial_weights(), memory=np.zeros(60, np.float32)).commitment
    with pytest.raises(ProtocolError, match="wrong-size"):
        small.parameters.read_contents(model.contents[:-4])


def adam(weights: np.ndarray, averages: list[np.ndarray], learned: int) -> np.ndarray:
    """Algorithm 2 of Reddi et al. in float64, weight by weight; what is not learned is averaged."""
    w, m, v = weights.astype(np.float64), np.zeros(learned), np.full(learned, 0.01**2)
    for average in averages:
        for j in range(learned):
            change = average[j] - w[j]
            m[j] = 0.9 * m[j] + 0.1 * change
            v[j] = 0.99 * v[j] + 0.01 * change**2
            w[j] += 0.05 * m[j] / (v[j] ** 0.5 + 0.01)
        w[learned:] = average[learned:]
    return w


def test_fedadam_is_the_algorithm_of_its_paper():
    averages = [stream(t, "average").normal(0, 0.5, 60).astype(np.float32) for t in range(6)]
    model = GlobalModel(b"", initial_weights(), memory=ADAM.initial_memory(60))
    for average in averages:
        untouched = model.weights.copy(), model.memory.copy(), average.copy()
        weights, memory = ADAM.apply(model, average, 4)
        for now, before in zip((model.weights, model.memory, average), untouched, strict=True):
            np.testing.assert_array_equal(now, before)
        assert weights.dtype == memory.dtype == np.float32
        assert len(memory) == len(ADAM.initial_memory(60)) == 100
        model = GlobalModel(b"", weights, memory=memory)
    np.testing.assert_allclose(model.weights, adam(initial_weights(), averages, 50), atol=1e-5)
    np.testing.assert_array_equal(model.weights[50:], averages[-1][50:])


def test_every_constant_of_fedadam_matters():
    average = stream(0, "average").normal(0, 0.5, 60).astype(np.float32)

    def after_two(config):
        step, model = FedAdam(config, 60), GlobalModel(b"", initial_weights())
        model = GlobalModel(b"", model.weights, memory=step.initial_memory(60))
        for _ in range(2):
            weights, memory = step.apply(model, average, 4)
            model = GlobalModel(b"", weights, memory=memory)
        return model.weights.tobytes()

    usual = ServerStepConfig(kind="fedadam")
    for changed in ({"rate": 0.2}, {"beta1": 0.5}, {"beta2": 0.5}, {"tau": 0.1}):
        assert after_two(msgspec.structs.replace(usual, **changed)) != after_two(usual)


def test_a_configuration_names_its_step():
    assert isinstance(server_step(ServerStepConfig(), 60), TakeAverage)
    assert server_step(ServerStepConfig(kind="normalised"), 50) == NORMALISED
    assert server_step(ServerStepConfig(kind="fedadam"), 50) == FedAdam(ServerStepConfig(kind="fedadam"), 50)


@pytest.mark.parametrize("step", [ADAM, NORMALISED], ids=lambda step: type(step).__name__)
@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_a_step_makes_the_same_model_whoever_decrypts(codec, step):
    def weights(**options):
        small = Small(step=step, codec=codec, **options)
        assert all(record.participants == 4 and record.rejected == 0 for record in small.play(3))
        return small.federation.weights

    plain = weights(encryption="none")
    np.testing.assert_array_equal(weights(), plain)
    np.testing.assert_array_equal(weights(one_exchange_per_round=True), plain)
    np.testing.assert_array_equal(weights(decryption="committee"), plain)


# Normalised averaging: who takes more steps counts no more ----------------------------------------


def fednova(rounds: int, learned: int = 50) -> tuple[np.ndarray, float]:
    """FedNova, by way of the mean of the round before, in float64 and weight by weight."""
    weights, mean = initial_weights().astype(np.float64), 0.0
    learners = {i: Learner(i) for i in range(1, 5)}
    total = sum(learner.sample_count for learner in learners.values())
    for t in range(rounds):
        after = np.zeros_like(weights)
        taken = {i: unequal(i, t).alpha * -(-learners[i].sample_count // 32) for i in learners}
        for i, learner in learners.items():
            local = learner.train(weights.astype(np.float32), unequal(i, t), stream(7, "sgd", i, t))
            factor = min(max(mean / taken[i], 0.25), 4.0) if mean else 1.0
            for j in range(len(weights)):
                change = float(local[j]) - weights[j]
                after[j] += learner.sample_count * (weights[j] + (factor if j < learned else 1) * change)
        after /= total
        now = sum(learners[i].sample_count * taken[i] for i in learners) / total
        factor = min(max(now / mean, 0.25), 4.0) if mean else 1.0
        after[:learned] = weights[:learned] + factor * (after[:learned] - weights[:learned])
        mean, weights = now, after
    return weights, mean


def unequal(client: int, t: int) -> Hyperparameters:
    """Clients differ so much that the bound matters; in round 2 all train for half as long."""
    return Hyperparameters(eta=0.01 * client, alpha=max(1, client**3 // (2 if t == 2 else 1)), batch_size=32)


class Unequal(HyperparameterPolicy):
    def choose(self, situation):
        return decide(unequal(self.client, situation.round), situation, capped=False)


def with_unequal_clients(**options) -> Small:
    small = Small(**options, budgets=dict.fromkeys(range(1, 5), 200.0))
    for client, part in small.parts.items():
        part._training.policy = Unequal(client=client)
    return small


def latest(small: Small) -> GlobalModel:
    return small.server.memory.history.latest


def test_normalised_averaging_is_fednova_with_the_mean_of_the_round_before():
    small = with_unequal_clients(step=NORMALISED)
    assert all(record.participants == 4 and record.rejected == 0 for record in small.play(4))
    taken = {i: unequal(i, 3).alpha * -(-Learner(i).sample_count // 32) for i in small.parts}
    assert taken == {1: 1, 2: 8, 3: 54, 4: 128}
    expected, mean = fednova(4)
    assert [mean / steps for steps in taken.values()] == pytest.approx([56, 7, 1.04, 0.437], rel=0.01)
    np.testing.assert_allclose(latest(small).weights, expected, atol=1e-6)
    assert latest(small).memory[0] == pytest.approx(mean, rel=1e-6)
    plain = with_unequal_clients()
    plain.play(4)
    assert np.abs(latest(plain).weights - expected).max() > 0.1


def test_clients_that_take_as_many_steps_average_as_ever():
    small, plain = Small(step=NORMALISED), Small()
    for each in (small, plain):
        for part in each.parts.values():
            part._training.learner.sample_count = 32
        each.play(3)
    np.testing.assert_allclose(latest(small).weights, latest(plain).weights, atol=1e-6)
    assert latest(small).memory[0] == 3.0


@pytest.mark.parametrize("mean", [0.0, -0.0, -1.0, 1e-45, 1e-3, 1.0, 1e18, 3e38, np.inf, np.nan])
@pytest.mark.parametrize("steps", [1, 7, 10**9])
def test_whatever_others_say_of_their_steps_the_factor_is_bounded(mean, steps):
    assert 0.25 <= NORMALISED.factor(mean, steps) <= 4
    memory = NORMALISED.initial_memory(60)
    memory[0] = mean
    model = GlobalModel(b"", initial_weights(), memory=memory)
    local = initial_weights() + np.float32(0.1)
    numbers = NORMALISED.contribution(model, local, steps, rate=0.5)
    assert numbers.dtype == np.float32
    assert numbers[60:62].tolist() == [steps, 39.0]
    change = numbers[:50] - model.weights[:50]
    assert 0.0249 < change.min() <= change.max() < 0.401
    np.testing.assert_array_equal(numbers[50:60], local[50:])  # statistics are not extrapolated


@pytest.mark.parametrize("lie", [0.0, -5e18, 1e19])
@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_a_client_that_lies_about_its_steps_does_no_more_than_the_bound_allows(codec, lie):
    class Lying(NormalisedAverage):
        def contribution(self, current, local, steps, rate):
            return np.append(local, np.float32([lie, lie, lie]))

    small = Small(step=NORMALISED, codec=codec)
    liar = small.parts[4]._training
    liar.parameters = replace(liar.parameters, step=Lying(50))
    assert all(record.participants == 4 and record.rejected == 0 for record in small.play(6))
    assert 0 <= latest(small).memory[0] < 1e19
    assert 0 <= latest(small).memory[1] <= 64
    assert 1 <= NORMALISED.signals(latest(small)).effort <= 4
    assert np.abs(latest(small).weights).max() < 4  # targets are drawn from a normal distribution


# What clients tell each other: the rate in use, and where the model is going ---------------------------


def test_all_clients_know_the_mean_rate_of_the_round_before():
    small = with_unequal_clients(step=NORMALISED)
    assert NORMALISED.signals(latest(small)) == Signals(None, None, effort=1.0)
    small.play(1)
    counts = {i: Learner(i).sample_count for i in small.parts}
    logs = sum(counts[i] * math.log(unequal(i, 0).eta) for i in counts) / sum(counts.values())
    told = NORMALISED.signals(latest(small))
    assert told.rate == pytest.approx(math.exp(logs), rel=1e-5)
    assert told.alignment is None  # of two changes there is one


def test_the_alignment_is_the_cosine_between_the_last_two_changes():
    small, models = with_unequal_clients(step=NORMALISED), [initial_weights()]
    for rounds in (1, 2, 3):
        small.play(rounds)
        models.append(latest(small).weights)
    first, second = (models[t][:50] - models[t - 1][:50] for t in (2, 3))
    expected = np.dot(first, second) / np.linalg.norm(first) / np.linalg.norm(second)
    assert NORMALISED.signals(latest(small)).alignment == pytest.approx(expected, abs=1e-5)


def test_a_sketch_of_a_large_model_tells_nearly_the_same():
    step, rng = NormalisedAverage(learned=300_000), stream(0, "large")
    assert len(step.initial_memory(300_000)) < 9_000
    weights, memory = rng.normal(size=300_000).astype(np.float32), step.initial_memory(300_000)
    direction = rng.normal(size=300_000).astype(np.float32)
    for _ in range(2):
        after = weights + direction + rng.normal(size=300_000).astype(np.float32)
        average = np.append(after, np.float32([1, 40, 1]))
        weights, memory = step.apply(GlobalModel(b"", weights, memory=memory), average, 20)
    assert step.signals(GlobalModel(b"", weights, memory=memory)).alignment == pytest.approx(0.5, abs=0.05)


def test_the_rate_in_use_follows_liars_by_a_factor_of_four_a_round_at_most():
    memory = NORMALISED.initial_memory(60)
    for rate, bounded in ((37.0, 37.0), (1e19, 39.0), (64.0, 41.0), (0.0, 39.0)):
        average = np.append(initial_weights(), np.float32([5, rate, 1]))
        _, memory = NORMALISED.apply(GlobalModel(b"", initial_weights(), memory=memory), average, 4)
        assert NORMALISED.signals(GlobalModel(b"", initial_weights(), memory=memory)).rate == 2.0 ** (
            bounded - 40
        )


@pytest.mark.parametrize("eta", [0.0, 1e-300, 1e-9, 0.1, 1e3, 1e300])
def test_any_rate_can_be_told(eta):
    model = GlobalModel(b"", initial_weights(), memory=NORMALISED.initial_memory(60))
    told = NORMALISED.contribution(model, initial_weights(), 1, eta)[-2]
    assert 0 <= told <= 64
    if 1e-9 <= eta <= 1e3:
        assert 2.0 ** (told - 40.0) == pytest.approx(eta, rel=1e-5)


# How far clients' changes agree, and what share of their epochs that is worth ---------------------------


def after_round(changes: list[np.ndarray], memory: np.ndarray) -> np.ndarray:
    """The memory after a round in which equal clients changed W(t) so."""
    model = GlobalModel(b"", initial_weights(), memory=memory)
    told = [NORMALISED.contribution(model, initial_weights() + change, 3, rate=0.1) for change in changes]
    average = np.mean(told, axis=0, dtype=np.float64).astype(np.float32)
    return NORMALISED.apply(model, average, len(changes))[1]


def drawn(clients: int, common: float, size: float = 0.1) -> list[np.ndarray]:
    """Changes of which so much is the same for all."""
    rng = stream(clients, "changes")
    shared = rng.normal(size=60)
    return [
        (size * (common * shared + (1 - common) * rng.normal(size=60))).astype(np.float32)
        for _ in range(clients)
    ]


def test_the_agreement_compares_the_mean_change_with_the_changes():
    changes = drawn(5, 0.6)
    told = [change[:50].astype(np.float64) for change in changes]
    mean = np.mean(told, axis=0)
    expected = (mean @ mean / np.mean([one @ one for one in told]) - 1 / 5) / (1 - 1 / 5)
    effort = float(after_round(changes, NORMALISED.initial_memory(60))[3])
    assert 0.15 < expected < 0.6
    assert effort == pytest.approx(math.sqrt(expected / 0.15), rel=1e-4)


@pytest.mark.parametrize("size", [1e-5, 0.1, 100.0])
@pytest.mark.parametrize("clients", [3, 20, 200])
def test_clients_that_agree_work_more_and_those_that_do_not_work_less(clients, size):
    memory = NORMALISED.initial_memory(60)
    efforts = []
    for _ in range(8):
        memory = after_round(drawn(clients, 1.0, size), memory)
        efforts.append(float(memory[3]))
    assert efforts == sorted(efforts) and efforts[-1] == 4.0
    if clients < 20:
        return  # the common direction of three random ones is a matter of luck
    for _ in range(8):
        memory = after_round(drawn(clients, 0.0, size), memory)
        efforts.append(float(memory[3]))
    assert efforts[8:] == sorted(efforts[8:], reverse=True) and efforts[-1] == 1.0


@pytest.mark.parametrize("length", [0.0, -1.0, 1e-30, 2.0**63, np.inf, np.nan])
@pytest.mark.parametrize("contributors", [1, 2, 20])
@pytest.mark.parametrize("before", [1.0, 2.0, 4.0])
def test_whatever_others_say_of_their_lengths_the_effort_is_halved_or_doubled_at_most(
    length, contributors, before
):
    memory = NORMALISED.initial_memory(60)
    memory[3] = before
    model = GlobalModel(b"", initial_weights(), memory=memory)
    average = np.append(initial_weights() + np.float32(0.1), np.float32([5, 40, length]))
    _, memory = NORMALISED.apply(model, average, contributors)
    after = NORMALISED.signals(replace(model, memory=memory)).effort
    assert max(before / 2, 1) <= after <= min(before * 2, 4)


def test_a_change_of_any_length_can_be_told():
    model = GlobalModel(b"", initial_weights(), memory=NORMALISED.initial_memory(60))
    for change in (0.0, 1e-6, 1.0, 1024.0, 1e30):
        told = NORMALISED.contribution(model, initial_weights() + np.float32(change), 1, 0.1)[-1]
        assert 0 <= told <= 2.0**63


def test_a_state_that_was_saved_with_another_server_step_is_refused():
    before = Small(step=NORMALISED)
    before.play(1)
    with pytest.raises(ProtocolError, match="another server step"):
        Small().federation.restore(before.federation.saved_state())
