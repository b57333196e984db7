"""A contribution computed from others' ciphertexts cannot be proved; proofs cannot be borrowed or bent."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapfl.arrays import Rows
from dapfl.crypto.engines.base import available_engines, to_ints, to_rows
from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.paillier import PublicKey
from dapfl.crypto.proofs.plaintext_proof import encrypt, proof_bytes, prove, verify
from dapfl.errors import CryptoError, InvalidCiphertext, InvalidProof

KEY = generate_keypair(512, allow_insecure_small_keys=True)
PUBLIC = KEY.public_key
N, SQUARE = PUBLIC.n, PUBLIC.n**2
WIDTH = PUBLIC.ciphertext_bytes


def context(client: int, t: int = 3, model: str = "model 3") -> bytes:
    return f"client {client}, round {t}, {model}".encode()


def plain(*numbers: int) -> Rows:
    return to_rows(numbers, PUBLIC.plaintext_bytes)


def refused(proof: bytes, ciphertexts: Rows, where: bytes, key: PublicKey = PUBLIC) -> bool:
    with pytest.raises(InvalidProof):
        verify(proof, ciphertexts, key, where)
    return True


@pytest.mark.parametrize("engine", available_engines())
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 256**PUBLIC.plaintext_bytes - 1), min_size=1, max_size=9))
def test_what_is_proved_is_encrypted(engine: str, numbers: list[int]) -> None:
    key = PUBLIC.using(engine)
    ciphertexts, proof = encrypt(plain(*numbers), key, context(1))
    assert len(proof) == proof_bytes(key)
    verify(proof, ciphertexts, key, context(1))
    assert to_ints(KEY.decrypt(ciphertexts)) == numbers


def test_proofs_of_one_engine_are_good_for_the_others() -> None:
    for maker in available_engines():
        ciphertexts, proof = encrypt(plain(1, 2, 3), PUBLIC.using(maker), context(1))
        for checker in available_engines():
            verify(proof, ciphertexts, PUBLIC.using(checker), context(1))


def test_the_equation_of_the_proof() -> None:
    """Against Python's own integers: (1+n)^μ·h_n^σ = a·∏ c_k^(e_k), the e_k from the hash of it all."""
    ciphertexts, proof = encrypt(plain(5, 6), PUBLIC, context(1))
    seed, mu, sigma = proof[:32], number_at(proof, 32), number_at(proof, 32 + PUBLIC.modulus_bytes)
    stream = hashlib.shake_256(b"dapfl weights 1" + seed).digest(32)
    announced = (1 + mu * N) * pow(PUBLIC.h_n, sigma, SQUARE) % SQUARE
    for k, c in enumerate(to_ints(ciphertexts)):
        announced = (
            announced * pow(c, -int.from_bytes(stream[16 * k : 16 * k + 16], "little"), SQUARE) % SQUARE
        )
    numbers = b"".join(number.to_bytes(WIDTH, "little") for number in (N, announced))
    state = hashlib.sha256()
    for part in (b"dapfl plaintext proof 1", context(1), numbers, ciphertexts.tobytes()):
        state.update(len(part).to_bytes(8, "big") + part)
    assert state.digest() == seed


def number_at(proof: bytes, start: int) -> int:
    """μ, of the width of n; or σ, all the rest."""
    return int.from_bytes(
        proof[start : start + PUBLIC.modulus_bytes] if start == 32 else proof[start:], "little"
    )


# The inverse contribution ----------------------------------------------------------------------

VICTIM, PROOF_OF_VICTIM = encrypt(plain(1234, 77), PUBLIC, context(1))
OTHERS = [encrypt(plain(10 * i, i), PUBLIC, context(i)) for i in (2, 3)]


def inverse(batches: list[Rows]) -> Rows:
    product = to_ints(PUBLIC.product(batches))
    return to_rows([pow(number, -1, SQUARE) for number in product], WIDTH)


def test_an_inverse_contribution_would_leave_the_victim_alone() -> None:
    """What the proof is there for: the sum of four signed contributions is one client's."""
    cancelling = inverse([ciphertexts for ciphertexts, _ in OTHERS])
    total = PUBLIC.product([VICTIM, *(ciphertexts for ciphertexts, _ in OTHERS), cancelling])
    assert to_ints(KEY.decrypt(total)) == [1234, 77]


def test_an_inverse_contribution_cannot_borrow_a_proof() -> None:
    cancelling = inverse([ciphertexts for ciphertexts, _ in OTHERS])
    for _, proof in [*OTHERS, (VICTIM, PROOF_OF_VICTIM)]:
        for client in (1, 2, 3, 4):
            assert refused(proof, cancelling, context(client))


def test_an_inverse_contribution_cannot_bend_a_proof() -> None:
    """-μ and -σ are the answers for the inverse, but the challenge was for another vector."""
    ciphertexts, proof = OTHERS[0]
    width = PUBLIC.modulus_bytes
    mu = int.from_bytes(proof[32 : 32 + width], "little")
    for sigma in (0, 1, int.from_bytes(proof[32 + width :], "little")):
        bent = proof[:32] + (-mu % N).to_bytes(width, "little")
        bent += sigma.to_bytes(len(proof) - len(bent), "little")
        assert refused(bent, inverse([ciphertexts]), context(2))
        assert refused(bent, inverse([ciphertexts]), context(4))


