"""Another recovery than the paper's: CS gets the sums decrypted, and sends clients the model itself."""

import msgspec
import numpy as np
import pytest

from dapfl.federation.global_model.averaging import next_model
from dapfl.federation.messages import Aggregate, Snapshot, decode_delivery, decode_server_body
from dapfl.federation.protection.base import rows_of
from tests.federation.small import Recording, Small, initial_weights


class Trusting:
    """CS has a helper that decrypts for it, unless the helper is away: a stand-in for a committee."""

    deferrable = False
    needs_evidence = False

    def __init__(self, small, parameters, memory):
        self.helper, self.parameters, self.memory = small.client_suite(1), parameters, memory
        self.away, self.sealed = False, None

    def begin(self):
        self.sealed = None

    def parts_for(self, known, seal):
        history = self.memory.history
        if history.latest.previous is None:
            return [history.head.signed]  # W(0), in the clear
        self.sealed = self.sealed or seal(history.latest)
        return [self.sealed]

    def requests(self, clients, address):
        self.settle()
        return {}

    def take_answer(self, sender, answer):
        raise AssertionError("nobody was asked")

    def take_commitment(self, sender, commitment):
        if commitment != self.commitment:
            self.memory.ledger.note_mismatch(sender)

    def take_refusal(self, sender, reason):
        pass

    def settle(self):
        history = self.memory.history
        if not history.is_known and not self.away:
            omega = decode_server_body(history.head.signed.body)
            assert isinstance(omega, Aggregate)
            rows, width = self.parameters.contribution_rows, self.helper.row_bytes
            sums = self.helper.decrypt(rows_of(omega.contributions, rows, width))
            count = self.helper.decrypt(rows_of(omega.sample_count, 1, width))
            model = next_model(
                history.head.name, len(omega.cohort), sums, count, history.latest, self.parameters
            )
            history.learn(model.weights, model.memory)
        return history.is_known

    @property
    def commitment(self):
        return self.memory.history.latest.commitment

    @property
    def failure(self):
        return None if self.memory.history.is_known else "no-quorum"

    @property
    def decrypted_by(self):
        return ()

    def saved_state(self):
        return msgspec.msgpack.encode(None)

    def restore(self, state):
        assert msgspec.msgpack.decode(state) is None
        self.begin()


def trusting(small):
    return lambda parameters, memory, members: Trusting(small, parameters, memory)


@pytest.mark.parametrize("codec", ["exact", "compact"])
@pytest.mark.parametrize("encryption", ["paillier", "none"])
@pytest.mark.parametrize("one_exchange_per_round", [False, True])
def test_another_recovery_gives_the_same_model_and_lines(codec, encryption, one_exchange_per_round):
    options = {"codec": codec, "encryption": encryption}
    shared = Small(**options)
    other = Small(
        **options,
        one_exchange_per_round=one_exchange_per_round,
        recovery=trusting,
        wrap=lambda _, transport: Recording(transport),
    )
    expected, records = shared.play(4), other.play(4)
    np.testing.assert_array_equal(other.federation.weights, shared.federation.weights)
    assert [(r.loss, r.cohort) for r in records] == [(r.loss, r.cohort) for r in expected]
    assert len(other.transport.sent) == 4, "nobody is asked for the model"
    bodies = [
        decode_server_body(part.body)
        for exchange in other.transport.sent[1:]
        for message in exchange.values()
        for part in decode_delivery(message, len(message)).parts
    ]
    assert any(isinstance(body, Snapshot) for body in bodies)
    assert not any(isinstance(body, Aggregate) for body in bodies), "what CS cannot read, it keeps"


def test_a_round_whose_model_cannot_be_recovered_is_lost_and_the_run_goes_on():
    small = Small(recovery=trusting)
    first = small.federation.run_round(0)
    small.server.recovery.away = True
    second = small.federation.run_round(1)
    small.server.recovery.away = False
    third = small.federation.run_round(2)
    assert (second.participants, second.cohort, second.wasted_epochs) == (0, (), second.epochs)
    assert {client.status for client in second.clients} == {"failed:no-quorum"}
    assert (second.loss, second.accuracy) == (first.loss, first.accuracy)
    assert third.participants == 4
    assert third.loss != first.loss


def test_another_recovery_goes_on_from_its_saved_state():
    whole, first, second = (Small(recovery=trusting, standalone=True) for _ in range(3))
    expected = whole.play(4)
    list(first.federation.rounds(2))
    second.federation.restore(first.federation.saved_state())
    for client, part in first.parts.items():
        second.parts[client].restore(part.saved_state())
    records = list(second.federation.rounds(4))
    assert [record.loss for record in records] == [record.loss for record in expected[2:]]
    np.testing.assert_array_equal(second.federation.weights, whole.federation.weights)
    assert (whole.federation.weights != initial_weights()).any()
