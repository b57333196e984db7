import re
import weakref
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapfl.errors import ProtocolError
from dapfl.federation.messages import (
    PARTS,
    VERSION,
    Aggregate,
    Answer,
    Call,
    Context,
    Delivery,
    Initial,
    Notice,
    Proposal,
    Refusal,
    Report,
    Request,
    Sealed,
    Share,
    Signed,
    Snapshot,
    Upload,
    decode_client_body,
    decode_delivery,
    decode_sealed,
    decode_server_body,
    deliver_proposal,
    digest,
    encode,
)
from dapfl.federation.records import ClientReport
from dapfl.federation.server_state.round_ledger import RoundLedger
from tests.federation.small import kind_of

CONTEXT = Context(VERSION, bytes(range(16)), 3, 0, -1, bytes(range(32)))
REPORT = ClientReport(outcome="trained", eta=0.1, alpha=3, seconds={"train": 1.5}, refused=("replayed",))
SERVER_BODIES = [
    Initial(CONTEXT, b"\x00\x00\x80?"),
    Snapshot(CONTEXT, b"box", (1, 2, 5)),
    Aggregate(CONTEXT, (1, 2, 5), b"numbers", b"count"),
    Call(CONTEXT),
    Request(CONTEXT, whole=True),
    Proposal(CONTEXT, (Signed(b"upload", b"signature"),), (b"count",)),
]
CLIENT_BODIES = [
    Upload(CONTEXT, bytes(32), bytes(32), b"numbers", b"count", encode(REPORT)),
    Upload(CONTEXT, bytes(32), bytes(32), b"", b"", b""),
    Notice(CONTEXT, bytes(32), bytes(32), "over-budget", encode(REPORT)),
    Report(CONTEXT, bytes(32), encode(REPORT)),
    Answer(CONTEXT, bytes(32), bytes(32), b"weights"),
    Share(CONTEXT, bytes(32), b"numbers", b"proof"),
    Refusal(CONTEXT, bytes(32), "bad-signature"),
]
DECODERS = [
    lambda data: decode_delivery(data, 10_000),
    lambda data: decode_sealed(data, 10_000),
    decode_server_body,
    decode_client_body,
]


@pytest.mark.parametrize("body", SERVER_BODIES, ids=kind_of)
def test_server_bodies_survive_the_trip(body):
    assert decode_server_body(encode(body)) == body


@pytest.mark.parametrize("body", CLIENT_BODIES, ids=kind_of)
def test_client_bodies_survive_the_trip(body):
    assert decode_client_body(encode(body)) == body


@pytest.mark.parametrize("body", SERVER_BODIES, ids=kind_of)
def test_a_client_cannot_speak_as_the_server(body):
    with pytest.raises(ProtocolError, match="malformed"):
        decode_client_body(encode(body))


def test_deliveries_and_envelopes_survive_the_trip():
    delivery = Delivery(VERSION, (Signed(b"body", b"signature"),))
    sealed = Sealed(VERSION, 7, b"box")
    assert decode_delivery(encode(delivery), 100) == delivery
    opened = decode_sealed(encode(sealed), 100)
    assert (opened.version, opened.sender, opened.box) == (VERSION, 7, b"box")


@pytest.mark.parametrize("size", [0, 1, 255, 256, 2**16 - 1, 2**16, 2**17])
@pytest.mark.parametrize("parts", [1, 15, 16, PARTS])
def test_large_messages_are_read_in_place_and_have_one_encoding(size, parts):
    body = encode(msgspec.structs.replace(CLIENT_BODIES[0], contribution=bytes(size)))
    delivery = encode(Delivery(VERSION, (Signed(body, b"signature"),) * parts))
    read = decode_delivery(delivery, len(delivery), in_place=True)
    assert [(part.body, part.signature) for part in read.parts] == [(body, b"signature")] * parts
    inside = decode_client_body(read.parts[-1].body, in_place=True)
    assert isinstance(inside, Upload) and encode(inside) == body
    sealed = encode(Sealed(VERSION, 7, delivery))
    assert decode_sealed(sealed, len(sealed)).box == delivery


@pytest.mark.parametrize("size", [0, 300, 70_000])
@pytest.mark.parametrize("uploads", [0, 1, 20])
def test_a_proposal_is_written_and_signed_inside_its_delivery(size, uploads):
    proposal = Proposal(CONTEXT, (Signed(bytes(size), b"signature"),) * uploads, (b"count",) * uploads)
    body = encode(proposal)
    expected = Signed(body, digest(body))
    message, signed, shared = deliver_proposal(proposal, digest)
    assert proposal.uploads == ()  # they are in the message, and nowhere else
    assert message == encode(Delivery(VERSION, (expected,)))
    assert (bytes(signed.body), signed.signature) == (expected.body, expected.signature)
    assert encode(shared) == body
    assert signed.body.obj is message and all(upload.body.obj is message for upload in shared.uploads)


def test_uploads_are_let_go_of_once_they_are_in_the_proposal():
    ledger = RoundLedger(0)
    for client in (1, 2, 3):
        ledger.keep(client, Signed(bytes(70_000), b"signature"))
    kept = [weakref.ref(signed.body.obj) for signed in ledger.evidence.values()]
    proposal = Proposal(CONTEXT, tuple(ledger.evidence.values()), (b"count",) * 3)
    ledger.evidence.clear()
    alive = []

    def sign(body):
        alive.extend(each() for each in kept)
        return b"signature"

    _, _, shared = deliver_proposal(proposal, sign)
    assert alive == [None] * 3
    assert [(bytes(each.body), each.signature) for each in shared.uploads] == [
        (bytes(70_000), b"signature")
    ] * 3


