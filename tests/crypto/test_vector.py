import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapfl import crypto
from dapfl.crypto import VectorCipher, generate_keypair
from dapfl.errors import CryptoError, EncodingError, InvalidCiphertext, KeyGenerationError

KEY = generate_keypair(512, allow_insecure_small_keys=True)
CIPHER = VectorCipher(KEY.public_key, max_terms=4, limit=10.0)


def test_the_public_names_of_crypto() -> None:
    assert crypto.__all__ == [
        "EncryptedVector",
        "PrivateKey",
        "PublicKey",
        "VectorCipher",
        "generate_keypair",
    ]
    assert all(getattr(crypto, name).__doc__ for name in crypto.__all__)


def test_a_small_key_needs_an_argument_that_says_insecure() -> None:
    with pytest.raises(KeyGenerationError, match="not secure"):
        generate_keypair(512)


@given(
    st.lists(
        st.lists(st.floats(-10, 10, width=32), min_size=5, max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_a_sum_is_the_sum_of_the_vectors(vectors: list[list[float]]) -> None:
    total = CIPHER.add(*map(CIPHER.encrypt, vectors))
    expected = np.sum(np.array(vectors, np.float32).astype(np.float64), axis=0)
    np.testing.assert_allclose(CIPHER.decrypt(total, KEY), expected, rtol=0, atol=4 * 10 * 2.0**-38)


@pytest.mark.parametrize("limit", [1e-12, 0.3, 1024.0, 1e9])
def test_sums_at_the_declared_bounds_are_right(limit: float) -> None:
    cipher = VectorCipher(KEY.public_key, max_terms=1000, limit=limit)
    edge = cipher.encrypt(np.array([limit, -limit, 0.0]))
    hundred = cipher.add(*[edge] * 100)
    found = cipher.decrypt(cipher.add(*[hundred] * 10), KEY)
    assert found == pytest.approx([1000 * limit, -1000 * limit, 0.0], rel=1e-7)


@pytest.mark.parametrize("bad", [10.000001, -11.0, np.inf, np.nan])
def test_a_number_beyond_the_limit_is_refused_by_its_place(bad: float) -> None:
    with pytest.raises(EncodingError, match="Number 2 of the vector"):
        CIPHER.encrypt([0.0, 1.0, bad])


def test_more_vectors_than_declared_are_not_added() -> None:
    two = CIPHER.add(CIPHER.encrypt([1.0]), CIPHER.encrypt([1.0]))
    with pytest.raises(EncodingError, match="exceeds max_terms = 4"):
        CIPHER.add(two, two, two)
    assert CIPHER.decrypt(CIPHER.add(two, two), KEY).tolist() == [4.0]


def test_what_cannot_be_added_is_refused() -> None:
    with pytest.raises(EncodingError, match="nothing to add"):
        CIPHER.add()
    with pytest.raises(EncodingError, match="1 and 2 numbers"):
        CIPHER.add(CIPHER.encrypt([1.0]), CIPHER.encrypt([1.0, 2.0]))
    for shape in ((), (0,), (1, 1)):
        with pytest.raises(EncodingError, match="one row of numbers"):
            CIPHER.encrypt(np.zeros(shape))


def test_vectors_of_other_keys_or_bounds_are_not_mixed() -> None:
    key = generate_keypair(512, allow_insecure_small_keys=True)
    others = VectorCipher(key.public_key, 4, 10.0), VectorCipher(KEY.public_key, 5, 10.0)
    for other in (*others, VectorCipher(KEY.public_key, 4, 9.0)):
        with pytest.raises(InvalidCiphertext, match="another cipher"):
            CIPHER.add(CIPHER.encrypt([1.0]), other.encrypt([1.0]))
    with pytest.raises(CryptoError, match="does not belong"):
        CIPHER.decrypt(CIPHER.encrypt([1.0]), key)


@pytest.mark.parametrize(("max_terms", "limit"), [(0, 1.0), (2**33, 1.0), (1, 0.0), (1, -1.0), (1, np.nan)])
def test_bounds_that_cannot_be_kept_are_refused(max_terms: int, limit: float) -> None:
    with pytest.raises(EncodingError, match="must be"):
        VectorCipher(KEY.public_key, max_terms, limit)


def test_an_encrypted_vector_travels_as_bytes() -> None:
    vector = CIPHER.encrypt(np.linspace(-10, 10, 100))
    again = VectorCipher(KEY.public_key, 4, 10.0).from_bytes(vector.to_bytes())
    assert (again.size, again.terms, again.cipher_id) == (100, 1, CIPHER.id)
    assert CIPHER.decrypt(again, KEY).tolist() == CIPHER.decrypt(vector, KEY).tolist()


def test_bytes_that_are_no_vector_of_the_cipher_are_refused() -> None:
    good = CIPHER.encrypt([1.0, 2.0])
    with pytest.raises(InvalidCiphertext, match="not an encrypted vector"):
        CIPHER.from_bytes(b"junk")
    for change in (
        {"size": 1000},
        {"size": 0},
        {"size": -1},
        {"terms": 0},
        {"terms": 5},
        {"cipher_id": "0" * 32},
    ):
        altered = crypto.EncryptedVector(**{**vars(good), **change})
        with pytest.raises(InvalidCiphertext):
            CIPHER.from_bytes(altered.to_bytes())
    zero = crypto.EncryptedVector(np.zeros_like(good.ciphertexts), 2, 1, CIPHER.id)
    with pytest.raises(InvalidCiphertext, match="factor"):
        CIPHER.from_bytes(zero.to_bytes())
