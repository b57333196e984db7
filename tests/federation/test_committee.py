"""Decryption by a committee: the same model, whoever is missing, and after any crash."""

from dataclasses import replace

import numpy as np
import pytest

from dapfl.config import CryptoConfig, RunConfig
from dapfl.errors import ConfigError, KeyFileError
from dapfl.federation.keys.bundles import bundle_path, load_bundles, save_bundles
from dapfl.federation.messages import Proposal as ProposalBody
from dapfl.federation.messages import Report, Upload, decode_client_body, decode_server_body
from dapfl.federation.records import Rejection, Status
from dapfl.federation.run_terms import parameters_of
from dapfl.federation.server_state.state_file import StateFile
from dapfl.learning.runtime import task_runtime
from dapfl.learning.tasks import get_task
from tests.federation.small import Dropping, Recording, Small, insecure_keys


def committee(**changes) -> Small:
    return Small(**{"clients": 6, "decryption": "committee", "min_cohort": 4} | changes)


def dropping(lost):
    return lambda _, inner: Dropping(inner, lost)


@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_it_gives_the_model_of_a_shared_key_and_of_no_encryption(codec):
    by_committee, shared = committee(codec=codec), Small(clients=6, min_cohort=4, codec=codec)
    plain = Small(clients=6, min_cohort=4, codec=codec, encryption="none")
    scores = [
        [(r.loss, r.accuracy, r.participants) for r in small.play(4)]
        for small in (by_committee, shared, plain)
    ]
    assert scores[0] == scores[1] == scores[2]
    assert scores[0][-1][2] == 6
    np.testing.assert_array_equal(by_committee.federation.weights, shared.federation.weights)
    np.testing.assert_array_equal(by_committee.federation.weights, plain.federation.weights)


def test_a_round_takes_two_exchanges_and_only_enough_members_are_asked():
    small = committee(wrap=lambda _, inner: Recording(inner))
    small.play(2)
    assert [sorted(sent) for sent in small.transport.sent] == [[*range(1, 7)], [1, 2, 3, 4]] * 2


def test_no_client_holds_the_decryption_key():
    server, clients = insecure_keys(decryption="committee")
    assert all(bundle.sk_cs_enc is None for bundle in clients.values())
    assert [i for i, bundle in clients.items() if bundle.share is not None] == [1, 2, 3, 4, 5]
    assert server.committee is not None
    assert (server.committee.committee.members, server.committee.committee.threshold) == (5, 4)
    assert server.committee.committee.colluders == 2


def test_the_other_members_decrypt_if_one_is_off():
    small = committee(wrap=dropping(lambda exchange, client: "gone" if client == 2 else None))
    full = committee(
        wrap=dropping(lambda exchange, client: "gone" if (exchange % 2, client) == (0, 2) else None)
    )
    records, others = small.play(3), full.play(3)
    assert [r.participants for r in records] == [5, 5, 5]
    assert [r.loss for r in records] == [r.loss for r in others]


def test_below_the_threshold_the_model_stays_and_the_run_goes_on():
    lost = {(1, 2): "gone", (1, 3): "gone"}  # after the uploads of round 0, two of five members
    small = committee(wrap=dropping(lambda exchange, client: lost.get((exchange, client))))
    before = small.federation.weights.copy()
    first = small.federation.run_round(0)
    np.testing.assert_array_equal(small.federation.weights, before)
    assert first.participants == 0
    assert {client.status for client in first.clients} == {Status.FAILED.because("no-quorum")}
    second = small.federation.run_round(1)
    assert second.participants == 6
    assert not np.array_equal(small.federation.weights, before)


def test_a_crash_between_proposal_and_combination_changes_nothing(tmp_path):
    class Crash(Exception):
        pass

    def crash(exchange, client):
        if exchange == 3:  # the proposal of round 1 reaches nobody
            raise Crash
        return

    undisturbed = committee(standalone=True)
    undisturbed.play(3)
    file = StateFile(tmp_path / "state")
    small = committee(standalone=True, state_file=file, wrap=dropping(crash))
    with pytest.raises(Crash):
        small.play(3)
    again = committee(standalone=True, state_file=file)
    again.local.clients = dict(small.parts)  # devices that were never stopped
    again.federation.restore(file.read())
    records = list(again.federation.rounds(3))
    assert [record.round for record in records] == [1, 2]
    np.testing.assert_array_equal(again.federation.weights, undisturbed.federation.weights)