@pytest.mark.parametrize("guess", [0, 1, N - 20], ids=["0", "1", "n-20"])
def test_one_unknown_plaintext_among_known_ones_is_noticed(guess: int) -> None:
    """All but one ciphertext are the sender's own; of the last it knows a relation to others' only."""
    numbers, exponents = plain(5, 6, 7), PUBLIC.draw_exponents(3)
    own = PUBLIC.encrypt_with(numbers, exponents)
    last = to_ints(own[2:])[0] * to_ints(inverse([OTHERS[0][0]]))[0] % SQUARE
    mixed = np.concatenate([own[:2], to_rows([last], WIDTH)])
    claimed = np.zeros((3, PUBLIC.modulus_bytes), np.uint8)
    claimed[:, : numbers.shape[1]] = numbers
    claimed[2] = to_rows([guess], PUBLIC.modulus_bytes)[0]
    assert refused(prove(mixed, claimed, exponents, PUBLIC, context(4)), mixed, context(4))
    verify(prove(own, numbers, exponents, PUBLIC, context(4)), own, PUBLIC, context(4))


def test_a_rerandomised_copy_cannot_be_proved() -> None:
    exponents = PUBLIC.draw_exponents(2)
    copy = PUBLIC.product([VICTIM, PUBLIC.encrypt_with(plain(0, 0), exponents)])
    assert to_ints(KEY.decrypt(copy)) == [1234, 77]
    assert refused(PROOF_OF_VICTIM, copy, context(1))
    assert refused(prove(copy, plain(0, 0), exponents, PUBLIC, context(4)), copy, context(4))


# Borrowed and bent proofs ----------------------------------------------------------------------


def test_a_proof_is_for_one_sender_one_round_one_model_one_key_and_one_vector() -> None:
    verify(PROOF_OF_VICTIM, VICTIM, PUBLIC, context(1))
    for where in (context(2), context(1, t=4), context(1, model="model 4"), b""):
        assert refused(PROOF_OF_VICTIM, VICTIM, where)
    product = PUBLIC.product([VICTIM, OTHERS[0][0]])
    for vector in (VICTIM[::-1].copy(), VICTIM[:1], np.concatenate([VICTIM, VICTIM[:1]]), product):
        assert refused(PROOF_OF_VICTIM, vector, context(1))
    negated = to_rows([SQUARE - number for number in to_ints(VICTIM)], WIDTH)
    assert refused(PROOF_OF_VICTIM, negated, context(1))
    other = generate_keypair(512, allow_insecure_small_keys=True).public_key
    with pytest.raises((InvalidProof, InvalidCiphertext)):
        verify(PROOF_OF_VICTIM, VICTIM, other, context(1))


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 8 * proof_bytes(PUBLIC) - 1))
def test_every_bit_of_a_proof_counts(place: int) -> None:
    proof = bytearray(PROOF_OF_VICTIM)
    proof[place // 8] ^= 1 << place % 8
    assert refused(bytes(proof), VICTIM, context(1))


def test_proofs_of_another_length_are_refused() -> None:
    for proof in (b"", PROOF_OF_VICTIM[:-1], PROOF_OF_VICTIM + b"\0", bytes(len(PROOF_OF_VICTIM))):
        assert refused(proof, VICTIM, context(1))


def test_an_answer_has_one_form() -> None:
    """μ + n would answer as well as μ: it is refused, so that nobody can alter a proof."""
    n = N >> 3 | 1  # leaves the top bits of its bytes free
    key = PublicKey(n, n + 1)
    ciphertexts, proof = encrypt(np.ones((1, 8), np.uint8), key, b"")
    verify(proof, ciphertexts, key, b"")
    longer = number_at(proof, 32) + n
    other = proof[:32] + longer.to_bytes(key.modulus_bytes, "little") + proof[32 + key.modulus_bytes :]
    assert refused(other, ciphertexts, b"", key)


@pytest.mark.parametrize("number", [0, KEY.p, N, SQUARE], ids=["0", "p", "n", "n^2"])
def test_numbers_that_are_no_units_are_refused(number: int) -> None:
    vector = np.concatenate([VICTIM[:1], to_rows([number], WIDTH)])
    with pytest.raises(InvalidCiphertext):
        verify(PROOF_OF_VICTIM, vector, PUBLIC, context(1))


def test_keys_with_other_randomness_are_refused() -> None:
    for key in (
        generate_keypair(512, randomness="full", allow_insecure_small_keys=True),
        generate_keypair(512, generator="random", allow_insecure_small_keys=True),
    ):
        with pytest.raises(CryptoError, match="djn"):
            encrypt(plain(1), key.public_key, b"")
        with pytest.raises(CryptoError, match="djn"):
            verify(PROOF_OF_VICTIM, VICTIM, key.public_key, b"")


def test_two_proofs_of_one_vector_look_nothing_alike() -> None:
    (a, proof_a), (b, proof_b) = (encrypt(plain(1, 2), PUBLIC, context(1)) for _ in range(2))
    assert not (a == b).all(axis=1).any()
    width = PUBLIC.modulus_bytes
    assert proof_a[:32] != proof_b[:32] and proof_a[32 : 32 + width] != proof_b[32 : 32 + width]
