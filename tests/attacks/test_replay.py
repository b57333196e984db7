"""Good messages at the wrong time, in the wrong place, too often."""

import numpy as np
import pytest

from dapfl.federation.messages import VERSION, Delivery, Refusal, decode_delivery, encode
from dapfl.federation.records import Rejection
from tests.federation.small import Recording, Small, insecure_keys


def recorded(**options) -> Small:
    return Small(wrap=lambda _, transport: Recording(transport), **options)


def refusal(small: Small, client: int, message: bytes) -> str:
    (body,) = small.server.open(client, small.parts[client].handle(message))
    assert isinstance(body, Refusal)
    return body.reason


def test_an_upload_repeated_in_its_own_round_is_a_duplicate():
    small = Small()
    messages = small.server.open_round(0, [1])
    upload = small.parts[1].handle(messages[1])
    small.server.receive(1, upload)
    small.server.receive(1, upload)
    assert small.server.ledger.rejections == [Rejection(1, "duplicate")]
    assert [tally.senders for tally in small.server._tallies.values()] == [[1]]


@pytest.mark.parametrize("later", [1, 2, 7])
def test_an_upload_repeated_in_a_later_round_is_refused(later):
    small = recorded()
    small.federation.run_round(0)
    small.server.open_round(later, [1, 2, 3, 4])
    for client, upload in small.transport.replies[0].items():
        small.server.receive(client, upload)
    assert [r.reason for r in small.server.ledger.rejections] == ["replayed"] * 4
    assert small.server._tallies == {}


def test_an_upload_for_a_round_to_come_is_refused():
    small = Small()
    early = small.parts[1].handle(small.server.open_round(5, [1])[1])
    small.server.open_round(4, [1])
    small.server.receive(1, early)
    assert small.server.ledger.rejections == [Rejection(1, "wrong-round")]


def test_an_upload_of_another_federation_is_refused():
    here, there = Small(), Small(keys=insecure_keys(federation=1))
    upload = there.parts[1].handle(there.server.open_round(0, [1])[1])
    here.server.open_round(0, [1])
    here.server.receive(1, upload)
    assert here.server.ledger.rejections == [Rejection(1, "bad-envelope")]


def test_without_keys_it_is_the_federations_name_that_gives_it_away():
    here, there = Small(encryption="none"), Small(encryption="none")
    there.federation_id = bytes(16)
    upload = here.parts[1].handle(here.server.open_round(0, [1])[1])
    stranger = Small(encryption="none")
    stranger.server._federation = bytes(16)
    stranger.server.open_round(0, [1])
    stranger.server.receive(1, upload)
    assert stranger.server.ledger.rejections == [Rejection(1, "wrong-federation")]


def test_one_clients_message_sent_as_another_is_refused():
    small = Small()
    messages = small.server.open_round(0, [1, 2])
    upload = small.parts[1].handle(messages[1])
    small.server.receive(2, upload)
    small.server.receive(9, upload)
    assert small.server.ledger.rejections == [Rejection(2, "wrong-sender"), Rejection(9, "unknown-sender")]


def test_an_answer_to_an_earlier_request_is_refused():
    small = recorded()
    small.play(3)
    (client, answer), *_ = small.transport.replies[1].items()
    small.server.receive(client, answer)
    assert small.server.ledger.rejections[-1] == Rejection(client, "replayed")


def test_a_call_of_an_earlier_round_is_refused_by_clients():
    small = recorded()
    small.play(3)
    for exchange in (0, 2, 4):
        assert refusal(small, 1, small.transport.sent[exchange][1]) == "replayed"


def test_a_request_is_good_for_its_recipient_only():
    small = recorded()
    small.play(1)
    ((first, message), *_) = small.transport.sent[1].items()
    other = next(client for client in small.parts if client != first)
    assert refusal(small, other, message) == "wrong-recipient"


def test_messages_of_another_federation_are_refused_by_clients():
    here, there = Small(), Small(keys=insecure_keys(federation=1))
    assert refusal(here, 1, there.server.open_round(0, [1])[1]) == "bad-signature"


def test_an_old_model_under_a_new_call_is_refused():
    small = recorded(codec="compact")
    small.play(3)
    old = decode_delivery(small.transport.sent[2][1], 10**6).parts[:-1]
    call = decode_delivery(small.server.open_round(3, [1])[1], 10**6).parts[-1]
    fresh = small.client(1)
    (body,) = small.server.open(1, fresh.handle(encode(Delivery(VERSION, (*old, call)))))
    assert body.reason == "unknown-model"


def test_messages_twice_and_in_any_order_change_nothing():
    class Scrambling:
        """Delivers everything three times, last first."""

        def __init__(self, small, inner):
            self.small, self.inner = small, inner

        def exchange(self, messages, timeout):
            replies, failures = self.inner.exchange(messages, timeout)
            for client in sorted(replies, reverse=True):
                self.small.server.receive(client, replies[client])
                self.small.server.receive(client, replies[client])
            return replies, failures

    honest, scrambled = Small(), Small(wrap=Scrambling)
    honest.play(3)
    records = scrambled.play(3)
    np.testing.assert_array_equal(honest.federation.weights, scrambled.federation.weights)
    for record in records:
        assert record.cohort == (1, 2, 3, 4)
        assert {r.reason for r in record.rejections} == {"duplicate"}
        assert {client.status for client in record.clients} == {"accepted"}
