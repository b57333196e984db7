import numpy as np
import pytest

from dapfl.config import AgentConfig, CryptoConfig, PolicyConfig
from dapfl.crypto.engines.base import available_engines
from dapfl.federation.keys.kdc import generate
from dapfl.federation.records import RoundRecord
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.metrics import Metrics
from tests.federation.small import (
    SIZE,
    Broken,
    Diverging,
    Dropping,
    Learner,
    Recording,
    Small,
    fixed_policy,
    initial_weights,
    stream,
)


def weighted_mean(rounds: int, clients: int = 4, policy=(0.1, 3)) -> np.ndarray:
    """What federated averaging (Eq. 3) gives, in plain floating point."""
    weights = initial_weights()
    for t in range(rounds):
        learners = {i: Learner(i) for i in range(1, clients + 1)}
        chosen = Hyperparameters(*policy, batch_size=32)
        local = {i: learners[i].train(weights, chosen, stream(7, "sgd", i, t)) for i in learners}
        total = sum(learner.sample_count for learner in learners.values())
        mean = sum(learners[i].sample_count * local[i].astype(np.float64) for i in learners) / total
        weights = mean.astype(np.float32)
    return weights


def test_a_federation_averages_as_equation_3_says():
    small = Small()
    small.play(3)
    np.testing.assert_allclose(small.federation.weights, weighted_mean(3), atol=2e-7)


@pytest.mark.parametrize("codec", ["exact", "compact"])
@pytest.mark.parametrize("one_exchange_per_round", [False, True])
def test_encryption_and_envelope_change_no_bit_of_the_model(codec, one_exchange_per_round):
    def weights(**options):
        small = Small(codec=codec, one_exchange_per_round=one_exchange_per_round, **options)
        records = small.play(4)
        assert [record.participants for record in records] == [4, 4, 4, 4]
        return small.federation.weights

    plain = weights(encryption="none")
    assert (plain != initial_weights()).any()
    np.testing.assert_array_equal(plain, weights(envelope="hybrid"))
    np.testing.assert_array_equal(plain, weights(envelope="paillier"))


def test_keys_of_full_size_and_either_generator_change_no_bit_either():
    plain = Small(clients=3, encryption="none")
    plain.play(2)
    for crypto in (
        CryptoConfig(decryption="shared"),
        CryptoConfig(
            key_bits=512,
            decryption="shared",
            generator="random",
            randomness="full",
            allow_insecure_small_keys=True,
        ),
    ):
        full = Small(clients=3, keys=generate(3, crypto))
        assert [record.participants for record in full.play(2)] == [3, 3]
        np.testing.assert_array_equal(full.federation.weights, plain.federation.weights)


@pytest.mark.parametrize("engine", available_engines())
def test_engines_change_no_bit_of_the_model(engine):
    plain = Small(clients=3, encryption="none")
    plain.play(2)
    crypto = CryptoConfig(key_bits=1024, engine=engine, decryption="shared", allow_insecure_small_keys=True)
    other = Small(clients=3, keys=generate(3, crypto))
    other.play(2)
    np.testing.assert_array_equal(other.federation.weights, plain.federation.weights)


def test_recovering_the_model_at_once_or_with_the_next_call_gives_the_same_lines():
    at_once, deferred = (Small(one_exchange_per_round=one).play(3) for one in (False, True))
    for a, b in zip(at_once, deferred, strict=True):
        assert (a.round, a.loss, a.accuracy, a.f1, a.cohort) == (b.round, b.loss, b.accuracy, b.f1, b.cohort)
        assert a.loss is not None


def test_deferred_recovery_needs_one_exchange_a_round_and_a_last_one():
    small = Small(one_exchange_per_round=True, wrap=lambda _, transport: Recording(transport))
    small.play(5)
    assert len(small.transport.sent) == 6


def test_line_t_scores_the_model_that_round_t_made():
    small = Small()
    record = small.federation.run_round(0)
    assert record.loss == Learner(99).evaluate(small.federation.weights).loss
    assert record.round == 0
    assert small.federation.next_round == 1


