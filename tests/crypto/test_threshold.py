"""Any t members decrypt together; fewer do not; a false, borrowed or repeated share is refused by name."""

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapfl.arrays import Rows
from dapfl.crypto.engines.base import available_engines, to_ints, to_rows
from dapfl.crypto.keys.key_generation import generate_keypair, keypair_from_primes
from dapfl.crypto.keys.safe_primes import safe_prime
from dapfl.crypto.keys.threshold_keys import Committee, KeyShare, deal, evaluate, generate_committee
from dapfl.crypto.paillier import PrivateKey
from dapfl.crypto.threshold import DecryptionShare, combine, decryption_share, proof_bytes, prove, verify
from dapfl.errors import InvalidCiphertext, InvalidShare, KeyGenerationError

KEY = keypair_from_primes(safe_prime(256), safe_prime(256), allow_insecure_small_keys=True)
PUBLIC = KEY.public_key
N, SQUARE = PUBLIC.n, PUBLIC.n**2
MEMBERS = deal(KEY, members=5, threshold=3)
COMMITTEE = MEMBERS[0].committee
CONTEXT = b"federation, round 3"


def encrypted(*numbers: int) -> Rows:
    return PUBLIC.encrypt(to_rows(numbers, PUBLIC.plaintext_bytes))


def opened(ciphertexts: Rows, members: "tuple[KeyShare, ...]", context: bytes = CONTEXT) -> list[int]:
    """What members get together, each share checked as CS does."""
    shares = [decryption_share(ciphertexts, member, context) for member in members]
    for share in shares:
        verify(share, ciphertexts, members[0].committee, context)
    return to_ints(combine(shares, ciphertexts, members[0].committee))


# Decrypting ------------------------------------------------------------------------------------


def test_any_three_of_five_decrypt_as_the_whole_key_does() -> None:
    ciphertexts = encrypted(0, 1, 255, 2**400 + 7)
    ciphertexts = np.concatenate([ciphertexts, to_rows([PUBLIC.encrypt_int(N - 1)], ciphertexts.shape[1])])
    whole = to_ints(KEY.decrypt(ciphertexts))
    assert whole == [0, 1, 255, 2**400 + 7, N - 1]
    for members in combinations(MEMBERS, 3):
        assert opened(ciphertexts, members) == whole


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(("members", "threshold"), [(1, 1), (3, 2), (3, 3), (7, 4), (20, 3)])
def test_committees_of_all_shapes(engine: str, members: int, threshold: int) -> None:
    shares = deal(KEY.using(engine), members=members, threshold=threshold)
    assert opened(encrypted(5, 2**300), shares[-threshold:]) == [5, 2**300]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 256**PUBLIC.plaintext_bytes // 4), min_size=3, max_size=3), st.integers(0, 9))
def test_what_members_decrypt_of_a_product_is_the_sum(numbers: list[int], chosen: int) -> None:
    total = PUBLIC.product([encrypted(number) for number in numbers])
    members = list(combinations(MEMBERS, 3))[chosen]
    assert opened(total, members) == [sum(numbers)]


def test_full_randomness_is_decrypted_as_well() -> None:
    key = keypair_from_primes(KEY.p, KEY.q, randomness="full", allow_insecure_small_keys=True)
    shares = deal(key, members=3, threshold=2)
    ciphertexts = key.public_key.encrypt(to_rows([1, 77], PUBLIC.plaintext_bytes))
    assert opened(ciphertexts, shares[:2]) == [1, 77]


def test_a_share_is_the_power_that_it_should_be() -> None:
    """Against Python's own integers: the shares, the weights, and both equations of the proof."""
    ciphertexts, key = encrypted(3, 4, 5), MEMBERS[1]
    share = decryption_share(ciphertexts, key, CONTEXT)
    numbers, bases = to_ints(share.numbers), to_ints(ciphertexts)
    assert numbers == [pow(c, 2 * 120 * key.secret, N) for c in bases]
    state = hashlib.sha256()
    keys = to_rows([N, COMMITTEE.v, COMMITTEE.verification_keys[1]], PUBLIC.modulus_bytes)
    places = b"".join(number.to_bytes(4, "little") for number in (2, 5, 3))
    label = b"dapfl decryption share 1"
    for part in (label, CONTEXT, places, keys.tobytes(), ciphertexts.tobytes(), share.numbers.tobytes()):
        state.update(len(part).to_bytes(8, "big") + part)
    stream = hashlib.shake_256(b"dapfl weights 1" + state.digest()).digest(48)
    weights = [int.from_bytes(stream[i : i + 16], "little") for i in (0, 16, 32)]
    x = y = 1
    for c, number, weight in zip(bases, numbers, weights, strict=True):
        x, y = x * pow(c, 4 * 120 * weight, N) % N, y * pow(number, 2 * weight, N) % N
    e, z = int.from_bytes(share.proof[:16], "little"), int.from_bytes(share.proof[16:], "little")
    announced = [
        pow(base, z, N) * pow(power, -e, N) % N
        for base, power in ((x, y), (COMMITTEE.v, COMMITTEE.verification_keys[1]))
    ]
    again = hashlib.sha256()
    for part in (label, state.digest(), to_rows(announced, PUBLIC.modulus_bytes).tobytes()):
        again.update(len(part).to_bytes(8, "big") + part)
    assert again.digest()[:16] == share.proof[:16]


