"""What CS does with clients that lie, fail or disagree."""

import msgspec
import numpy as np
import pytest

from dapfl.crypto.proofs.range_proof import prove
from dapfl.errors import ProtocolError
from dapfl.federation.global_model.models import commitment_of, to_bytes
from dapfl.federation.messages import Answer, Refusal, Upload, associated_data, digest
from dapfl.federation.records import Rejection
from tests.federation.small import SIZE, Lying, Small, initial_weights


def lie_about_the_model(body):
    if isinstance(body, Answer):
        wrong = np.full(SIZE, 0.5, np.float32)
        weights = to_bytes(wrong) if body.weights else b""
        return msgspec.structs.replace(body, commitment=commitment_of(wrong), weights=weights)
    return body


@pytest.mark.parametrize("one_exchange_per_round", [False, True])
def test_one_client_that_lies_about_the_global_model_is_noticed(one_exchange_per_round):
    honest, lied = (Small(one_exchange_per_round=one_exchange_per_round) for _ in range(2))
    lied.local.clients[2] = Lying(lied, 2, lie_about_the_model)
    expected, records = honest.play(5), lied.play(5)
    np.testing.assert_array_equal(honest.federation.weights, lied.federation.weights)
    assert [record.loss for record in records] == [record.loss for record in expected]
    noticed = [r for record in records for r in record.rejections]
    assert set(noticed) == {Rejection(2, "model-mismatch")}
    assert len(noticed) >= 2


@pytest.mark.parametrize("one_exchange_per_round", [False, True])
@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_two_clients_that_lie_alike_decide_nothing(codec, one_exchange_per_round):
    options = {"clients": 6, "codec": codec, "one_exchange_per_round": one_exchange_per_round}
    honest, lied = Small(**options), Small(**options)
    for liar in (1, 2):
        lied.local.clients[liar] = Lying(lied, liar, lie_about_the_model)
    expected, records = honest.play(7), lied.play(7)
    np.testing.assert_array_equal(honest.federation.weights, lied.federation.weights)
    assert [record.loss for record in records] == [record.loss for record in expected]
    noticed = {r for record in records for r in record.rejections}
    assert noticed == {Rejection(1, "model-mismatch"), Rejection(2, "model-mismatch")}


def test_two_clients_that_refuse_a_good_aggregate_do_not_undo_it():
    small = Small(clients=6)

    def refuse(body):
        return Refusal(body.context, body.answers, "bad-aggregate") if isinstance(body, Answer) else body

    for liar in (1, 2):
        small.local.clients[liar] = Lying(small, liar, refuse)
    assert [record.participants for record in small.play(3)] == [6, 6, 6]


def test_half_of_the_clients_cannot_settle_what_the_model_is():
    small = Small(clients=6)
    for liar in (1, 2, 3):
        small.local.clients[liar] = Lying(small, liar, lie_about_the_model)
    assert small.federation.run_round(0).loss is None  # nobody can say who is right


def test_weights_that_do_not_fit_their_own_hash_are_refused():
    small = Small()

    def alter(body):
        if isinstance(body, Answer) and body.weights:
            return msgspec.structs.replace(body, weights=bytes(4 * SIZE))
        return body

    for client in small.parts:
        small.local.clients[client] = Lying(small, client, alter)
    record = small.federation.run_round(0)
    assert record.loss is None
    assert {r.reason for r in record.rejections} == {"model-mismatch"}


def test_a_model_of_nan_is_refused():
    small = Small()

    def alter(body):
        if isinstance(body, Answer) and body.weights:
            nan = np.full(SIZE, np.nan, np.float32)
            return msgspec.structs.replace(body, weights=to_bytes(nan), commitment=commitment_of(nan))
        return body

    small.local.clients[1] = Lying(small, 1, alter)
    record = small.federation.run_round(0)
    assert Rejection(1, "not-finite") in record.rejections
    assert record.loss is not None


def test_a_contribution_that_starts_from_another_model_is_left_out():
    honest, small = Small(), Small()
    small.local.clients[3] = Lying(
        small, 3, lambda body: msgspec.structs.replace(body, commitment=digest(b"another model"))
    )
    record = small.federation.run_round(0)
    assert record.cohort == (1, 2, 4)
    assert record.clients[2].status == "rejected:model-mismatch"
    assert Rejection(3, "model-mismatch") in record.rejections
    honest.federation.run_round(0)


def test_clients_that_are_split_over_the_model_are_neither_added_nor_blamed():
    small = Small(one_exchange_per_round=True)

    def alter(body):
        if not isinstance(body, Upload) or body.context.round == 0:
            return body
        return msgspec.structs.replace(body, commitment=digest(b"another model"))

    for client in (1, 2):
        small.local.clients[client] = Lying(small, client, alter)
    record = small.play(2)[1]  # CS does not know W(1) yet when round 1 ends
    assert {client.status for client in record.clients} == {"failed:no-agreement"}
    assert record.rejections == ()
    assert record.participants == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"contribution": b""}, "wrong-size"),
        ({"contribution": bytes(1)}, "wrong-size"),
        ({"sample_count": b""}, "absurd-size"),
        ({"sample_count": bytes(1000)}, "absurd-size"),
        ({"sample_count": digest(b"never sent")}, "unknown-count"),
        ({"answers": digest(b"another call")}, "not-asked"),
    ],
)
def test_uploads_that_cannot_be_right_are_refused_by_name(change, reason):
    small = Small()

    def alter(body):
        return msgspec.structs.replace(body, **change) if isinstance(body, Upload) else body

    small.local.clients[2] = Lying(small, 2, alter)
    record = small.federation.run_round(0)
    assert record.cohort == (1, 3, 4)
    assert record.clients[1].status == f"rejected:{reason}"
    assert record.rejections == (Rejection(2, reason),)


