"""Section III-B with numbers small enough to check by hand, and every number of a tiny key."""

import math

import pytest

from dapfl.crypto.keys.key_generation import keypair_from_primes
from dapfl.crypto.paillier import PrivateKey
from dapfl.crypto.signature import hash_to_unit, sign, verify
from dapfl.errors import InvalidCiphertext, InvalidSignature, KeyGenerationError

P, Q, N = 7, 11, 77
RHO = 30  # lcm(6, 10)


def tiny(g: int = N + 1) -> PrivateKey:
    return keypair_from_primes(P, Q, generator=g, allow_insecure_small_keys=True)


def big_l(x: int) -> int:
    return (x - 1) // N


def test_the_textbook_example() -> None:
    # n = 77, g = 5652: 5652^42 · 23^77 mod 5929 = 4624
    key = tiny(5652)
    assert key.public_key.encrypt_int(42, 23) == 4624
    assert key.decrypt_int(4624) == 42


def test_one_plus_n_needs_no_power() -> None:
    # (1+77)^5 = 1 + 5·77 = 386 mod 5929, and with ζ = 1 nothing else
    assert tiny().public_key.encrypt_int(5, 1) == 386


@pytest.mark.parametrize("g", [N + 1, 5652])
def test_every_plaintext_of_a_tiny_key(g: int) -> None:
    key = tiny(g)
    delta = pow(big_l(pow(g, RHO, N * N)), -1, N)  # Eq. 7
    for plaintext in range(N):
        for zeta in (1, 2, 23, 76):
            ciphertext = key.public_key.encrypt_int(plaintext, zeta)
            assert ciphertext == pow(g, plaintext, N * N) * pow(zeta, N, N * N) % (N * N)  # Eq. 8
            assert key.decrypt_int(ciphertext) == big_l(pow(ciphertext, RHO, N * N)) * delta % N  # Eq. 9
            assert key.decrypt_int(ciphertext) == plaintext


@pytest.mark.parametrize("g", [N + 1, 5652])
def test_every_sum_of_a_tiny_key(g: int) -> None:
    key = tiny(g)
    ciphertexts = [key.public_key.encrypt_int(m) for m in range(N)]
    for a in range(0, N, 5):
        for b in range(0, N, 3):
            total = key.public_key.add_int(ciphertexts[a], ciphertexts[b])
            assert key.decrypt_int(total) == (a + b) % N  # Eq. 10
            assert key.decrypt_int(key.public_key.multiply_int(ciphertexts[a], b)) == a * b % N


@pytest.mark.parametrize("randomness", ["djn", "full"])
@pytest.mark.parametrize("generator", ["n+1", "random"])
def test_random_encryptions_of_a_tiny_key(randomness: str, generator: str) -> None:
    key = keypair_from_primes(
        P, Q, generator=generator, randomness=randomness, allow_insecure_small_keys=True
    )
    for plaintext in range(N):
        assert key.decrypt_int(key.public_key.encrypt_int(plaintext)) == plaintext


def test_only_units_decrypt() -> None:
    key = tiny()
    for number in range(1, N * N, 13):
        if math.gcd(number, N) == 1:
            assert 0 <= key.decrypt_int(number) < N
        else:
            with pytest.raises(InvalidCiphertext):
                key.decrypt_int(number)
    for number in (-1, 0, N * N, N * N + 1):
        with pytest.raises(InvalidCiphertext):
            key.decrypt_int(number)


@pytest.mark.parametrize("g", [N + 1, 5652])
def test_a_tiny_signature_is_equation_12(g: int) -> None:
    key = tiny(g)
    for message in (b"", b"a", b"b", b"c"):
        h = hash_to_unit(message, key.public_key)
        sigma = big_l(pow(h, RHO, N * N)) * pow(big_l(pow(g, RHO, N * N)), -1, N) % N
        tilde = pow(h * pow(g, -sigma, N * N) % N, pow(N, -1, RHO), N)
        assert sign(message, key) == bytes([sigma, tilde])
        assert pow(g, sigma, N * N) * pow(tilde, N, N * N) % (N * N) == h  # Eq. 13
        verify(message, bytes([sigma, tilde]), key.public_key)


def test_one_signature_fits_a_tiny_key() -> None:
    key = tiny()
    right = sign(b"message", key)
    for sigma in range(0, 256, 7):
        for tilde in range(256):
            signature = bytes([sigma, tilde])
            if signature != right:
                with pytest.raises(InvalidSignature):
                    verify(b"message", signature, key.public_key)


def test_primes_must_be_admissible() -> None:
    refused = {
        (7, 7): "two different odd primes",
        (2, 11): "two different odd primes",
        (7, 15): "two different odd primes",
        (-7, -11): "two different odd primes",
        (3, 7): "gcd",  # 3 divides 7 - 1
        (5, 7): "djn",  # 5 = 1 modulo 4
        (7, 19): "djn",  # gcd(6, 18) = 6
    }
    for (p, q), reason in refused.items():
        with pytest.raises(KeyGenerationError, match=reason):
            keypair_from_primes(p, q, allow_insecure_small_keys=True)
    with pytest.raises(KeyGenerationError, match="not secure"):
        keypair_from_primes(7, 11)
    assert keypair_from_primes(5, 7, randomness="full", allow_insecure_small_keys=True).public_key.n == 35


def test_a_generator_must_generate() -> None:
    for g in (1, 0, 7, N * N + 1):
        with pytest.raises(KeyGenerationError, match="unit"):
            tiny(g)
    n_th_power = pow(2, N, N * N)  # an n-th residue: every L(g^ϱ) is 0
    with pytest.raises(KeyGenerationError, match="inverse"):
        tiny(n_th_power)
