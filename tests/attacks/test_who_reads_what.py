"""What each attacker of docs/security.md reads, and what not: also where it succeeds.

"Reads" means: gets the very weights that a client has encrypted, by the keys and messages that it has.
"""

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import pytest

from dapfl.arrays import Rows
from dapfl.crypto import threshold
from dapfl.crypto.engines.base import to_ints
from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.paillier import PrivateKey
from dapfl.errors import CryptoError, EnvelopeError
from dapfl.federation.messages import (
    Aggregate,
    Share,
    Upload,
    associated_data,
    decode_sealed,
    decode_server_body,
)
from dapfl.federation.protection.committee import proposed_sums
from tests.attacks.malicious_cs import Attack
from tests.federation.small import Learner, Small, insecure_keys

VICTIM = 6  # on no committee
MODES = ("shared", "committee")
Encrypt = Callable[[Rows, bytes], bytes]


@cache
def intercepted(mode: str) -> tuple[bytes, Rows, list[int]]:
    """What the victim sends in round 0: as it travels, its ciphertexts, and the plaintexts in them."""
    small = Small(clients=6, decryption=mode, min_cohort=4)
    client, plain = small.parts[VICTIM], list[Rows]()
    encrypt = client._suite.encrypt

    def noted(plaintexts: Rows, binding: bytes) -> bytes:
        plain.append(plaintexts)
        return encrypt(plaintexts, binding)

    client._suite.encrypt = noted
    sealed = client.handle(small.server.open_round(0, range(1, 7))[VICTIM])
    upload, *_ = small.server.open(VICTIM, sealed)
    assert isinstance(upload, Upload)
    rows, width = small.parameters.contribution_rows, small.server.row_bytes
    ciphertexts = np.frombuffer(upload.contribution[: rows * width], np.uint8).reshape(rows, width)
    return sealed, ciphertexts, to_ints(plain[0])


def reads(mode: str, keys: Iterable[PrivateKey]) -> bool:
    """Whether one of these keys opens what the victim has encrypted."""
    _, ciphertexts, plain = intercepted(mode)

    def opened(key: PrivateKey) -> list[int]:
        try:
            return to_ints(key.decrypt(ciphertexts))
        except CryptoError:
            return []

    return any(opened(key) == plain for key in keys)


def of_server(mode: str) -> list[PrivateKey]:
    server, _ = insecure_keys(decryption=mode)
    return [server.sk_cs_sign, *server.sk_enc.values()]


def of_client(mode: str, client: int) -> list[PrivateKey]:
    bundle = insecure_keys(decryption=mode)[1][client]
    return [bundle.sk_i_sign, *([bundle.sk_cs_enc] if bundle.sk_cs_enc else [])]


def together(members: Iterable[int]) -> list[int] | None:
    """What these members make of the victim's contribution, if they do not care what they decrypt."""
    server, clients = insecure_keys(decryption="committee")
    assert server.committee is not None
    _, ciphertexts, _ = intercepted("committee")
    shares = [threshold.decryption_share(ciphertexts, clients[i].share, b"") for i in members]
    try:
        return to_ints(threshold.combine(shares, ciphertexts, server.committee.committee))
    except CryptoError:
        return None


@pytest.mark.parametrize("mode", MODES)
def test_cs_reads_no_contribution_with_all_the_keys_that_it_has(mode):
    assert not reads(mode, of_server(mode))


def test_cs_with_one_client_reads_every_contribution_of_a_shared_key():
    assert reads("shared", of_server("shared") + of_client("shared", 1))


def test_cs_with_one_client_or_all_clients_but_members_reads_nothing_of_a_committee():
    for client in range(1, VICTIM):
        assert not reads("committee", of_server("committee") + of_client("committee", client))


def test_cs_with_three_members_does_not_decrypt_and_with_four_it_does():
    *_, plain = intercepted("committee")
    assert together((1, 2, 3)) is None
    assert together((1, 2, 3, 4)) == plain


def test_cs_with_three_members_who_break_the_protocol_reads_a_contribution():
    """Why the promise is about two: members 3, 4 and 5 answer twice, and CS shows the others two faces."""
    attack = Attack()
    server, clients = insecure_keys(decryption="committee")
    assert server.committee is not None
    committee, rows = server.committee.committee, attack.small.parameters.contribution_rows
    checks = attack.small.client_suite(1).checks
    opened: list[list[int]] = []
    for honest, cohort in ((1, range(1, 7)), (2, range(1, 6))):
        proposal = attack.proposal(cohort)
        answer = attack.ask(honest, proposal)
        assert isinstance(answer, Share)  # its first proposal of this round
        sums = proposed_sums(proposal, bytes(32), checks, rows, 4)
        numbers = np.frombuffer(answer.numbers, np.uint8).reshape(len(sums), -1)
        shares = [threshold.DecryptionShare(honest, numbers, answer.proof)]
        shares += [threshold.decryption_share(sums, clients[i].share, b"") for i in (3, 4, 5)]
        opened.append(to_ints(threshold.combine(shares, sums, committee)))
    difference = [(a - b) % committee.public_key.n for a, b in zip(*opened, strict=True)]
    key = committee.public_key
    upload = np.frombuffer(attack.upload(VICTIM).contribution[: rows * key.ciphertext_bytes], np.uint8)
    share = [
        threshold.decryption_share(upload.reshape(rows, -1), clients[i].share, b"") for i in (1, 2, 3, 4)
    ]
    assert difference[:-1] == to_ints(threshold.combine(share, upload.reshape(rows, -1), committee))


