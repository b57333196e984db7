"""Good messages at the wrong time, in the wrong place, too often."""

import numpy as np
import pytest

from dapfl.federation.messages import VERSION, Delivery, Refusal, decode_delivery, encode
from dapfl.federation.records import Rejection
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.transport import LocalTransport
from tests.federation.small import Recording, Small, initial_weights, insecure_keys


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
    assert small.server.rejections == [Rejection(1, "duplicate")]
    assert [partial_sum.senders for partial_sum in small.server._partial_sums.values()] == [[1]]


@pytest.mark.parametrize("later", [1, 2, 7])
def test_an_upload_repeated_in_a_later_round_is_refused(later):
    small = recorded()
    small.federation.run_round(0)
    small.server.open_round(later, [1, 2, 3, 4])
    for client, upload in small.transport.replies[0].items():
        small.server.receive(client, upload)
    assert [r.reason for r in small.server.rejections] == ["replayed"] * 4
    assert small.server._partial_sums == {}


def test_an_upload_for_a_round_to_come_is_refused():
    small = Small()
    early = small.parts[1].handle(small.server.open_round(5, [1])[1])
    small.server.open_round(4, [1])
    small.server.receive(1, early)
    assert small.server.rejections == [Rejection(1, "wrong-round")]


def test_an_upload_of_another_federation_is_refused():
    here, there = Small(), Small(keys=insecure_keys(federation=1))
    upload = there.parts[1].handle(there.server.open_round(0, [1])[1])
    here.server.open_round(0, [1])
    here.server.receive(1, upload)
    assert here.server.rejections == [Rejection(1, "bad-envelope")]


def test_without_keys_it_is_the_federations_name_that_gives_it_away():
    here = Small(encryption="none")
    upload = here.parts[1].handle(here.server.open_round(0, [1])[1])
    stranger = CentralServer(bytes(16), here.server_suite(), here.parameters, [1], initial_weights())
    stranger.open_round(0, [1])
    stranger.receive(1, upload)
    assert stranger.rejections == [Rejection(1, "wrong-federation")]


def test_one_clients_message_sent_as_another_is_refused():
    small = Small()
    messages = small.server.open_round(0, [1, 2])
    upload = small.parts[1].handle(messages[1])
    small.server.receive(2, upload)
    small.server.receive(9, upload)
    assert small.server.rejections == [Rejection(2, "wrong-sender"), Rejection(9, "unknown-sender")]


def test_an_answer_to_an_earlier_request_is_refused():
    small = recorded()
    small.play(3)
    (client, answer), *_ = small.transport.replies[1].items()
    small.server.receive(client, answer)
    assert small.server.rejections[-1] == Rejection(client, "replayed")


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

        def exchange(self, messages, timeout, arrived=None):
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


def test_uploads_of_an_earlier_run_with_the_same_keys_are_refused():
    earlier = recorded()
    earlier.play(1)
    later = Small()  # the same key bundles
    later.server.open_round(0, [1, 2, 3, 4])
    for client, upload in earlier.transport.replies[0].items():
        later.server.receive(client, upload)
    assert [r.reason for r in later.server.rejections] == ["wrong-run"] * 4
    assert later.server.aggregate() == ()


def test_a_client_enters_a_later_run_and_never_goes_back():
    first = recorded(standalone=True)
    first.play(2)
    second = Small(wrap=lambda *_: LocalTransport(first.parts))  # the same devices, which go on living
    assert [row.cohort for row in second.play(2)] == [(1, 2, 3, 4)] * 2
    assert np.array_equal(first.federation.weights, second.federation.weights)
    for message in (first.transport.sent[0][1], first.transport.sent[2][1]):
        (body,) = second.server.open(1, first.parts[1].handle(message))
        assert isinstance(body, Refusal) and body.reason == "old-run"
    assert len(second.play(3)[-1].cohort) == 4


def test_an_earlier_run_that_a_client_has_missed_is_refused_too():
    missed, current = Small(), Small()
    current.parts[1].handle(current.server.open_round(0, [1])[1])
    current.parts[1].handle(missed.server.open_round(0, [1])[1])
    (body,) = current.server.open(1, current.parts[1].handle(missed.server.open_round(1, [1])[1]))
    assert isinstance(body, Refusal) and body.reason == "old-run"


def test_parts_of_two_runs_in_one_delivery_are_refused():
    old, new = Small(), Small()
    model, _ = decode_delivery(old.server.open_round(0, [1])[1], 10**6).parts
    _, call = decode_delivery(new.server.open_round(0, [1])[1], 10**6).parts
    assert refusal(new, 1, encode(Delivery(VERSION, (model, call)))) == "malformed"