def test_a_key_of_full_size() -> None:
    members = generate_committee(2048)
    public = members[0].committee.public_key
    assert public.bits == 2048 and len(members) == 5 and all(member.fits() for member in members)
    ciphertexts = public.product([public.encrypt(to_rows([k, 2**2000 + k], 255)) for k in range(3)])
    assert opened(ciphertexts, members[:4]) == [3, 3 * 2**2000 + 3]


# Fewer than t ----------------------------------------------------------------------------------


def test_fewer_than_t_members_do_not_decrypt() -> None:
    ciphertexts = encrypted(42)
    for pair in combinations(MEMBERS, 2):
        shares = [decryption_share(ciphertexts, member, CONTEXT) for member in pair]
        with pytest.raises(InvalidShare, match="3 members must decrypt together; these are 2"):
            combine(shares, ciphertexts, COMMITTEE)
        with pytest.raises(InvalidShare, match="3 members must decrypt together; these are 2"):
            combine([*shares, shares[0], shares[1]], ciphertexts, COMMITTEE)
        # Interpolating all the same, as if two were enough, gives no root of the ciphertext.
        with pytest.raises(InvalidShare, match="do not decrypt"):
            combine(shares, ciphertexts, replace(COMMITTEE, threshold=2))


def test_two_members_with_an_invented_share_get_nothing() -> None:
    ciphertexts = encrypted(42)
    two = [decryption_share(ciphertexts, member, CONTEXT) for member in MEMBERS[:2]]
    for invented in (1, 7, COMMITTEE.v, COMMITTEE.verification_keys[2], to_ints(ciphertexts)[0]):
        numbers = to_rows([pow(invented, 2, N)], PUBLIC.modulus_bytes)
        with pytest.raises(InvalidShare):
            verify(DecryptionShare(3, numbers, two[0].proof), ciphertexts, COMMITTEE, CONTEXT)
        with pytest.raises(InvalidShare, match="do not decrypt"):
            combine([*two, DecryptionShare(3, numbers, b"")], ciphertexts, COMMITTEE)


def test_any_two_shares_are_distributed_alike_whatever_the_secret_is() -> None:
    """Over all polynomials of degree 2: every pair of values exactly once, for every secret."""
    modulus = 7 * 11
    for secret in (0, 1, 55):
        for points in combinations(range(1, 6), 2):
            seen = Counter(
                tuple(evaluate([secret, a, b], points, modulus)) for a, b in product(range(modulus), repeat=2)
            )
            assert len(seen) == modulus**2 and set(seen.values()) == {1}


def test_a_share_never_shows_itself() -> None:
    for member in MEMBERS:
        assert str(member.secret) not in repr(member) and f"{member.secret:x}" not in repr(member)


@pytest.mark.parametrize(("members", "threshold"), [(2, 1), (3, 2), (3, 3), (4, 3), (5, 3), (5, 4), (7, 5)])
def test_an_asker_with_two_faces_needs_more_colluders_than_a_committee_allows(
    members: int, threshold: int
) -> None:
    """Colluders answer everything, all others one of two batches: are there t answers for both?"""
    committee = deal(KEY, members=members, threshold=threshold)[0].committee

    def both_decrypted(colluders: int) -> bool:
        honest = members - colluders
        return any(
            colluders + first >= threshold and colluders + honest - first >= threshold
            for first in range(honest + 1)
        )

    assert not any(both_decrypted(colluders) for colluders in range(committee.colluders + 1))
    assert both_decrypted(max(0, committee.colluders + 1))


# False shares ----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [2, 4, COMMITTEE.v, KEY.p + 1], ids=["2", "4", "v", "1 modulo p"])
def test_a_false_number_among_right_ones_is_named(factor: int) -> None:
    """The member proves what it has falsified as well as it can."""
    ciphertexts, key = encrypted(1, 2, 3), MEMBERS[2]
    numbers = to_ints(decryption_share(ciphertexts, key, CONTEXT).numbers)
    numbers[1] = numbers[1] * factor % N
    false = to_rows(numbers, PUBLIC.modulus_bytes)
    with pytest.raises(InvalidShare, match="member 3"):
        verify(
            DecryptionShare(3, false, prove(false, ciphertexts, key, CONTEXT)),
            ciphertexts,
            COMMITTEE,
            CONTEXT,
        )


