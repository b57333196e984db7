"""What CS does with clients that lie, fail or disagree."""

import msgspec
import numpy as np
import pytest

from dapfl.crypto.range_proof import prove
from dapfl.errors import ProtocolError
from dapfl.federation.messages import Answer, Refusal, Upload, digest, sealing_context
from dapfl.federation.models import commitment_of, to_bytes
from dapfl.federation.records import Rejection
from tests.federation.small import SIZE, Small, initial_weights


class Lying:
    """A client with real keys that alters what it says before it signs it."""

    def __init__(self, small: Small, client: int, alter) -> None:
        self.small, self.client, self.alter = small, client, alter
        self.honest = small.parts[client]

    def handle(self, message: bytes) -> bytes:
        bodies = self.small.server.open(self.client, self.honest.handle(message))
        return self.small.sealed(self.client, *(self.alter(body) for body in bodies))


def lie_about_the_model(body):
    if isinstance(body, Answer):
        wrong = np.full(SIZE, 0.5, np.float32)
        weights = to_bytes(wrong) if body.weights else b""
        return msgspec.structs.replace(body, commitment=commitment_of(wrong), weights=weights)
    return body


@pytest.mark.parametrize("carried", [False, True])
def test_one_client_that_lies_about_the_global_model_is_noticed(carried):
    honest, lied = Small(carried=carried), Small(carried=carried)
    lied.local.clients[2] = Lying(lied, 2, lie_about_the_model)
    expected, records = honest.play(5), lied.play(5)
    np.testing.assert_array_equal(honest.federation.weights, lied.federation.weights)
    assert [record.loss for record in records] == [record.loss for record in expected]
    noticed = [r for record in records for r in record.rejections]
    assert set(noticed) == {Rejection(2, "model-mismatch")}
    assert len(noticed) >= 2


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
    small = Small(carried=True)
    small.server.poll.commitments.clear()  # as if CS had not seen this model yet
    for client in (1, 2):
        small.local.clients[client] = Lying(
            small, client, lambda body: msgspec.structs.replace(body, commitment=digest(b"another model"))
        )
    (record,) = small.play(1)
    assert {client.status for client in record.clients} == {"failed:no-agreement"}
    assert record.rejections == ()
    assert record.participants == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"contribution": b""}, "wrong-size"),
        ({"contribution": bytes(1)}, "wrong-size"),
        ({"samples": b""}, "absurd-size"),
        ({"samples": bytes(1000)}, "absurd-size"),
        ({"samples": digest(b"never sent")}, "unknown-count"),
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
    server, clients = small.keys
    context = sealing_context(server.federation, 1)
    proof = prove(25, 7, clients[2].sk_cs_enc, context)
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
    codec = small.shape.codec
    rows = np.full((codec.plaintext_count(SIZE), codec.plaintext_bytes), 255, np.uint8)
    return msgspec.structs.replace(body, contribution=small.client_suite(2).encrypt(rows).tobytes())


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_an_aggregate_that_is_no_model_is_withdrawn_and_training_goes_on(carried, codec):
    small = Small(carried=carried, codec=codec)
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
    small = Small(clients=4, guests=(5,))
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
    assert small.server.ledger.rejections == [Rejection(1, "not-asked")]


def test_an_unexpected_failure_of_the_server_costs_one_message_only(monkeypatch, caplog):
    small = Small()
    take = small.server._take

    def fail_for_two(sender, data):
        if sender == 2:
            raise RuntimeError("a bug")
        take(sender, data)

    monkeypatch.setattr(small.server, "_take", fail_for_two)
    record = small.federation.run_round(0)
    assert record.cohort == (1, 3, 4)
    assert Rejection(2, "internal-error") in record.rejections


def test_a_made_up_report_can_spoil_neither_the_model_nor_the_line():
    honest, small = Small(), Small()

    def alter(body):
        if isinstance(body, Upload):
            wild = {
                "cost": float("nan"),
                "budget": float("inf"),
                "epochs": 2**31 - 1,
                "reward": float("-inf"),
            }
            return msgspec.structs.replace(body, report=msgspec.structs.replace(body.report, **wild))
        return body

    for client in (1, 2, 3):
        small.local.clients[client] = Lying(small, client, alter)
    honest.play(2)
    record = small.play(2)[-1]
    np.testing.assert_array_equal(honest.federation.weights, small.federation.weights)
    assert record.simulated_seconds == 5.0
    assert b'"reward":null' in record.to_json()


def test_a_report_beyond_all_bounds_is_no_message():
    small = Small()

    def alter(body):
        if isinstance(body, Upload):
            return msgspec.structs.replace(body, report=msgspec.structs.replace(body.report, epochs=2**62))
        return body

    small.local.clients[1] = Lying(small, 1, alter)
    assert small.federation.run_round(0).rejections == (Rejection(1, "malformed"),)