def test_members_that_answered_before_a_crash_answer_the_same_again(tmp_path):
    file = StateFile(tmp_path / "state")
    small = committee(standalone=True, state_file=file, wrap=lambda _, inner: Recording(inner))
    rounds = small.federation.rounds(1)
    small.federation._play(0)
    small.federation._save()
    messages = small.server.request_model(range(1, 7))
    first = {client: small.parts[client].handle(message) for client, message in messages.items()}
    again = committee(standalone=True, state_file=file)
    again.federation.restore(file.read())
    repeated = again.server.request_model(range(1, 7))
    assert repeated == messages
    assert {client: small.parts[client].handle(repeated[client]) for client in first} == first
    del rounds


def test_members_do_not_see_reports():
    small = committee(wrap=lambda _, inner: Recording(inner))
    (record,) = small.play(1)
    assert all(client.eta is not None for client in record.clients)  # CS does
    sent = small.store.opened(small.transport.sent[1][1], 10**9, small.client_suite(1))
    proposal = sent[0].body
    assert isinstance(proposal, ProposalBody)
    for signed in proposal.uploads:
        upload = decode_client_body(signed.body)
        assert isinstance(upload, Upload) and upload.report == b""
    upload, report = small.server.open(1, small.transport.replies[0][1])
    assert isinstance(upload, Upload) and isinstance(report, Report)


def test_outsiders_cannot_read_the_model():
    small = committee(wrap=lambda _, inner: Recording(inner))
    small.play(2)
    weights = small.federation.weights.astype("<f4").tobytes()
    everything = b"".join(
        m for x in (small.transport.sent, small.transport.replies) for e in x for m in e.values()
    )
    assert weights[:64] not in everything
    head = decode_server_body(small.server.memory.history.head.signed.body)
    assert head.contributions not in everything  # the aggregate itself goes to nobody


def test_a_client_that_was_away_gets_the_current_model():
    small = committee(codec="compact", wrap=dropping(lambda e, c: "gone" if c == 6 and e in (2, 4) else None))
    full = [r.participants for r in small.play(4)]
    assert full == [6, 5, 5, 6]
    commitments = {part._model.commitment for part in small.parts.values()}
    assert len(commitments) == 1


def test_bundles_survive_their_files(tmp_path):
    server, clients = insecure_keys(decryption="committee")
    save_bundles(tmp_path, server, clients)
    assert bundle_path(tmp_path, 1).stat().st_mode & 0o777 == 0o600
    found, loaded = load_bundles(tmp_path, allow_insecure_small_keys=True)
    assert found.committee == server.committee
    assert loaded == clients


def test_keys_of_one_kind_do_not_serve_the_other():
    with pytest.raises(KeyFileError, match='decryption = "committee"'):
        Small(clients=6, keys=insecure_keys(decryption="committee"))
    with pytest.raises(KeyFileError, match='decryption = "shared"'):
        committee(keys=insecure_keys())


def test_a_committee_that_protects_nothing_is_refused():
    runtime = task_runtime(get_task("logistic-mnist"))

    def parameters(clients: int, per_round: int | None = None, min_cohort: int = 3, **crypto):
        crypto = CryptoConfig(decryption="committee", **crypto)
        config = RunConfig(clients=clients, per_round=per_round, min_cohort=min_cohort, crypto=crypto)
        return parameters_of(config, runtime)

    assert [parameters(clients).min_cohort for clients in (20, 5, 4, 3)] == [5, 4, 3, 3]
    assert parameters(20, per_round=5).min_cohort == 4
    assert parameters(20, committee_threshold=3).min_cohort == 4  # t + 1, whoever may collude
    with pytest.raises(ConfigError, match="more than half"):
        parameters(20, committee_members=5, committee_threshold=2)
    with pytest.raises(ConfigError, match=r"calls 4 clients.*--decryption shared"):
        parameters(20, per_round=4, committee_threshold=5)
    with pytest.raises(ConfigError, match=r"calls 2 clients.*--decryption shared"):
        parameters(2, min_cohort=2)


def test_a_committee_needs_the_usual_kind_of_key():
    with pytest.raises(ValueError, match="committee"):
        CryptoConfig(decryption="committee", generator="random")


def test_a_false_share_is_named_and_the_round_finishes_with_others():
    server, clients = insecure_keys(decryption="committee")
    bad = clients | {3: replace(clients[3], share=replace(clients[3].share, secret=12345))}
    small = committee(keys=(server, bad))
    record = small.federation.run_round(0)
    assert record.participants == 6
    assert record.rejections == (Rejection(3, "false-share"),)
    honest = committee()
    honest.federation.run_round(0)
    np.testing.assert_array_equal(small.federation.weights, honest.federation.weights)
