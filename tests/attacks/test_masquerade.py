"""Attackers that pretend to be someone else, with no key, their own, or another client's."""

import numpy as np
import pytest

from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.signature import sign
from dapfl.federation.messages import (
    VERSION,
    Aggregate,
    Call,
    Context,
    Delivery,
    Refusal,
    Request,
    Sealed,
    Signed,
    associated_data,
    decode_delivery,
    decode_server_body,
    digest,
    encode,
)
from dapfl.federation.records import Rejection
from dapfl.federation.transport import EVERYONE, SERVER
from tests.federation.small import KEY_BITS, Small

OWN_KEY = generate_keypair(KEY_BITS, allow_insecure_small_keys=True)


def upload(small: Small, client: int):
    (body,) = small.server.open(
        client, small.client(client).handle(small.server.open_round(0, [client])[client])
    )
    return body


def test_with_no_key_nothing_is_taken():
    small = Small()
    body = encode(upload(small, 1))
    for signature in (b"", bytes(128)):
        box = encode(Delivery(VERSION, (Signed(body, signature),)))
        small.server.receive(1, encode(Sealed(VERSION, 1, box)))
    assert small.server.rejections == [Rejection(1, "bad-envelope")] * 2


@pytest.mark.parametrize("envelope", ["hybrid", "paillier"])
def test_with_a_key_of_its_own_nothing_is_taken(envelope):
    small = Small(envelope=envelope)
    body = encode(upload(small, 1))
    delivery = encode(Delivery(VERSION, (Signed(body, sign(body, OWN_KEY)),)))
    context = associated_data(small.federation_id, 1)
    own_box = envelope_named(envelope).seal(delivery, OWN_KEY.public_key, context)
    small.server.receive(1, encode(Sealed(VERSION, 1, own_box)))
    small.server.receive(1, small.resealed(1, delivery))  # even if it knows PK_1^Enc
    assert small.server.rejections == [Rejection(1, "bad-envelope"), Rejection(1, "bad-signature")]


def test_with_another_clients_keys_nothing_is_taken():
    small = Small()
    body = upload(small, 1)
    small.server.receive(1, small.sealed(1, body, signer=2))
    assert small.server.rejections == [Rejection(1, "bad-signature")]
    small.server.receive(2, small.sealed(2, body))  # client 2 signs and seals as itself what names client 1
    assert small.server.rejections[-1] == Rejection(2, "wrong-sender")


def test_a_masquerade_does_not_keep_the_true_client_out():
    small = Small()
    messages = small.server.open_round(0, [1])
    body = encode(upload(small, 1))
    messages = small.server.open_round(0, [1])
    forged = encode(Delivery(VERSION, (Signed(body, sign(body, OWN_KEY)),)))
    small.server.receive(1, small.resealed(1, forged))
    small.server.receive(1, small.parts[1].handle(messages[1]))
    assert small.server.memory.ledger.status == {1: "accepted"}


def signed_by(key, body) -> Signed:
    encoded = encode(body)
    return Signed(encoded, sign(encoded, key))


@pytest.mark.parametrize("signer", ["outsider", "client"])
def test_a_forged_aggregate_is_refused_by_clients(signer):
    small = Small()
    small.play(1)
    key = OWN_KEY if signer == "outsider" else small.keys[1][2].sk_i_sign
    head = small.server.memory.history.head
    true = decode_server_body(head.signed.body)
    forged = signed_by(key, Aggregate(true.context, true.cohort, true.contributions[::-1], true.sample_count))
    call = signed_by(key, Call(Context(VERSION, small.scope, 1, SERVER, EVERYONE, digest(forged.body))))
    before = small.parts[1]._model
    (body,) = small.server.open(1, small.parts[1].handle(encode(Delivery(VERSION, (forged, call)))))
    assert isinstance(body, Refusal)
    assert body.reason == "bad-signature"
    assert small.parts[1]._model is before


@pytest.mark.parametrize("signer", ["outsider", "client"])
def test_a_rogue_request_for_the_global_model_is_refused(signer):
    small = Small()
    small.play(1)
    key = OWN_KEY if signer == "outsider" else small.keys[1][2].sk_i_sign
    context = Context(VERSION, small.scope, 9, SERVER, 1, small.server.memory.history.head.name)
    message = encode(
        Delivery(
            VERSION, (small.server.memory.history.head.signed, signed_by(key, Request(context, whole=True)))
        )
    )
    reply = small.parts[1].handle(message)
    (body,) = small.server.open(1, reply)
    assert isinstance(body, Refusal)
    assert body.reason == "bad-signature"
    assert small.federation.weights[:2].tobytes() not in reply


def test_what_a_forger_builds_on_a_true_call_is_refused():
    """A true call names its model: a forged model in front of it is no use, even before the signature."""
    small = Small()
    model, call = decode_delivery(small.server.open_round(0, [1])[1], 10**6).parts
    initial = decode_server_body(model.body)
    other = signed_by(OWN_KEY, initial)
    (body,) = small.server.open(1, small.parts[1].handle(encode(Delivery(VERSION, (other, call)))))
    assert body.reason == "bad-signature"
    (body,) = small.server.open(1, small.parts[1].handle(encode(Delivery(VERSION, (call,)))))
    assert body.reason == "unknown-model"
    (body,) = small.server.open(1, small.parts[1].handle(encode(Delivery(VERSION, (model, call)))))
    assert not isinstance(body, Refusal)
    assert np.isfinite(small.parts[1]._model.weights).all()
