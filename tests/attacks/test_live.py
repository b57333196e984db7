"""The attackers of `dapfl run --adversary`: all refused by name, and not a bit of the result changes."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapfl.errors import ConfigError
from dapfl.federation.adversary import Adversaries, check_names
from dapfl.federation.insiders import INSIDERS
from dapfl.federation.messages import Sealed, decode_sealed
from dapfl.federation.outsiders import OUTSIDERS
from dapfl.federation.records import Rejection
from tests.federation.small import Recording, Small

EXPECTED = {
    "eavesdropper": set(),
    "masquerade": {"bad-envelope", "wrong-sender"},
    "tamper": {"bad-envelope", "bad-signature", "malformed", "wrong-sender", "wrong-version"},
    "replay": {"replayed", "duplicate", "not-asked"},
    "reorder": {"duplicate"},
    "malformed": {"malformed"},
    "oversized": {"oversized"},
    "forged-aggregate": {"bad-signature"},
    "rogue-request": {"bad-signature"},
    "wrong-size": {"wrong-size"},
    "nan": {"diverged"},
    "absurd-size": {"absurd-size"},
}


def attacked(*names: str, **options) -> Small:
    """A federation with attackers on its wire; those that need keys are clients 5 and 6."""
    insiders = [5, 6][: sum(name in INSIDERS for name in names)]

    def wrap(small: Small, transport):
        suites = {client: small.client_suite(client) for client in insiders}
        return Adversaries(names, transport, small.server, small.shape, suites)

    return Small(guests=tuple(insiders), wrap=wrap, **options)


def test_every_adversary_is_expected_here():
    assert set(EXPECTED) == {*OUTSIDERS, *INSIDERS}


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("name", EXPECTED)
def test_an_attacker_is_refused_by_name_and_changes_nothing(name, carried):
    honest, small = Small(carried=carried), attacked(name, carried=carried)
    expected, records = honest.play(3), small.play(3)
    np.testing.assert_array_equal(honest.federation.weights, small.federation.weights)
    assert [r.loss for r in records] == [r.loss for r in expected]
    assert [r.cohort for r in records] == [r.cohort for r in expected]
    (attacker,) = small.transport._attackers
    assert set(attacker.outcomes) <= EXPECTED[name]
    assert "ACCEPTED" not in attacker.outcomes
    assert "all refused" in attacker.summary() or "read no contribution" in attacker.summary()
    if EXPECTED[name]:
        assert sum(attacker.outcomes.values()) >= 3
        assert sum(record.rejected for record in records) >= 3
    for record in records:
        assert record.rejected == len(record.rejections)


def test_all_at_once():
    honest = Small(codec="compact")
    small = attacked(*OUTSIDERS, "wrong-size", "absurd-size", codec="compact")
    honest.play(3)
    records = small.play(3)
    np.testing.assert_array_equal(honest.federation.weights, small.federation.weights)
    assert len(small.transport.summary()) == len(OUTSIDERS) + 2
    statuses = {client.id: client.status for client in records[-1].clients}
    assert statuses[5] == "rejected:wrong-size"
    assert statuses[6] == "rejected:absurd-size"
    assert [statuses[client] for client in (1, 2, 3, 4)] == ["accepted"] * 4


def test_refusals_at_clients_are_counted_with_their_next_report():
    records = attacked("rogue-request").play(3)
    counted = [r for record in records for r in record.rejections]
    assert Rejection(1, "bad-signature", at="client") in counted


def test_without_encryption_attackers_get_through_and_are_said_to():
    small = attacked("eavesdropper", "masquerade", "rogue-request", encryption="none")
    small.play(2)
    eavesdropper, masquerade, request = small.transport.summary()
    assert "READ 8 CONTRIBUTIONS" in eavesdropper
    assert "GOT THROUGH" in masquerade
    assert "GOT THROUGH" in request


@pytest.mark.parametrize("encryption", ["paillier", "none"])
def test_an_absurd_size_is_refused_with_and_without_encryption(encryption):
    honest, small = Small(encryption=encryption), attacked("absurd-size", encryption=encryption)
    honest.play(2)
    records = small.play(2)
    np.testing.assert_array_equal(honest.federation.weights, small.federation.weights)
    assert records[0].rejections == (Rejection(5, "absurd-size"),)


def test_misspelt_adversaries_are_named():
    check_names(["tamper", "nan"])
    with pytest.raises(ConfigError, match=r"no adversary 'tampr'.*tamper"):
        check_names(["tamper", "tampr"])


# What an eavesdropper hears -------------------------------------------------------------------


@pytest.mark.parametrize("envelope", ["hybrid", "paillier"])
def test_nothing_on_the_wire_looks_like_a_model_or_a_report(envelope):
    small = Small(envelope=envelope, wrap=lambda _, transport: Recording(transport))
    small.play(3)
    up = b"".join(data for exchange in small.transport.replies for data in exchange.values())
    down = b"".join(data for exchange in small.transport.sent[1:] for data in exchange.values())
    plain = Small(encryption="none", wrap=lambda _, transport: Recording(transport))
    plain.play(3)
    open_up = b"".join(data for exchange in plain.transport.replies for data in exchange.values())
    telltale = [
        b"upload",
        b"answer",
        b"trained",
        b"client_",
        b"samples",
        small.federation.weights[:1].tobytes(),
    ]
    for secret in telltale[:3]:
        assert secret in open_up, "the search itself must work"
    for secret in telltale:
        assert secret not in up
    assert small.federation.weights[:1].tobytes() not in down[4 * 60 * 4 :]


@pytest.mark.parametrize("envelope", ["hybrid", "paillier"])
def test_what_is_sealed_looks_random(envelope):
    small = Small(envelope=envelope, wrap=lambda _, transport: Recording(transport))
    small.play(3)
    boxes = b"".join(
        decode_sealed(data, len(data)).box
        for exchange in small.transport.replies
        for data in exchange.values()
    )
    counts = np.bincount(np.frombuffer(boxes, np.uint8), minlength=256)
    expected = len(boxes) / 256
    deviation = float(((counts - expected) ** 2 / expected).sum())
    assert len(boxes) > 20_000
    assert deviation < 500  # chi-square of 255 degrees of freedom; 500 is ten deviations off


def test_no_key_of_the_federation_is_ever_on_the_wire():
    small = Small(wrap=lambda _, transport: Recording(transport))
    small.play(2)
    wire = b"".join(
        data
        for exchanges in (small.transport.sent, small.transport.replies)
        for exchange in exchanges
        for data in exchange.values()
    )
    server, clients = small.keys
    secrets = [server.sk_cs_sign, clients[1].sk_cs_enc, *server.sk_enc.values()]
    secrets += [bundle.sk_i_sign for bundle in clients.values()]
    for key in secrets:
        for prime in (key.p, key.q):
            for order in ("little", "big"):
                assert prime.to_bytes(KEY_PRIME_BYTES, order) not in wire


KEY_PRIME_BYTES = 32


# What is no message ----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_survived_by_both_sides(data):
    small = _warm()
    before = small.parts[1]._model
    reply = small.parts[1].handle(data)
    assert isinstance(msgspec.msgpack.decode(reply, type=Sealed), Sealed)
    assert small.parts[1]._model is before
    rejections = len(small.server.ledger.rejections)
    small.server.receive(1, data)
    assert len(small.server.ledger.rejections) == rejections + 1
    assert small.server.ledger.rejections[-1].reason == "malformed"


_cache: list[Small] = []


def _warm() -> Small:
    if not _cache:
        _cache.append(Small())
        _cache[0].federation.run_round(0)
    return _cache[0]
