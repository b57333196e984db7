"""A server that breaks the protocol, alone or with clients, against decryption by a committee."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from dapfl.crypto import threshold
from dapfl.crypto.engines import teamwork
from dapfl.crypto.engines.base import to_ints
from dapfl.engines.flower.apps.persistent_client import FileStateStore, PersistentClient
from dapfl.errors import CryptoError, InvalidShare, ProtocolError
from dapfl.federation.keys.run_id import new_run_id
from dapfl.federation.messages import (
    Call,
    Share,
    Signed,
    Upload,
    contribution_binding,
    digest,
    encode,
    make_scope,
)
from dapfl.federation.protection.committee import proposed_sums
from tests.attacks.malicious_cs import Attack
from tests.federation.small import Recording, Small, insecure_keys


@pytest.fixture
def attack() -> Attack:
    return Attack()


def test_an_honest_proposal_is_served(attack):
    share = attack.ask(1, attack.proposal(range(1, 7)))
    assert isinstance(share, Share)


def test_one_clients_contribution_as_an_aggregate_is_refused(attack):
    assert attack.refusal(1, attack.proposal([2])) == "below-min-cohort"
    assert attack.refusal(1, attack.proposal([2, 3, 4])) == "below-min-cohort"


def test_a_cohort_with_repeated_clients_is_refused(attack):
    assert attack.refusal(1, attack.proposal([2, 2, 2, 2])) == "bad-proposal"
    assert attack.refusal(1, attack.proposal([2, 3, 2, 3])) == "bad-proposal"


def test_a_cohort_with_strangers_is_refused(attack):
    stranger = msgspec.structs.replace(
        attack.upload(2), context=msgspec.structs.replace(attack.upload(2).context, sender=9)
    )
    attack.uploads[9], attack.counts[9] = attack.signed_by(2, stranger), attack.counts[2]
    assert attack.refusal(1, attack.proposal([2, 3, 4, 9])) == "unknown-sender"


def test_contributions_that_cs_signs_itself_are_refused(attack):
    body = encode(attack.upload(3))
    attack.uploads[3] = Signed(body, attack.small.server_suite().sign(body))
    assert attack.refusal(1, attack.proposal([1, 2, 3, 4])) == "bad-signature"


def test_the_inverse_of_the_others_cannot_be_contributed(attack):
    """CS and client 6 know all ciphertexts of the others, and want client 1 alone in the sum."""
    key = insecure_keys(decryption="committee")[0].pk_cs_enc
    width, rows, square = key.ciphertext_bytes, attack.small.parameters.contribution_rows, key.n**2
    others = [attack.upload(client).contribution for client in (2, 3, 4, 5)]
    numbers = [np.frombuffer(data[: rows * width], np.uint8).reshape(rows, width) for data in others]
    product = to_ints(key.product(numbers))
    inverse = b"".join(pow(number, -1, square).to_bytes(width, "little") for number in product)
    mine = attack.upload(6)
    for proof in (mine.contribution[rows * width :], others[0][rows * width :]):
        forged = msgspec.structs.replace(mine, contribution=inverse + proof)
        attack.uploads[6] = attack.signed_by(6, forged)
        assert attack.refusal(1, attack.proposal(range(1, 7))) == "unproved"


def test_a_contribution_of_another_client_cannot_be_contributed_again(attack):
    """Client 6 sends what client 1 sent, so that the sum holds client 1 twice."""
    copied = msgspec.structs.replace(attack.upload(6), contribution=attack.upload(1).contribution)
    attack.uploads[6] = attack.signed_by(6, copied)
    assert attack.refusal(2, attack.proposal(range(1, 7))) == "unproved"


def test_uploads_of_another_round_or_model_are_refused(attack):
    assert attack.refusal(1, attack.proposal(range(1, 7), t=1)) == "bad-proposal"
    proposal = attack.proposal(range(1, 7))
    other = msgspec.structs.replace(proposal.context, model=digest(b"another"))
    assert attack.refusal(1, msgspec.structs.replace(proposal, context=other)) == "bad-proposal"


def test_uploads_under_another_roster_are_refused(attack):
    """Else a client that was removed, and its keys, would still fill a cohort."""
    removed = attack.upload(6)
    other = make_scope(attack.small.federation_id, attack.small.server.run, 1)
    context = msgspec.structs.replace(removed.context, scope=other)
    attack.uploads[6] = attack.signed_by(6, msgspec.structs.replace(removed, context=context))
    assert attack.refusal(1, attack.proposal(range(1, 7))) == "bad-proposal"
    proposal = attack.proposal(range(1, 6))
    newer = msgspec.structs.replace(proposal.context, scope=other)
    assert attack.refusal(1, msgspec.structs.replace(proposal, context=newer)) == "unknown-roster"


def test_contributions_that_start_from_different_models_are_not_added_up(attack):
    """CS has sent client 3 a model of its own making, to tell its contribution from the others."""
    other = msgspec.structs.replace(attack.upload(3), commitment=digest(b"a model for client 3 alone"))
    attack.uploads[3] = attack.signed_by(3, other)
    assert attack.refusal(1, attack.proposal(range(1, 7))) == "bad-proposal"


def test_uploads_of_another_run_are_refused_and_no_member_goes_back(attack):
    """CS begins a new run, in which members have served nothing yet, to have old uploads decrypted again."""
    proposal = attack.proposal(range(1, 7))
    assert isinstance(attack.ask(1, proposal), Share)
    later = attack.small.federation_id + new_run_id(after=attack.small.server.run)
    context = msgspec.structs.replace(proposal.context, scope=later)
    assert attack.refusal(1, msgspec.structs.replace(proposal, context=context)) == "bad-proposal"
    assert attack.refusal(1, attack.proposal(range(2, 7))) == "old-run"


def test_a_contribution_cannot_pass_as_a_count(attack):
    """The count is decrypted too: CS puts a ciphertext of client 2's weights in its place."""
    proposal = attack.proposal(range(1, 7))
    stolen = attack.upload(2).contribution[: attack.small.server.row_bytes]
    counts = (proposal.counts[0], stolen + proposal.counts[1][len(stolen) :], *proposal.counts[2:])
    assert attack.refusal(1, msgspec.structs.replace(proposal, counts=counts)) == "bad-proposal"
    swapped = (proposal.counts[1], proposal.counts[0], *proposal.counts[2:])
    assert attack.refusal(1, msgspec.structs.replace(proposal, counts=swapped)) == "bad-proposal"