@pytest.mark.parametrize("mode", MODES)
def test_all_but_one_of_a_cohort_read_the_last_from_the_sum(mode):
    """Whoever knows its own part of a sum knows the rest: why a cohort has two more than may collude."""
    small = Small(clients=6, decryption=mode, min_cohort=4)
    plain: dict[int, list[int]] = {}
    calls = small.server.open_round(0, range(1, 7))
    for client in range(1, 5):
        suite = small.parts[client]._suite
        encrypt = suite.encrypt

        def noted(rows: Rows, binding: bytes, client: int = client, encrypt: Encrypt = encrypt) -> bytes:
            plain[client] = to_ints(rows)
            return encrypt(rows, binding)

        suite.encrypt = noted
        small.server.receive(client, small.parts[client].handle(calls[client]))
    assert small.server.aggregate() == (1, 2, 3, 4)
    head = decode_server_body(small.server.memory.history.head.signed.body)
    assert isinstance(head, Aggregate)
    sums = np.frombuffer(head.contributions, np.uint8).reshape(-1, small.server.row_bytes)
    clients = insecure_keys(decryption=mode)[1]
    if mode == "shared":
        total = to_ints(clients[1].sk_cs_enc.decrypt(sums))
    else:
        shares = [threshold.decryption_share(sums, clients[i].share, b"") for i in (1, 2, 3, 4)]
        total = to_ints(threshold.combine(shares, sums, clients[1].share.committee))
    assert [t - sum(own) for t, *own in zip(total, *(plain[i] for i in (1, 2, 3)), strict=True)] == plain[4]


@pytest.mark.parametrize("mode", MODES)
def test_neither_the_network_nor_another_client_opens_an_envelope(mode):
    sealed, ciphertexts, _ = intercepted(mode)
    assert ciphertexts[0].tobytes() not in sealed
    small = Small(clients=6, decryption=mode, min_cohort=4)
    box = decode_sealed(sealed, len(sealed)).box
    for client in range(1, VICTIM):
        for key in of_client(mode, client):
            with pytest.raises(EnvelopeError):
                envelope_named("hybrid").open(box, key, associated_data(small.federation_id, VICTIM))


def test_a_kdc_that_keeps_the_keys_reads_everything():
    """It has made every bundle: the key itself, or all the shares of it."""
    *_, plain = intercepted("committee")
    assert reads("shared", of_client("shared", VICTIM))
    assert together(range(1, 6)) == plain


def test_the_operator_of_a_device_has_what_its_client_has():
    """With a shared key that is the key of all contributions; a member's share opens nothing alone."""
    assert reads("shared", of_client("shared", 2))
    for member in range(1, VICTIM):
        assert not reads("committee", of_client("committee", member))
        assert together([member]) is None


@pytest.mark.parametrize("mode", [*MODES, "none"])
def test_false_weights_are_added_like_any_others(mode):
    """Poisoning: client 4 sends what it likes, within the range; nobody can look, and nobody refuses it."""

    class Poisoner(Learner):
        def train(self, weights, *_):
            return np.full_like(weights, -3.0)

    def played(learners: dict[int, Callable[[int], Learner]]) -> Small:
        protection = {"encryption": "none"} if mode == "none" else {"decryption": mode}
        small = Small(
            clients=6, min_cohort=4, learners={i: make(i) for i, make in learners.items()}, **protection
        )
        (record,) = small.play(1)
        assert record.participants == 6 and record.rejected == 0
        return small

    honest, poisoned = played({}), played({4: Poisoner})
    assert np.abs(honest.federation.weights - poisoned.federation.weights).max() > 0.1


@pytest.mark.parametrize("mode", MODES)
def test_cs_may_leave_clients_out_and_nobody_knows(mode):
    """It decides whom it calls. What it cannot do is count fewer than the least cohort."""
    small = Small(clients=6, decryption=mode, min_cohort=4)
    calls = small.server.open_round(0, range(1, 7))
    for client in (1, 2, 3, 5):
        small.server.receive(client, small.parts[client].handle(calls[client]))
    assert small.server.aggregate() == (1, 2, 3, 5)
