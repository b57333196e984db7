"""The attackers of `dapfl run --adversary`: all refused by name, and not a bit of the result changes."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapfl.errors import ConfigError
from dapfl.federation.adversaries.adversary import ADVERSARIES, Adversaries, check_names
from dapfl.federation.adversaries.insiders import INSIDERS
from dapfl.federation.adversaries.outsiders import OUTSIDERS
from dapfl.federation.global_model.averaging import next_model
from dapfl.federation.messages import Answer, Sealed, Upload, decode_sealed
from dapfl.federation.records import Rejection
from dapfl.federation.transport import Exchange
from tests.federation.small import Recording, Small, insecure_keys

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
COMMITTEE = {
    "substituted-aggregate": {"below-min-cohort", "bad-proposal"},
    "second-proposal": {"replayed", "too-few-shares"},
    "inverse": {"unproved"},
    "false-share": {"false-share"},
}  # what a committee is for; without one, most of these get through


def attacked(*names: str, **options) -> Small:
    """A federation with attackers on its wire; those that need keys are clients 5 and 6."""
    insiders = [5, 6][: sum(name in INSIDERS for name in names)]

    def wrap(small: Small, transport):
        suites = {client: small.client_suite(client) for client in insiders}
        committee = small.keys[0].committee if small.keys else None
        return Adversaries(names, transport, small.server, small.parameters, suites, committee)

    return Small(insiders=tuple(insiders), wrap=wrap, **options)


def by_committee(*names: str, seat: bool = False) -> Small:
    """The same with a committee of five; the attacker may be one of them, who is asked first."""
    keys = insecure_keys(decryption="committee", seats=(5,) if seat else ())
    return attacked(*names, decryption="committee", keys=keys, clients=4 if seat else 6)


def test_every_adversary_is_expected_here():
    assert {*EXPECTED, *COMMITTEE} == set(ADVERSARIES)


@pytest.mark.parametrize("one_exchange_per_round", [False, True])
@pytest.mark.parametrize("name", EXPECTED)
def test_an_attacker_is_refused_by_name_and_changes_nothing(name, one_exchange_per_round):
    options = {"one_exchange_per_round": one_exchange_per_round}
    check_refused(Small(**options), attacked(name, **options), EXPECTED[name])


@pytest.mark.parametrize("name", {**EXPECTED, **COMMITTEE})
def test_against_a_committee_every_attacker_is_refused(name):
    expected = {**EXPECTED, **COMMITTEE}[name]
    seat = name in INSIDERS
    check_refused(by_committee(seat=seat), by_committee(name, seat=seat), expected)


def check_refused(honest: Small, small: Small, reasons: set[str]) -> None:
    """The attacked federation has the rounds of the honest one, and attacks are refused for these reasons."""
    expected, records = honest.play(3), small.play(3)
    np.testing.assert_array_equal(honest.federation.weights, small.federation.weights)
    assert [r.loss for r in records] == [r.loss for r in expected]
    assert [r.cohort for r in records] == [r.cohort for r in expected]
    (attacker,) = small.transport._attackers
    assert set(attacker.outcomes) <= reasons
    assert "ACCEPTED" not in attacker.outcomes
    assert "all refused" in attacker.summary() or "read no contribution" in attacker.summary()
    if reasons:
        assert sum(attacker.outcomes.values()) >= 3
        assert sum(record.rejected for record in records) >= 2  # the last refusals of clients come too late
    for record in records:
        assert record.rejected == len(record.rejections)


@pytest.mark.parametrize("name", ["substituted-aggregate", "inverse"])
def test_without_a_committee_a_malicious_server_gets_through_and_is_said_to(name):
    """The paper's design trusts CS to follow the protocol: these attacks are why there is a committee."""
    small = attacked(name)
    records = small.play(3)
    (line,) = small.transport.summary()
    assert "GOT THROUGH" in line
    assert len(records) == 3


def test_what_a_malicious_server_reads_without_a_committee_is_one_clients_model():
    """The request for the "aggregate" of one is answered with the weights of that one client."""
    small = attacked("substituted-aggregate")
    heard: list[tuple[int, object]] = []
    exchange = small.local.exchange

    def listen(messages, timeout):
        replies, failures = exchange(messages, timeout)
        heard.extend(
            (client, body) for client in replies for body in small.server.open(client, replies[client])
        )
        return Exchange(replies, failures)

    small.local.exchange = listen
    small.play(2)
    victim = [body for client, body in heard if client == 1 and isinstance(body, Upload)][1]
    numbers = np.frombuffer(victim.contribution, np.uint8).reshape(-1, small.server.row_bytes)
    sums = small.keys[1][1].sk_cs_enc.decrypt(numbers)
    model = next_model(b"", 1, sums, small.parameters.codec.encode_count(25), None, small.parameters)
    read = [body.weights for client, body in heard if client == 4 and isinstance(body, Answer)]
    assert model.contents in read


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


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_attackers_count_what_the_records_count(rounds):
    small = attacked("replay", "tamper", "rogue-request", "masquerade")
    recorded = sum(record.rejected for record in small.play(rounds))
    attackers = small.transport._attackers
    refused = sum(sum(attacker.outcomes.values()) for attacker in attackers)
    unrecorded = sum(attacker.unrecorded for attacker in attackers)
    assert unrecorded > 0  # what clients refuse after their last report
    assert refused - unrecorded == recorded
    assert any("by clients after their last report" in line for line in small.transport.summary())


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
    rejections = len(small.server.rejections)
    small.server.receive(1, data)
    assert len(small.server.rejections) == rejections + 1
    assert small.server.rejections[-1].reason == "malformed"


_cache: list[Small] = []


def _warm() -> Small:
    if not _cache:
        _cache.append(Small())
        _cache[0].federation.run_round(0)
    return _cache[0]