def test_numbers_that_are_no_ciphertexts_are_refused():
    small = Small()
    width = small.server.row_bytes

    def alter(body):
        if isinstance(body, Upload):
            return msgspec.structs.replace(body, contribution=bytes(width) + body.contribution[width:])
        return body

    small.local.clients[2] = Lying(small, 2, alter)
    assert small.federation.run_round(0).rejections == (Rejection(2, "invalid-ciphertext"),)


def test_plaintexts_with_stray_bits_are_refused_without_encryption_too():
    small = Small(encryption="none")
    width = small.server.row_bytes

    def alter(body):
        if isinstance(body, Upload):
            return msgspec.structs.replace(body, contribution=b"\xff" * width + body.contribution[width:])
        return body

    small.local.clients[2] = Lying(small, 2, alter)
    assert small.federation.run_round(0).rejections == (Rejection(2, "invalid-ciphertext"),)


def test_the_proof_of_one_client_is_worth_nothing_to_another():
    small = Small()
    server, _ = small.keys
    context = associated_data(server.federation, 1)
    proof = prove(25, 1, 100, server.pk_cs_enc, context)
    small.server_suite().check_count(1, proof)
    with pytest.raises(ProtocolError, match="absurd-size"):
        small.server_suite().check_count(2, proof)


@pytest.mark.parametrize("encryption", ["paillier", "none"])
def test_a_proved_count_is_sent_once(encryption):
    small = Small(encryption=encryption)
    first, second, third = small.play(3)
    proof = len(small.parts[1]._suite.prove_count(25))
    assert first.bytes_up - second.bytes_up == pytest.approx(4 * (proof - 32), abs=16)
    assert abs(second.bytes_up - third.bytes_up) < 16


def spoiled(small: Small, body):
    """A contribution that is a good ciphertext of numbers which no client can have encoded."""
    if not isinstance(body, Upload):
        return body
    codec = small.parameters.codec
    rows = np.full((codec.plaintext_count(SIZE), codec.plaintext_bytes), 255, np.uint8)
    return msgspec.structs.replace(body, contribution=small.client_suite(2).encrypt(rows, b""))


@pytest.mark.parametrize("one_exchange_per_round", [False, True])
@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_an_aggregate_that_is_no_model_is_withdrawn_and_training_goes_on(one_exchange_per_round, codec):
    small = Small(one_exchange_per_round=one_exchange_per_round, codec=codec)
    rounds = small.federation.rounds(6)
    honest = small.local.clients[2]
    records = [next(rounds)]
    small.local.clients[2] = Lying(small, 2, lambda body: spoiled(small, body))
    records.append(next(rounds))
    small.local.clients[2] = honest
    records += rounds
    lost = [record for record in records if record.participants == 0]
    assert lost, "the spoiled round must not count"
    assert "failed:aggregate-refused" in {client.status for client in lost[0].clients}
    assert records[-1].participants == 4
    assert all(record.loss is not None for record in records)
    assert lost[0].loss == records[lost[0].round - 1].loss
    reasons = {(r.reason, r.at) for record in records for r in record.rejections}
    assert reasons == {("bad-aggregate", "client")}
    assert small.federation.weights.tobytes() != initial_weights().tobytes()


def test_more_contributions_than_a_slot_has_room_for_are_not_added():
    small = Small(clients=4, insiders=(5,))
    small.local.clients[5] = small.client(5)
    record = small.federation.run_round(0)
    assert record.cohort == (1, 2, 3, 4)
    assert record.rejections == (Rejection(5, "cohort-full"),)


def test_a_refusal_of_something_never_sent_is_turned_away():
    small = Small()
    small.server.open_round(0, [1])
    (refusal,) = small.server.open(1, small.parts[1].handle(b"junk"))
    assert isinstance(refusal, Refusal)
    small.server.receive(1, small.sealed(1, refusal))
    assert small.server.rejections == [Rejection(1, "not-asked")]


def test_an_unexpected_failure_of_the_server_costs_one_message_only(monkeypatch, caplog):
    small = Small()
    take = small.server._take

    def fail_for_two(sender, body, signed):
        if sender == 2:
            raise RuntimeError("a bug")
        take(sender, body, signed)

    monkeypatch.setattr(small.server, "_take", fail_for_two)
    record = small.federation.run_round(0)
    assert record.cohort == (1, 3, 4)
    assert Rejection(2, "internal-error") in record.rejections
