"""Safe primes are prime, safe, of the size that was asked for, and not always the same."""

import gmpy2
import pytest

from dapfl.crypto.keys.safe_primes import is_safe_prime, safe_prime


@pytest.mark.parametrize("bits", [24, 32, 65, 128, 512])
def test_a_safe_prime_is_twice_a_prime_plus_one(bits: int) -> None:
    p = safe_prime(bits)
    assert p.bit_length() == bits and p >> (bits - 2) == 3
    assert gmpy2.is_prime(p, 40) and gmpy2.is_prime((p - 1) // 2, 40)


def test_two_safe_primes_differ() -> None:
    assert safe_prime(128) != safe_prime(128)


def test_safe_primes_are_told_from_other_numbers() -> None:
    safe = [p for p in range(200) if is_safe_prime(p)]
    assert safe == [7, 11, 23, 47, 59, 83, 107, 167, 179]
