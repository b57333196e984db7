"""A ciphertext made here decrypts in python-paillier, and the other way round."""

import pytest

from dapfl.crypto.paillier import PrivateKey

phe = pytest.importorskip("phe", reason="python-paillier is in the bench extra")


def test_python_paillier_reads_our_ciphertexts(key: PrivateKey) -> None:
    theirs = phe.PaillierPrivateKey(phe.PaillierPublicKey(key.public_key.n), key.p, key.q)
    for number in (0, 1, 12345, key.public_key.n - 1):
        assert theirs.raw_decrypt(key.public_key.encrypt_int(number)) == number


def test_we_read_the_ciphertexts_of_python_paillier(key: PrivateKey) -> None:
    theirs = phe.PaillierPublicKey(key.public_key.n)
    for number in (0, 1, 12345, key.public_key.n - 1):
        assert key.decrypt_int(theirs.raw_encrypt(number)) == number


def test_sums_may_mix_both(key: PrivateKey) -> None:
    theirs = phe.PaillierPublicKey(key.public_key.n)
    total = key.public_key.add_int(key.public_key.encrypt_int(40), theirs.raw_encrypt(2))
    assert key.decrypt_int(total) == 42