def test_record_says_what_happened():
    small = Small(budgets={4: 4.0}, policy=fixed_policy(alpha=5))
    record = small.federation.run_round(0)
    assert record.participants == 3
    assert record.cohort == (1, 2, 3)
    assert record.violations == 1
    assert record.epochs == 3 * 5 + 2  # client 4 affords two epochs, and then nothing comes of it
    assert record.wasted_epochs == 2
    assert record.simulated_seconds == 7.0  # 5 epochs and 2 transfers; client 4 gave out at 4
    first, *_, last = record.clients
    assert first.status == "accepted"
    assert (first.eta, first.alpha, first.samples, first.cost, first.budget) == (0.1, 5, 25, 7.0, 20.0)
    seen = Learner(1).evaluate(initial_weights())
    assert first.state == (seen.loss, seen.accuracy, seen.f1)
    assert last.status == "over-budget"
    assert last.cost == 7.0
    assert {"exchange", "open", "verify", "aggregate", "sign", "score", "total", "client_train"} <= set(
        record.seconds
    )
    assert RoundRecord.from_json(record.to_json()) == record


def test_bytes_are_counted_both_ways():
    small = Small(wrap=lambda _, transport: Recording(transport))
    record = small.federation.run_round(0)
    traffic = small.transport
    assert record.bytes_down == sum(len(data) for exchange in traffic.sent for data in exchange.values())
    assert record.bytes_up == sum(len(data) for exchange in traffic.replies for data in exchange.values())


def test_unshared_reports_leave_the_model_as_it_is_and_the_lines_bare():
    open_, closed = Small(), Small(share_reports=False)
    open_.play(2)
    *_, record = closed.play(2)
    np.testing.assert_array_equal(open_.federation.weights, closed.federation.weights)
    assert record.clients[0].samples is None
    assert record.clients[0].eta is None
    assert record.simulated_seconds is None
    assert record.participants == 4


def test_the_agent_of_a_client_whose_weights_cannot_be_sent_backs_off():
    class Huge(Learner):
        """Its loss looks fine: only the weights say that training has diverged."""

        def train(self, *args):
            return np.full(SIZE, 2000, np.float32)

        def evaluate(self, weights):
            return Metrics(1.0 if weights[0] == 2000 else 2.0, 0.5, 0.5)

    # With its whole budget a client ends its search in the first round.
    small = Small(learners={2: Huge(2)}, policy=PolicyConfig(agent=AgentConfig(share=1.0)))
    units = [record.clients[1].unit for record in small.play(3)]
    assert units[1] == pytest.approx(units[0] / 2)
    assert units[2] == pytest.approx(units[0] / 4)


def test_a_diverged_client_is_named_and_left_out():
    small = Small(learners={2: Diverging(2)})
    record = small.federation.run_round(0)
    assert record.cohort == (1, 3, 4)
    assert record.clients[1].status == "diverged"
    assert [(r.client, r.reason) for r in record.rejections] == [(2, "diverged")]
    assert np.isfinite(small.federation.weights).all()


def test_nothing_of_a_clients_exception_leaves_its_device(caplog):
    small = Small(learners={2: Broken(2)}, wrap=lambda _, transport: Recording(transport), encryption="none")
    record = small.federation.run_round(0)
    assert record.clients[1].status == "failed:internal-error"
    assert record.participants == 3
    everything = b"".join(data for exchange in small.transport.replies for data in exchange.values())
    assert b"secret" not in everything
    assert b"RuntimeError" not in everything


def test_below_the_minimum_cohort_the_model_stays_and_the_next_round_goes_on():
    small = Small(
        wrap=lambda _, transport: Dropping(
            transport, lambda exchange, client: "late" if exchange == 2 and client in (1, 2) else None
        )
    )
    first, second, third = small.play(3)
    assert first.participants == 4
    assert second.participants == 0
    assert second.cohort == ()
    assert {c.id: c.status for c in second.clients} == {
        1: "failed:late",
        2: "failed:late",
        3: "failed:min-cohort",
        4: "failed:min-cohort",
    }
    assert second.wasted_epochs == second.epochs > 0
    assert (second.loss, second.accuracy) == (first.loss, first.accuracy)
    assert third.participants == 4
    assert third.loss != second.loss


@pytest.mark.parametrize(("min_cohort", "status"), [(3, "failed:min-cohort"), (1, "failed:no-agreement")])
def test_a_lone_honest_upload_is_not_called_a_mismatch(min_cohort, status):
    """CS has not seen the model yet, and one client is too few to say what it is."""
    small = Small(
        one_exchange_per_round=True,
        min_cohort=min_cohort,
        wrap=lambda _, transport: Dropping(
            transport, lambda exchange, client: "late" if 1 <= exchange < 5 and client != 4 else None
        ),
    )
    _, second, *_, last = small.play(4)
    assert [client.status for client in second.clients] == ["failed:late"] * 3 + [status]
    assert second.rejections == ()
    assert second.participants == 0
    assert last.participants == 4