def test_falsehoods_that_cancel_out_are_noticed() -> None:
    """One number is too large by a factor, another too small by it: weights depend on both."""
    ciphertexts, key = encrypted(1, 2), MEMBERS[0]
    a, b = to_ints(decryption_share(ciphertexts, key, CONTEXT).numbers)
    false = to_rows([a * 4 % N, b * pow(4, -1, N) % N], PUBLIC.modulus_bytes)
    with pytest.raises(InvalidShare, match="member 1"):
        verify(
            DecryptionShare(1, false, prove(false, ciphertexts, key, CONTEXT)),
            ciphertexts,
            COMMITTEE,
            CONTEXT,
        )


def test_a_share_with_another_secret_is_named() -> None:
    ciphertexts = encrypted(9)
    false = replace(MEMBERS[3], secret=MEMBERS[3].secret + 1)
    assert not false.fits()
    with pytest.raises(InvalidShare, match="member 4"):
        verify(decryption_share(ciphertexts, false, CONTEXT), ciphertexts, COMMITTEE, CONTEXT)


def test_a_changed_sign_is_no_falsehood() -> None:
    """Only squares of shares count, so a member that proves a negative number has done no harm."""
    ciphertexts, key = encrypted(6, 8), MEMBERS[0]
    numbers = [N - number for number in to_ints(decryption_share(ciphertexts, key, CONTEXT).numbers)]
    negative = to_rows(numbers, PUBLIC.modulus_bytes)
    share = DecryptionShare(1, negative, prove(negative, ciphertexts, key, CONTEXT))
    verify(share, ciphertexts, COMMITTEE, CONTEXT)
    others = [decryption_share(ciphertexts, member, CONTEXT) for member in MEMBERS[1:3]]
    assert to_ints(combine([share, *others], ciphertexts, COMMITTEE)) == [6, 8]


CIPHERTEXTS = encrypted(1, 2)
SHARE = decryption_share(CIPHERTEXTS, MEMBERS[0], CONTEXT)


def test_a_share_is_for_one_batch_one_context_and_one_committee() -> None:
    verify(SHARE, CIPHERTEXTS, COMMITTEE, CONTEXT)
    other = deal(KEY, members=5, threshold=3)[0].committee
    for ciphertexts, committee, context in (
        (CIPHERTEXTS, COMMITTEE, b"federation, round 4"),
        (CIPHERTEXTS[::-1].copy(), COMMITTEE, CONTEXT),
        (encrypted(1, 2), COMMITTEE, CONTEXT),
        (CIPHERTEXTS[:1], COMMITTEE, CONTEXT),
        (CIPHERTEXTS, other, CONTEXT),
        (CIPHERTEXTS, replace(COMMITTEE, threshold=2), CONTEXT),
    ):
        with pytest.raises(InvalidShare, match="1"):
            verify(SHARE, ciphertexts, committee, context)


def test_a_share_is_worth_nothing_to_another_member() -> None:
    for member in (0, 2, 5, 6, -1):
        with pytest.raises(InvalidShare):
            verify(replace(SHARE, member=member), CIPHERTEXTS, COMMITTEE, CONTEXT)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 8 * proof_bytes(COMMITTEE) - 1))