def test_a_large_message_in_another_encoding_is_refused():
    body = encode(msgspec.structs.replace(CLIENT_BODIES[0], contribution=bytes(2**17)))
    for data, decode in (
        (encode(Sealed(VERSION, 7, body)), lambda data: decode_sealed(data, 2 * len(data))),
        (
            encode(Delivery(VERSION, (Signed(body, b"signature"),))),
            lambda data: decode_delivery(data, 2 * len(data), in_place=True),
        ),
        (body, lambda data: decode_client_body(data, in_place=True)),
    ):
        decode(data)
        one = data.index(b"\x01")  # the version, in a byte; also written as an integer of eight
        assert data[one] == VERSION
        longer = data[:one] + b"\xcf" + VERSION.to_bytes(8, "big") + data[one + 1 :]
        for other in (longer, b"\xdc\x00" + bytes([data[0] & 15]) + data[1:], data + b"\x00"):
            with pytest.raises(ProtocolError) as caught:
                decode(other)
            assert caught.value.reason == "malformed"


def test_more_bytes_than_there_can_be_are_not_even_looked_at():
    delivery = encode(Delivery(VERSION, (Signed(bytes(100), b""),)))
    with pytest.raises(ProtocolError) as caught:
        decode_delivery(delivery, len(delivery) - 1)
    assert caught.value.reason == "oversized"


def test_other_versions_are_named():
    for data, decode in (
        (Delivery(2, (Signed(b"", b""),)), DECODERS[0]),
        (Sealed(2, 1, b""), DECODERS[1]),
        (Call(msgspec.structs.replace(CONTEXT, version=2)), DECODERS[2]),
        (Refusal(msgspec.structs.replace(CONTEXT, version=0), bytes(32), "x"), DECODERS[3]),
    ):
        with pytest.raises(ProtocolError) as caught:
            decode(encode(data))
        assert caught.value.reason == "wrong-version"


def test_there_is_one_encoding_only():
    good = encode(Sealed(VERSION, 7, b"box"))
    array, version, sender, box = b"\x93", b"\x01", b"\x07", b"\xc4\x03box"
    assert good == array + version + sender + box
    longer_forms = [
        b"\xdc\x00\x03" + version + sender + box,
        array + b"\xcc\x01" + sender + box,
        array + version + b"\xcd\x00\x07" + box,
        array + version + sender + b"\xc5\x00\x03box",
        good + b"\x00",
    ]
    for data in longer_forms:
        with pytest.raises(ProtocolError, match="malformed"):
            decode_sealed(data, 100)


def test_a_report_has_one_encoding_too():
    body = encode(CLIENT_BODIES[0])
    whole_number_for_float = body.replace(b"\xcb" + bytes.fromhex("3ff8000000000000"), b"\x01")
    assert whole_number_for_float != body
    with pytest.raises(ProtocolError, match="malformed"):
        decode_client_body(whole_number_for_float)


def test_claimed_lengths_allocate_nothing():
    for data in (
        b"\x92\x01\xdd\xff\xff\xff\xff",
        b"\x93\x01\x07\xc6\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
    ):
        for decode in DECODERS:
            with pytest.raises(ProtocolError, match="malformed"):
                decode(data)


@given(st.binary(max_size=400))
def test_random_bytes_raise_nothing_but_protocol_errors(data):
    for decode in DECODERS:
        try:
            message = decode(data)
        except ProtocolError:
            continue
        assert encode(message) == data


@given(st.sampled_from(SERVER_BODIES + CLIENT_BODIES), st.data())
def test_altered_bytes_raise_nothing_but_protocol_errors(body, data):
    encoded = bytearray(encode(body))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    for decode in DECODERS:
        try:
            message = decode(bytes(encoded))
        except ProtocolError:
            continue
        assert encode(message) == bytes(encoded)


def test_values_that_cannot_be_are_refused():
    bad_contexts = [
        msgspec.structs.replace(CONTEXT, round=-1),
        msgspec.structs.replace(CONTEXT, scope=b"short"),
        msgspec.structs.replace(CONTEXT, model=b"short"),
        msgspec.structs.replace(CONTEXT, sender=-2),
    ]
    for context in bad_contexts:
        with pytest.raises(ProtocolError, match="malformed"):
            decode_server_body(encode(Call(context)))
    with pytest.raises(ProtocolError, match="malformed"):
        decode_delivery(encode(Delivery(VERSION, ())), 100)
    with pytest.raises(ProtocolError, match="malformed"):
        decode_delivery(encode(Delivery(VERSION, (Signed(b"", b""),) * 33)), 10_000)
    with pytest.raises(ProtocolError, match="malformed"):
        decode_client_body(encode(Refusal(CONTEXT, bytes(32), "x" * 65)))


def test_the_worked_example_of_the_documentation_is_true():
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
    (block,) = re.findall(r"```hex\n(.*?)```", text, re.DOTALL)
    shown = bytes.fromhex("".join(line.partition("#")[0] for line in block.splitlines()))
    run = bytes.fromhex("00066080b243e000a0a1a2a3a4a5a6a7")
    call = Call(Context(VERSION, bytes(range(16)) + run, 3, 0, -1, digest(b"dapfl")))
    assert shown == encode(Delivery(VERSION, (Signed(encode(call), b""),)))