def test_a_member_serves_one_proposal_a_round(attack):
    """The sums over {1..6} and over {2..6} would differ by the model of client 1."""
    assert isinstance(attack.ask(1, attack.proposal(range(1, 7))), Share)
    assert attack.refusal(1, attack.proposal(range(2, 7))) == "replayed"
    member = attack.small.parts[1]
    restarted = attack.small.client(1)
    restarted.restore(member.saved_state())
    attack.small.parts[1] = restarted
    assert attack.refusal(1, attack.proposal(range(2, 7))) == "replayed"


def on_a_device(attack: Attack, member: int, folder: Path) -> Attack:
    """A member as it is on a device of its own: built again for every message, from its state on disk."""

    def build() -> object:
        return attack.small.client(member)

    class Device:
        def handle(self, message: bytes) -> bytes:
            return PersistentClient(build, FileStateStore(folder)).answer(message)

    attack.small.parts[member] = Device()
    return attack


def test_a_member_has_noted_on_disk_what_it_serves_before_it_answers(attack, tmp_path, monkeypatch):
    """A member that cannot write says nothing; what it has written, it knows after any restart."""
    on_a_device(attack, 1, tmp_path)

    def full(store: FileStateStore, state: bytes) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(FileStateStore, "save", full)
        attack.ask(1, attack.proposal(range(1, 7)))
    assert isinstance(attack.ask(1, attack.proposal(range(2, 7))), Share)  # nothing had left the device
    assert attack.refusal(1, attack.proposal(range(1, 7))) == "replayed"


def test_a_member_whose_last_state_is_lost_serves_no_proposal_any_more(attack, tmp_path):
    """Its disk has damaged the state that says what it served; the one before it does not say so."""
    on_a_device(attack, 1, tmp_path)
    assert attack.refusal(1, attack.proposal([2])) == "below-min-cohort"
    assert isinstance(attack.ask(1, attack.proposal(range(1, 7))), Share)
    newest = tmp_path / "client.state"
    newest.write_bytes(newest.read_bytes()[:-1])
    for _ in range(2):  # it stays like that, also after the next restart
        assert attack.refusal(1, attack.proposal(range(2, 7))) == "lost-state"
    call = attack.small.server.open_round(1, range(1, 7))[1]
    upload, *_ = attack.small.server.open(1, attack.small.parts[1].handle(call))
    assert isinstance(upload, Upload), "it still takes part"


def test_cs_and_two_members_get_no_second_proposal_decrypted(attack):
    """Members 4 and 5 serve whatever they are asked; the honest three serve one proposal each."""
    first, second = attack.proposal(range(1, 7)), attack.proposal(range(2, 7))
    served = {first: {4, 5}, second: {4, 5}}
    for member, proposals in {1: (first, second), 2: (first, second), 3: (second, first)}.items():
        for proposal in proposals:
            if isinstance(attack.ask(member, proposal), Share):
                served[proposal].add(member)
    needed = insecure_keys(decryption="committee")[0].committee.committee.threshold
    assert sum(len(members) >= needed for members in served.values()) <= 1


def test_two_proposals_in_one_delivery_are_refused(attack):
    assert attack.refusal(1, attack.proposal(range(1, 7)), attack.proposal(range(2, 7))) == "duplicate"
    assert attack.refusal(1, attack.proposal(range(1, 7)), Call(attack.context())) == "malformed"


