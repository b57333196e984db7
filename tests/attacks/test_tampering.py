"""One bit altered, in every field of every message, with and without the keys to seal it again."""

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from dapfl.errors import ProtocolError
from dapfl.federation.messages import (
    VERSION,
    Delivery,
    Refusal,
    Signed,
    decode_client_body,
    decode_delivery,
    decode_sealed,
    decode_server_body,
    encode,
)
from dapfl.federation.records import ClientReport
from tests.federation.small import Recording, Small, kind_of

FORGERY = {"bad-signature", "malformed", "wrong-version"}


def played(**options) -> Small:
    """A federation after three rounds, with all that was sent."""
    small = Small(wrap=lambda _, transport: Recording(transport), **options)
    small.play(3)
    return small


def altered(value, path: str = "") -> Iterator[tuple[str, object]]:
    """Every way to change one bit (or the next value) of one field, however deep."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            for place, changed in altered(getattr(value, name), f"{path}.{name}"):
                yield place, msgspec.structs.replace(value, **{name: changed})
    elif isinstance(value, bytes):
        for place in {0, len(value) // 2, len(value) - 1} if value else ():
            yield f"{path}[{place}]", value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
        yield f"{path}+", value + b"\x00"
    elif isinstance(value, bool):
        yield path, not value
    elif isinstance(value, int):
        yield path, value ^ 1
    elif isinstance(value, float):
        yield path, float(np.nextafter(value, np.inf))
    elif isinstance(value, str):
        yield path, value[:-1] + chr(ord(value[-1]) ^ 1)
    elif isinstance(value, tuple):
        if value:
            yield f"{path}-", value[:-1]
        for place, item in enumerate(value):
            for where, changed in altered(item, f"{path}[{place}]"):
                yield where, (*value[:place], changed, *value[place + 1 :])
    elif isinstance(value, dict):
        for key, item in value.items():
            for where, changed in altered(item, f"{path}[{key}]"):
                yield where, {**value, key: changed}
    elif value is None:
        yield path, 0.0


def test_every_kind_of_field_is_altered():
    report = ClientReport(outcome="trained", alpha=3, refused=("replayed",), seconds={"train": 1.0})
    places = [place for place, _ in altered(report)]
    assert {".outcome", ".alpha", ".eta", ".refused-", ".seconds[train]"} <= set(places)


@pytest.mark.parametrize("envelope", ["hybrid", "paillier"])
@pytest.mark.parametrize("exchange", [2, 3], ids=["upload", "answer"])
def test_every_field_of_a_clients_message_is_protected(exchange, envelope):
    """By someone who can open and close envelopes, but cannot sign."""
    small = played(envelope=envelope)
    client, message = next(iter(small.transport.replies[exchange].items()))
    small.server.rejections.clear()
    before = small.server.saved_state()
    count = 0
    for forged in _forged_client_messages(small, client, message):
        small.server.receive(client, forged)
        count += 1
    reasons = [rejection.reason for rejection in small.server.rejections]
    assert len(reasons) == count > 20
    assert set(reasons) <= FORGERY
    assert "bad-signature" in reasons
    assert small.server.saved_state() == before


def _forged_client_messages(small: Small, client: int, message: bytes) -> Iterator[bytes]:
    context = b"dapfl/1/" + small.federation_id + b"/%d" % client
    box = small.server_suite().open(client, decode_sealed(message, len(message)).box, context)
    (part,) = decode_delivery(box, len(box)).parts
    for _, body in altered(decode_client_body(part.body)):
        signed = Signed(encode(body), part.signature)
        yield small.resealed(client, encode(Delivery(VERSION, (signed,))))
    for _, signed in altered(part):
        yield small.resealed(client, encode(Delivery(VERSION, (signed,))))


@pytest.mark.parametrize("codec", ["exact", "compact"])
@pytest.mark.parametrize("exchange", [0, 2, 3], ids=["initial-and-call", "aggregate-and-call", "request"])
def test_every_field_of_the_servers_messages_is_protected(exchange, codec):
    small = played(codec=codec)
    client, message = next(iter(small.transport.sent[exchange].items()))
    delivery = decode_delivery(message, len(message))
    kinds = set()
    for place, part in enumerate(delivery.parts):
        original = decode_server_body(part.body)
        kinds.add(kind_of(original))
        forgeries = [Signed(encode(body), part.signature) for _, body in altered(original)]
        forgeries += [signed for _, signed in altered(part)]
        for signed in forgeries:
            parts = (*delivery.parts[:place], signed, *delivery.parts[place + 1 :])
            victim = small.client(client)
            reply = victim.handle(encode(Delivery(VERSION, parts)))
            (refusal,) = small.server.open(client, reply)
            assert isinstance(refusal, Refusal)
            assert refusal.reason in FORGERY
            assert victim._model is None
    assert len(kinds) == len(delivery.parts) >= 2


def test_snapshots_are_protected_too():
    small = Small(codec="compact")
    small.play(2)
    small.server.memory.acknowledged.clear()
    message = small.server.open_round(2, [1])[1]
    parts = decode_delivery(message, len(message)).parts
    snapshot = decode_server_body(parts[0].body)
    assert kind_of(snapshot) == "snapshot"
    assert small.federation.weights[:2].tobytes() not in message
    for _, body in altered(snapshot):
        victim = small.client(1)
        forged = Signed(encode(body), parts[0].signature)
        (refusal,) = small.server.open(1, victim.handle(encode(Delivery(VERSION, (forged, *parts[1:])))))
        assert isinstance(refusal, Refusal)
        assert refusal.reason in FORGERY


@pytest.mark.parametrize("envelope", ["hybrid", "paillier"])
def test_bits_flipped_on_the_way_to_the_server_are_noticed(envelope):
    small = Small(envelope=envelope, wrap=lambda _, transport: Recording(transport))
    small.federation.run_round(0)
    message = small.transport.replies[0][1]
    small.server.open_round(1, [1])
    for place in {*range(40), *range(40, len(message), 251), len(message) - 1}:
        flipped = message[:place] + bytes([message[place] ^ 1 << place % 8]) + message[place + 1 :]
        with pytest.raises(ProtocolError) as caught:
            small.server.open(1, flipped)
        assert caught.value.reason in {"bad-envelope", "malformed", "wrong-sender", "wrong-version"}


def test_bits_flipped_on_the_way_to_a_client_are_noticed():
    small = played()
    message = small.transport.sent[2][1]
    for place in {*range(60), *range(60, len(message), 97), len(message) - 1}:
        flipped = message[:place] + bytes([message[place] ^ 1 << place % 8]) + message[place + 1 :]
        victim = small.client(1)
        (refusal,) = small.server.open(1, victim.handle(flipped))
        assert isinstance(refusal, Refusal)
        assert refusal.reason in FORGERY


def test_a_round_goes_on_without_the_client_whose_message_was_altered_on_the_way():
    class Altering:
        def __init__(self, inner):
            self.inner = inner

        def exchange(self, messages, timeout, arrived=None):
            replies, failures = self.inner.exchange(messages, timeout)
            if 2 in replies:
                data = bytearray(replies[2])
                data[len(data) // 2] ^= 1
                replies[2] = bytes(data)
            return replies, failures

    small = Small(wrap=lambda _, transport: Altering(transport))
    record = small.federation.run_round(0)
    assert record.cohort == (1, 3, 4)
    assert record.clients[1].status == "rejected:bad-envelope"
    assert record.rejected == len(record.rejections) >= 1