@pytest.mark.parametrize("codec", ["exact", "compact"])
@pytest.mark.parametrize("one_exchange_per_round", [False, True])
@pytest.mark.parametrize("encryption", ["paillier", "none"])
def test_a_client_that_missed_rounds_catches_up(codec, one_exchange_per_round, encryption):
    away = range(2, 5) if one_exchange_per_round else range(2, 8)
    small = Small(
        codec=codec,
        one_exchange_per_round=one_exchange_per_round,
        encryption=encryption,
        wrap=lambda _, transport: Dropping(
            transport, lambda exchange, client: "offline" if client == 4 and exchange in away else None
        ),
    )
    records = small.play(7)
    assert records[3].cohort == (1, 2, 3)
    assert records[-1].cohort == (1, 2, 3, 4)
    assert all(record.rejected == 0 for record in records)
    assert all(record.loss is not None for record in records)


def test_a_client_that_lost_its_memory_rejoins_with_the_compact_codec():
    small = Small(codec="compact")
    rounds = small.federation.rounds(6)
    for _ in range(2):
        next(rounds)
    small.local.clients[4] = small.client(4)
    small.store._models._values.clear()
    first, second, third = next(rounds), next(rounds), next(rounds)
    assert first.clients[3].status == "failed:unknown-model"
    assert first.cohort == (1, 2, 3)
    assert second.cohort == third.cohort == (1, 2, 3, 4)


@pytest.mark.parametrize("early", [0, 1, 3, 5])
@pytest.mark.parametrize("envelope", ["hybrid", "paillier"])
def test_the_order_of_replies_changes_nothing(early, envelope):
    """Some are handed over as they arrive, in any order, and the others at the end."""

    class Shuffled:
        def __init__(self, inner):
            self.inner = inner

        def exchange(self, messages, timeout, arrived=None):
            replies, failures = self.inner.exchange(dict(reversed(messages.items())), timeout)
            order = [*list(replies)[1::2], *list(replies)[::2]]
            for client in order[:early]:
                arrived(client, replies.pop(client))
                arrived(client, b"once is enough")
                arrived(99, b"nobody has asked")
            return dict(reversed(replies.items())), failures

    def damaged(client, data):
        return data[:-1] + bytes([data[-1] ^ 1]) if client == 2 else data

    def played(wrap):
        small = Small(clients=5, envelope=envelope, wrap=wrap)
        for client, handler in list(small.local.clients.items()):
            small.local.clients[client] = Altered(handler, lambda data, c=client: damaged(c, data))
        return small, small.play(2)

    def opened(record):
        return tuple(each for each in record.rejections if each.reason not in ("duplicate", "not-asked"))

    (forward, first), (shuffled, second) = played(lambda _, inner: inner), played(lambda _, t: Shuffled(t))
    np.testing.assert_array_equal(forward.federation.weights, shuffled.federation.weights)
    assert [r.rejections for r in first] == [opened(r) for r in second] != [(), ()]
    unopened = {(each.client, each.reason) for r in second for each in r.rejections if each not in opened(r)}
    assert (99, "not-asked") in unopened if early else not unopened
    assert [r.cohort for r in first] == [r.cohort for r in second] == [(1, 3, 4, 5)] * 2
    assert [[c.status for c in r.clients] for r in first] == [[c.status for c in r.clients] for r in second]


class Altered:
    """A client whose replies are altered on their way."""

    def __init__(self, inner, alter):
        self.inner, self.alter = inner, alter

    def handle(self, message):
        return self.alter(self.inner.handle(message))


def test_selected_clients_only_are_called():
    class Odd:
        def __init__(self):
            self.observed = []

        def select(self, t, clients):
            return frozenset(c for c in clients if c % 2)

        def observe(self, reports):
            self.observed.append(reports)

        def saved_state(self):
            return b""

        def restore(self, state):
            pass

    selector = Odd()
    small = Small(
        clients=6,
        wrap=lambda _, transport: Recording(transport),
        options={"selector": selector},
    )
    record = small.federation.run_round(0)
    assert set(small.transport.sent[0]) == {1, 3, 5}
    assert record.cohort == (1, 3, 5)
    assert [c.status for c in record.clients] == ["accepted", "unselected"] * 3
    (reports,) = selector.observed
    assert [(r.client, r.completed) for r in reports] == [(1, True), (3, True), (5, True)]
    assert reports[0].cost == 5.0


def test_rounds_are_played_in_order():
    with pytest.raises(ValueError, match="round 0 is next"):
        Small().federation.run_round(3)