def test_members_of_one_machine_check_a_proposal_once_and_name_the_same_fault(attack, monkeypatch):
    """What a process learns from the others of its machine: that the uploads are sound."""
    monkeypatch.setattr(teamwork, "_LEAST", 2)  # three parts
    checks, rows = attack.small.client_suite(1).checks, attack.small.parameters.contribution_rows
    checked: list[int] = []
    check = checks.check_contribution

    def counted(data: bytes, count: int, binding: bytes):
        checked.append(count)
        return check(data, count, binding)

    monkeypatch.setattr(checks, "check_contribution", counted)
    good = attack.proposal(range(1, 7))
    alone = proposed_sums(good, bytes(32), checks, rows, 4)
    upload = attack.upload(3)
    damaged = upload.contribution[:-1] + bytes([upload.contribution[-1] ^ 1])
    attack.uploads[3] = attack.signed_by(3, msgspec.structs.replace(upload, contribution=damaged))
    bad = attack.proposal(range(1, 7))
    teamwork.join(teamwork.Team())
    try:
        checked.clear()
        for _ in range(2):
            assert np.array_equal(proposed_sums(good, b"g" * 32, checks, rows, 4), alone)
        assert len(checked) == 6
        for _ in range(2):
            with pytest.raises(ProtocolError, match="unproved"):
                proposed_sums(bad, b"b" * 32, checks, rows, 4)
    finally:
        teamwork.join(None)


def test_a_client_that_is_no_member_has_nothing_to_give(attack):
    assert attack.refusal(6, attack.proposal(range(1, 7))) == "not-a-member"


def test_cs_with_fewer_than_t_members_reads_nothing(attack):
    """CS, three members and everything they hold; a contribution, and the sum of all."""
    server, clients = insecure_keys(decryption="committee")
    committee = server.committee.committee
    checks, rows = attack.small.client_suite(1).checks, attack.small.parameters.contribution_rows
    sums = proposed_sums(attack.proposal(range(1, 7)), bytes(32), checks, rows, 4)
    victim = attack.upload(6)
    alone = checks.check_contribution(victim.contribution, rows, contribution_binding(victim.context))
    for target in (sums, alone):
        shares = [threshold.decryption_share(target, clients[i].share, b"any") for i in (1, 2, 3)]
        with pytest.raises(InvalidShare, match="4 members must decrypt together"):
            threshold.combine(shares, target, committee)
        # A share for the missing member, made up or taken over from another one, does not fit.
        for invented in (
            shares[0],
            threshold.DecryptionShare(5, target[:, : committee.public_key.modulus_bytes], b""),
        ):
            forged = threshold.DecryptionShare(5, invented.numbers, invented.proof)
            with pytest.raises(CryptoError):
                threshold.combine([*shares, forged], target, committee)
    with pytest.raises(ProtocolError, match="not-alone"):
        attack.small.client_suite(1).decrypt(sums)


def test_shares_come_once_and_from_their_member_in_its_round():
    small = Small(clients=6, decryption="committee", min_cohort=4)
    small.federation._play(0)
    messages = small.server.request_model(range(1, 7))
    first = small.parts[1].handle(messages[1])
    (share,) = small.server.open(1, first)
    small.server.receive(1, first)
    small.server.receive(1, first)  # again
    late = msgspec.structs.replace(share, context=msgspec.structs.replace(share.context, sender=2, round=7))
    for message in (small.sealed(2, share), small.sealed(2, late)):
        small.server.receive(2, message)
    assert [r.reason for r in small.server.rejections] == ["duplicate", "wrong-sender", "wrong-round"]


@pytest.mark.parametrize("theft", ["of another round", "of another member", "noise"])
def test_a_share_that_is_not_the_members_own_is_named_and_the_round_finishes(theft):
    """Member 2 signs, in its own name and for this round, a share that is not its share of these sums."""
    small = Small(clients=6, decryption="committee", min_cohort=4, wrap=lambda _, inner: Recording(inner))
    small.federation.run_round(0)
    (old,) = small.server.open(2, small.transport.replies[1][2])
    small.federation._play(1)
    shares: dict[int, Share] = {}
    for member, message in small.server.request_model(range(1, 7)).items():
        (shares[member],) = small.server.open(member, small.parts[member].handle(message))
    mine = shares[2]
    numbers, proof = {
        "of another round": (old.numbers, old.proof),
        "of another member": (shares[1].numbers, shares[1].proof),
        "noise": (mine.numbers[::-1], mine.proof),
    }[theft]
    shares[2] = msgspec.structs.replace(mine, numbers=numbers, proof=proof)
    for member, share in shares.items():
        small.server.receive(member, small.sealed(member, share))
    ((spare, message),) = small.server.request_model(range(1, 7)).items()
    assert spare == 5
    small.server.receive(spare, small.parts[spare].handle(message))
    assert small.server.recovered() is not None
    assert [(r.client, r.reason) for r in small.server.rejections] == [(2, "false-share")]
    honest = Small(clients=6, decryption="committee", min_cohort=4)
    honest.play(2)
    np.testing.assert_array_equal(small.server.weights, honest.federation.weights)