def test_every_bit_of_a_proof_counts(place: int) -> None:
    proof = bytearray(SHARE.proof)
    proof[place // 8] ^= 1 << place % 8
    with pytest.raises(InvalidShare):
        verify(replace(SHARE, proof=bytes(proof)), CIPHERTEXTS, COMMITTEE, CONTEXT)


def test_proofs_of_another_length_are_refused() -> None:
    for proof in (b"", SHARE.proof[:-1], SHARE.proof + b"\0", bytes(len(SHARE.proof))):
        with pytest.raises(InvalidShare, match="member 1"):
            verify(replace(SHARE, proof=proof), CIPHERTEXTS, COMMITTEE, CONTEXT)


@pytest.mark.parametrize("number", [0, KEY.p, N, N + 1], ids=["0", "p", "n", "n+1"])
def test_shares_that_are_no_units_are_refused(number: int) -> None:
    numbers = np.concatenate([SHARE.numbers[:1], to_rows([number], PUBLIC.modulus_bytes)])
    others = [decryption_share(CIPHERTEXTS, member, CONTEXT) for member in MEMBERS[1:3]]
    with pytest.raises(InvalidShare, match="member 1 holds"):
        verify(replace(SHARE, numbers=numbers), CIPHERTEXTS, COMMITTEE, CONTEXT)
    with pytest.raises(InvalidShare, match="member 1 holds"):
        combine([replace(SHARE, numbers=numbers), *others], CIPHERTEXTS, COMMITTEE)


@pytest.mark.parametrize("number", [0, KEY.p, N, SQUARE], ids=["0", "p", "n", "n^2"])
def test_ciphertexts_that_are_no_units_are_refused(number: int) -> None:
    ciphertexts = np.concatenate([CIPHERTEXTS[:1], to_rows([number], PUBLIC.ciphertext_bytes)])
    with pytest.raises(InvalidCiphertext):
        decryption_share(ciphertexts, MEMBERS[0], CONTEXT)
    with pytest.raises(InvalidCiphertext):
        verify(SHARE, ciphertexts, COMMITTEE, CONTEXT)
    with pytest.raises(InvalidCiphertext):
        combine([SHARE] * 3, ciphertexts, replace(COMMITTEE, threshold=1))


def test_shares_of_another_shape_are_refused() -> None:
    for numbers in (
        SHARE.numbers[:1],
        SHARE.numbers[:, 1:],
        CIPHERTEXTS,
        SHARE.numbers.astype(np.uint16),
        b"",
    ):
        with pytest.raises(InvalidShare, match="Member 1 has not answered"):
            verify(replace(SHARE, numbers=numbers), CIPHERTEXTS, COMMITTEE, CONTEXT)


# Combining what was not verified -----------------------------------------------------------------


def test_combining_notices_false_shares_by_itself() -> None:
    """A root either is one or is not: no false share gives a false plaintext."""
    shares = [decryption_share(CIPHERTEXTS, member, CONTEXT) for member in MEMBERS[:3]]
    assert to_ints(combine(shares, CIPHERTEXTS, COMMITTEE)) == [1, 2]
    for factor in (2, 4, COMMITTEE.v, KEY.p + 1):
        numbers = to_ints(shares[1].numbers)
        numbers[1] = numbers[1] * factor % N
        false = replace(shares[1], numbers=to_rows(numbers, PUBLIC.modulus_bytes))
        with pytest.raises(InvalidShare, match="at least one of them is false"):
            combine([shares[0], false, shares[2]], CIPHERTEXTS, COMMITTEE)
    for other in (encrypted(1, 2), CIPHERTEXTS[::-1].copy()):
        with pytest.raises(InvalidShare, match="at least one of them is false"):
            combine(shares, other, COMMITTEE)


# Dealing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "threshold"), [(0, 0), (3, 0), (3, 4), (33, 3), (-1, 1)])
def test_committees_that_cannot_be_are_refused(members: int, threshold: int) -> None:
    with pytest.raises(KeyGenerationError, match="is not possible"):
        deal(KEY, members=members, threshold=threshold)
    with pytest.raises(KeyGenerationError, match="is not possible"):
        generate_committee(256, members=members, threshold=threshold, allow_insecure_small_keys=True)


def test_small_keys_are_refused_unless_asked_for() -> None:
    with pytest.raises(KeyGenerationError, match="not secure"):
        generate_committee(1024)
    with pytest.raises(KeyGenerationError, match="multiple of 16"):
        generate_committee(130, allow_insecure_small_keys=True)


def test_only_keys_with_safe_primes_and_the_simple_g_can_be_shared(other_insecure_key: PrivateKey) -> None:
    with pytest.raises(KeyGenerationError, match="safe primes"):
        deal(generate_keypair(256, allow_insecure_small_keys=True))
    with pytest.raises(KeyGenerationError, match="too small for so many"):
        deal(keypair_from_primes(7, 11, allow_insecure_small_keys=True))
    random_g = keypair_from_primes(KEY.p, KEY.q, generator="random", allow_insecure_small_keys=True)
    with pytest.raises(KeyGenerationError, match="g = 1"):
        deal(random_g)


def test_keys_that_are_no_units_are_refused() -> None:
    for number in (0, 1, KEY.p, N, N + 2):
        with pytest.raises(KeyGenerationError, match="unit"):
            Committee(PUBLIC, 1, number, (COMMITTEE.v,))
        with pytest.raises(KeyGenerationError, match="unit"):
            Committee(PUBLIC, 1, COMMITTEE.v, (number,))
    for member, secret in ((0, 1), (6, 1), (1, 0), (1, N)):
        with pytest.raises(KeyGenerationError):
            KeyShare(COMMITTEE, member, secret)


def test_two_dealings_of_one_key_have_nothing_in_common() -> None:
    again = deal(KEY, members=5, threshold=3)
    assert not {member.secret for member in MEMBERS} & {member.secret for member in again}
    mixed = [decryption_share(CIPHERTEXTS, member, CONTEXT) for member in (*MEMBERS[:2], again[2])]
    with pytest.raises(InvalidShare, match="do not decrypt"):
        combine(mixed, CIPHERTEXTS, COMMITTEE)
