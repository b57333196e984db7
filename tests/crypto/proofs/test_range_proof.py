"""What a proof says of a number holds, at the very bounds; and nothing else passes for a proof."""

import secrets
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapfl.crypto.engines.base import available_engines
from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.proofs.range_proof import bit_weights, proof_bytes, prove, verify
from dapfl.errors import CryptoError, InvalidProof

KEY = generate_keypair(512, allow_insecure_small_keys=True)
RANDOM_G = generate_keypair(512, generator="random", allow_insecure_small_keys=True)
PUBLIC = KEY.public_key
LEAST, MOST = 1, 25
BITS = 5
SKIPPED = 16  # the challenge comes before the first ciphertext


@pytest.mark.parametrize("key", [KEY, RANDOM_G], ids=["n+1", "random g"])
@settings(max_examples=15, deadline=None)
@given(value=st.integers(LEAST, MOST))
def test_a_proved_number_is_the_number(key, value):
    proof = prove(value, LEAST, MOST, key.public_key, b"context")
    assert len(proof) == proof_bytes(LEAST, MOST, key.public_key)
    assert key.decrypt_int(verify(proof, LEAST, MOST, key.public_key, b"context")) == value


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 1023, 1024, 1025, 1800])
@pytest.mark.parametrize("least", [0, 1])
def test_the_bounds_themselves_can_be_proved_and_nothing_beyond(least, most):
    for value in {least, min(least + 1, most), most - (most > least), most}:
        proof = prove(value, least, most, PUBLIC, b"")
        assert KEY.decrypt_int(verify(proof, least, most, PUBLIC, b"")) == value
    for value in (least - 1, most + 1, -most, 2 * most + 1, PUBLIC.n):
        with pytest.raises(CryptoError, match="cannot be shown"):
            prove(value, least, most, PUBLIC, b"")


def test_bits_add_up_to_every_number_up_to_the_bound_and_to_none_beyond():
    """So whoever has proved that bits are bits has proved the bound, whatever the bits are."""
    for largest in [*range(70), 127, 128, 129, 255, 256]:
        weights = bit_weights(largest)
        sums = {
            sum(w for w, bit in zip(weights, bits, strict=True) if bit)
            for bits in product((0, 1), repeat=len(weights))
        }
        assert sums == set(range(largest + 1))


def test_a_bound_is_not_rounded_up_to_a_power_of_two():
    """All bits set is as much as a prover can have: for a bound of 25 it was 31 once."""
    every_bit = prove(MOST, LEAST, MOST, PUBLIC, b"")
    assert (
        KEY.decrypt_int(verify(every_bit, LEAST, MOST, PUBLIC, b""))
        == LEAST + sum(bit_weights(MOST - LEAST))
        == 25
    )


def test_proofs_are_for_one_context_one_key_and_one_range():
    proof = prove(3, LEAST, MOST, PUBLIC, b"client 1")
    other = generate_keypair(512, allow_insecure_small_keys=True).public_key
    for least, most, key, context in (
        (LEAST, MOST, PUBLIC, b"client 2"),
        (LEAST, MOST, other, b"client 1"),
        (LEAST, MOST + 1, PUBLIC, b"client 1"),  # as many bits
        (LEAST + 1, MOST + 1, PUBLIC, b"client 1"),
        (0, MOST - 1, PUBLIC, b"client 1"),
        (LEAST, 15, PUBLIC, b"client 1"),
        (LEAST, 60, PUBLIC, b"client 1"),
    ):
        with pytest.raises(InvalidProof):
            verify(proof, least, most, key, context)
    with pytest.raises(InvalidProof):
        verify(b"", LEAST, MOST, PUBLIC, b"")


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 8 * proof_bytes(LEAST, MOST, PUBLIC) - 1))
def test_every_bit_of_a_proof_counts(place):
    proof = bytearray(_PROOF)
    proof[place // 8] ^= 1 << place % 8
    with pytest.raises(InvalidProof):
        verify(bytes(proof), LEAST, MOST, PUBLIC, b"context")


_PROOF = prove(21, LEAST, MOST, PUBLIC, b"context")


def with_first_ciphertext(number):
    width = PUBLIC.ciphertext_bytes
    return _PROOF[:SKIPPED] + number.to_bytes(width, "little") + _PROOF[SKIPPED + width :]


@pytest.mark.parametrize("absurd", [2, 2**BITS, 10**12, PUBLIC.n - 1], ids=["2", "2^bits", "10^12", "-1"])
def test_an_absurd_number_in_the_place_of_a_bit_is_noticed(absurd):
    with pytest.raises(InvalidProof):
        verify(with_first_ciphertext(PUBLIC.encrypt_int(absurd)), LEAST, MOST, PUBLIC, b"context")


def test_a_prover_that_picks_both_challenges_is_noticed():
    """Both statements simulated: then the challenges do not add up to the hash of what was announced."""
    n = PUBLIC.n
    proof = secrets.token_bytes(16)
    for _ in range(BITS):
        proof += PUBLIC.encrypt_int(10**6).to_bytes(PUBLIC.ciphertext_bytes, "little")
        for z in (secrets.randbelow(n), secrets.randbelow(n)):
            proof += z.to_bytes(PUBLIC.modulus_bytes, "little")
        proof += secrets.token_bytes(16)
    assert len(proof) == proof_bytes(LEAST, MOST, PUBLIC)
    with pytest.raises(InvalidProof):
        verify(proof, LEAST, MOST, PUBLIC, b"context")


@pytest.mark.parametrize("number", [0, KEY.p, PUBLIC.n, PUBLIC.n**2 + 1], ids=["0", "p", "n", "n^2+1"])
def test_numbers_that_are_no_units_are_refused(number):
    with pytest.raises(InvalidProof):
        verify(with_first_ciphertext(number), LEAST, MOST, PUBLIC, b"context")


def test_two_proofs_of_one_number_look_nothing_alike():
    a, b = (prove(1, LEAST, MOST, PUBLIC, b"context") for _ in range(2))
    width = PUBLIC.ciphertext_bytes
    assert all(
        a[start : start + width] != b[start : start + width] for start in range(0, len(a) - width, width)
    )


def test_a_changed_sign_is_noticed():
    """-1 is an n-th power, and a check with random weights would have overlooked it now and then."""
    width = PUBLIC.ciphertext_bytes
    c = int.from_bytes(_PROOF[SKIPPED : SKIPPED + width], "little")
    z_at = SKIPPED + width
    z = int.from_bytes(_PROOF[z_at : z_at + PUBLIC.modulus_bytes], "little")
    negative_z = (PUBLIC.n - z).to_bytes(PUBLIC.modulus_bytes, "little")
    for changed in (
        with_first_ciphertext(PUBLIC.n**2 - c),
        _PROOF[:z_at] + negative_z + _PROOF[z_at + PUBLIC.modulus_bytes :],
    ):
        with pytest.raises(InvalidProof):
            verify(changed, LEAST, MOST, PUBLIC, b"context")


def test_proofs_are_checked_alike_by_every_engine():
    for maker in available_engines():
        proof = prove(7, LEAST, MOST, PUBLIC.using(maker), b"")
        assert (
            len({verify(proof, LEAST, MOST, PUBLIC.using(checker), b"") for checker in available_engines()})
            == 1
        )
