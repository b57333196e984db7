import secrets

import gmpy2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapfl.crypto.paillier import generate_keypair
from dapfl.crypto.range_proof import proof_bytes, prove, verify
from dapfl.errors import CryptoError, InvalidProof

KEY = generate_keypair(512, allow_insecure_small_keys=True)
RANDOM_G = generate_keypair(512, generator="random", allow_insecure_small_keys=True)
PUBLIC = KEY.public_key
BITS = 5


@pytest.mark.parametrize("key", [KEY, RANDOM_G], ids=["n+1", "random g"])
@settings(max_examples=15, deadline=None)
@given(value=st.integers(0, 2**BITS - 1))
def test_a_proved_number_is_the_number(key, value):
    proof = prove(value, BITS, key, b"context")
    assert len(proof) == proof_bytes(BITS, key.public_key)
    assert key.decrypt_int(verify(proof, BITS, key.public_key, b"context")) == value


def test_a_number_out_of_range_cannot_even_be_tried():
    for value in (-1, 2**BITS):
        with pytest.raises(CryptoError, match=r"below 2\^5"):
            prove(value, BITS, KEY, b"")


def test_proofs_are_for_one_context_one_key_and_one_size():
    proof = prove(3, BITS, KEY, b"client 1")
    other = generate_keypair(512, allow_insecure_small_keys=True).public_key
    for bits, key, context in (
        (BITS, PUBLIC, b"client 2"),
        (BITS, other, b"client 1"),
        (BITS - 1, PUBLIC, b"client 1"),
        (BITS + 1, PUBLIC, b"client 1"),
    ):
        with pytest.raises(InvalidProof):
            verify(proof, bits, key, context)
    with pytest.raises(InvalidProof):
        verify(b"", BITS, PUBLIC, b"")


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 8 * proof_bytes(BITS, PUBLIC) - 1))
def test_every_bit_of_a_proof_counts(place):
    proof = bytearray(_PROOF)
    proof[place // 8] ^= 1 << place % 8
    with pytest.raises(InvalidProof):
        verify(bytes(proof), BITS, PUBLIC, b"context")


_PROOF = prove(21, BITS, KEY, b"context")


@pytest.mark.parametrize("absurd", [2, 2**BITS, 10**12, PUBLIC.n - 1], ids=["2", "2^bits", "10^12", "n-1"])
def test_an_absurd_number_in_the_place_of_a_bit_is_noticed(absurd):
    width = PUBLIC.ciphertext_bytes
    false = PUBLIC.encrypt_int(absurd).to_bytes(width, "little")
    with pytest.raises(InvalidProof):
        verify(false + _PROOF[width:], BITS, PUBLIC, b"context")


def test_a_prover_that_picks_both_challenges_is_noticed():
    """Both statements simulated: then the challenges do not add up to the hash of what was announced."""
    n, square = PUBLIC.n, PUBLIC.n**2
    proof = b""
    for _ in range(BITS):
        c = PUBLIC.encrypt_int(10**6)
        numbers = [c]
        answers, challenges = [], []
        for u in (c, c * int(gmpy2.invert(PUBLIC.g, square)) % square):
            z, e = secrets.randbelow(n), secrets.randbits(128)
            numbers.append(int(gmpy2.powmod(z, n, square) * gmpy2.powmod(u, -e, square) % square))
            answers.append(z)
            challenges.append(e)
        for number in numbers:
            proof += number.to_bytes(PUBLIC.ciphertext_bytes, "little")
        for z in answers:
            proof += z.to_bytes(PUBLIC.modulus_bytes, "little")
        proof += challenges[0].to_bytes(16, "little")
    assert len(proof) == proof_bytes(BITS, PUBLIC)
    with pytest.raises(InvalidProof):
        verify(proof, BITS, PUBLIC, b"context")


@pytest.mark.parametrize("number", [0, KEY.p, PUBLIC.n, PUBLIC.n**2 + 1], ids=["0", "p", "n", "n^2+1"])
def test_numbers_that_are_no_units_are_refused(number):
    width = PUBLIC.ciphertext_bytes
    with pytest.raises(InvalidProof):
        verify(number.to_bytes(width, "little") + _PROOF[width:], BITS, PUBLIC, b"context")


def test_two_proofs_of_one_number_look_nothing_alike():
    a, b = (prove(1, BITS, KEY, b"context") for _ in range(2))
    width = PUBLIC.ciphertext_bytes
    assert all(
        a[start : start + width] != b[start : start + width] for start in range(0, len(a) - width, width)
    )


def test_a_negated_proof_is_still_of_the_same_bits():
    """-1 is an n-th power, so the random combination may not see a sign, and need not."""
    for value in range(2):
        ciphertext = verify(prove(value, 1, KEY, b""), 1, PUBLIC, b"")
        assert KEY.decrypt_int(PUBLIC.n**2 - ciphertext) == value
