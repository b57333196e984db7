"""Numbers of different keys side by side give what each key gives alone."""

import random

import numpy as np
import pytest

from dapfl.crypto.engines import lanes, native
from dapfl.crypto.engines.base import engine_named, to_ints, to_rows
from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.paillier import PrivateKey, decrypt_each
from dapfl.crypto.signature import sign, verify, verify_each
from dapfl.errors import CryptoError, EnvelopeError, InvalidSignature

BACKENDS = ["gmp", *native.usable()]


def engine(name):
    return engine_named(name) if name == "gmp" else native.NativeEngine(name)


@pytest.fixture(scope="module")
def keys() -> list[PrivateKey]:
    return [generate_keypair(256, allow_insecure_small_keys=True) for _ in range(9)]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_powers_in_many_rings_are_the_powers_in_each(name, count, keys):
    rng = random.Random(count)
    roots = [key.public_key.n for key in keys[:count]]
    rings = [engine(name).ring(root) for root in roots]
    bases, texts = ([rng.randrange(root) for root in roots] for _ in range(2))
    exponents = [rng.randrange(1, root) for root in roots]
    found = lanes.powers(rings, to_rows(bases, 32), exponents, to_rows(texts, 32))
    for root, base, exponent, text, row in zip(roots, bases, exponents, texts, found, strict=True):
        square = root * root
        assert to_ints(row) == [pow(base, exponent, square) * (1 + text * root) % square]


@pytest.mark.parametrize("name", BACKENDS)
def test_quotients_in_many_rings_say_which_bases_are_no_units(name, keys):
    primes = [prime for key in keys[:3] for prime in (key.p, key.q)]
    rings = [engine(name).ring(prime) for prime in primes]
    bases = [prime * prime - 2 for prime in primes]
    bases[2] = 5 * primes[2]
    rows, residues = lanes.quotients(rings, to_rows(bases, 64), [p - 1 for p in primes], [7] * 6)
    assert [to_ints(row) == [1] for row in residues] == [True, True, False, True, True, True]
    for index in (0, 1, 3, 4, 5):
        p = primes[index]
        assert to_ints(rows[index]) == [(pow(bases[index], p - 1, p * p) - 1) // p * 7 % p]


def test_rings_of_different_sizes_are_computed_all_the_same(keys):
    small = generate_keypair(128, allow_insecure_small_keys=True).public_key
    rings = [keys[0].public_key.ring, small.ring]
    found = lanes.powers(rings, to_rows([3, 3], 16), [5, 5], to_rows([0, 0], 16))
    assert [to_ints(row) for row in found] == [[243], [243]]


def test_what_does_not_fit_together_is_refused(keys):
    rings = [key.public_key.ring for key in keys[:2]]
    rows = to_rows([3, 3], 16)
    with pytest.raises(CryptoError, match="do not fit"):
        lanes.powers(rings, rows, [5], rows)
    with pytest.raises(CryptoError, match="do not fit"):
        lanes.powers(rings, rows, [5, 5], rows[:1])
    with pytest.raises(CryptoError, match="positive"):
        lanes.quotients(rings, rows, [5, 0], [1, 1])


def test_each_signature_stands_for_itself(keys):
    other = generate_keypair(192, randomness="full", allow_insecure_small_keys=True)
    paper = generate_keypair(256, generator="random", allow_insecure_small_keys=True)
    signers = [*keys, other, paper]
    signed = [(b"m%d" % i, sign(b"m%d" % i, key), key.public_key) for i, key in enumerate(signers)]
    assert verify_each(signed) == [None] * len(signers)
    for wrong in range(len(signers)):
        message, signature, key = signed[wrong]
        for bad in (
            (message + b"!", signature, key),
            (message, bytes(len(signature)), key),
            (message, signature[:-1], key),
            (message, signed[wrong - 1][1], key),
        ):
            problems = verify_each([*signed[:wrong], bad, *signed[wrong + 1 :]])
            assert isinstance(problems[wrong], InvalidSignature)
            assert [i for i, problem in enumerate(problems) if problem is not None] == [wrong]
            with pytest.raises(InvalidSignature):
                verify(*bad)


def test_no_two_bad_signatures_make_up_for_each_other(keys):
    """Every equation is checked by itself: factors that cancel in a product are found."""
    key = keys[0]
    width, n = key.public_key.modulus_bytes, key.public_key.n
    signature = sign(b"m", key)
    tilde = int.from_bytes(signature[width:], "little")
    changed = [tilde * 3 % n, tilde * pow(3, -1, n) % n]
    forged = [(b"m", signature[:width] + each.to_bytes(width, "little"), key.public_key) for each in changed]
    assert all(isinstance(problem, InvalidSignature) for problem in verify_each(forged))


def test_what_is_no_ciphertext_spoils_no_other(keys):
    width = keys[0].public_key.ciphertext_bytes
    rows = [to_rows([key.public_key.encrypt_int(i)], width) for i, key in enumerate(keys)]
    rows[1] = to_rows([keys[1].p], width)
    rows[4] = np.full((1, width), 255, np.uint8)
    rows[5] = rows[5][:, :-1]
    found = decrypt_each(keys, rows)
    assert [found[i] is None for i in range(9)] == [i in (1, 4, 5) for i in range(9)]
    assert all(to_ints(row) == [i] for i, row in enumerate(found) if row is not None)


@pytest.mark.parametrize("name", ["hybrid", "paillier"])
def test_envelopes_that_do_not_open_leave_the_others_alone(name):
    keys = [generate_keypair(512, allow_insecure_small_keys=True) for _ in range(5)]
    envelope = envelope_named(name)
    sealed = [(envelope.seal(b"to %d" % i, key.public_key, b"c"), key, b"c") for i, key in enumerate(keys)]
    box, *rest = sealed[1]
    sealed[1] = (box[:-1] + bytes([box[-1] ^ 1]), *rest)
    sealed[2] = (b"short", *sealed[2][1:])
    sealed[3] = (sealed[3][0], keys[0], b"c")
    found = envelope.open_each(sealed)
    assert [found[0], found[4]] == [b"to 0", b"to 4"]
    assert all(isinstance(found[i], EnvelopeError) for i in (1, 2, 3))


@pytest.mark.parametrize("name", BACKENDS)
def test_where_no_quotient_is_wanted_there_is_the_power_modulo_the_prime(name, keys):
    primes = [keys[0].p, keys[0].q]
    rings = [engine(name).ring(prime) for prime in primes] * 2
    bases, exponents = (
        [primes[0] ** 2 - 2, primes[1] ** 2 - 2, 3, 5],
        [primes[0] - 1, primes[1] - 1, 11, 10**9],
    )
    _, residues = lanes.quotients(rings, to_rows(bases, 64), exponents, [1, 1, 0, 0])
    expected = [1, 1, pow(3, 11, primes[0]), pow(5, 10**9, primes[1])]
    assert [to_ints(row)[0] for row in residues] == expected
