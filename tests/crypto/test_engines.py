"""One conformance suite for every engine, against Python's own integers."""

import random
from typing import Any

import gmpy2
import numpy as np
import pytest

from dapfl.crypto.engines import native
from dapfl.crypto.engines.base import (
    ArithmeticEngine,
    available_engines,
    engine_named,
    first_not_below,
    set_threads,
    to_ints,
    to_rows,
)
from dapfl.crypto.engines.fixed_base import TABLES, TableCache
from dapfl.crypto.engines.gmp import GmpEngine, GmpRing
from dapfl.crypto.engines.native import NativeEngine
from dapfl.errors import ConfigError, CryptoError, InvalidCiphertext

ENGINES = ("gmp", *native.usable())
SIZES = (64, 129, 512, 1024, 2048, 3072)
COUNTS = (1, 3, 8, 13)


def engine(name: str) -> ArithmeticEngine:
    return GmpEngine() if name == "gmp" else NativeEngine(name)


def roots(bits: int, rng: random.Random) -> list[int]:
    """A random odd number, and the largest and the smallest of that size."""
    return [rng.getrandbits(bits) | 1 | 1 << (bits - 1), (1 << bits) - 1, (1 << (bits - 1)) + 1]


def operand(limit: int, rng: random.Random) -> int:
    edges = [0, 1, 2, limit - 1, limit - 2, limit // 2, (1 << (limit.bit_length() - 1)) - 1]
    return rng.choice(edges) % limit if rng.random() < 0.4 else rng.randrange(limit)


def unit(modulus: int, rng: random.Random) -> int:
    while gmpy2.gcd(x := rng.randrange(modulus), modulus) != 1:
        pass
    return x


def operands(limit: int, count: int, rng: random.Random) -> list[int]:
    return [operand(limit, rng) for _ in range(count)]


@pytest.mark.parametrize("bits", SIZES)
@pytest.mark.parametrize("name", ENGINES)
def test_products(name: str, bits: int) -> None:
    rng = random.Random(bits)
    for root in roots(bits, rng):
        ring = engine(name).ring(root)
        for count in COUNTS:
            batches = [operands(ring.modulus, count, rng) for _ in range(3)]
            got = ring.product([to_rows(batch, ring.modulus_bytes) for batch in batches])
            assert to_ints(got) == [a * b * c % ring.modulus for a, b, c in zip(*batches, strict=True)]
            assert to_ints(ring.product([to_rows(batches[0], ring.modulus_bytes)])) == batches[0]


@pytest.mark.parametrize("bits", SIZES)
@pytest.mark.parametrize("name", ENGINES)
def test_powers(name: str, bits: int) -> None:
    rng = random.Random(bits)
    for root in roots(bits, rng):
        ring, scale = engine(name).ring(root), rng.randrange(root)
        for count, exponent in ((1, 1), (3, 2), (9, 15), (9, rng.getrandbits(61) | 1 << 60)):
            # rows as wide as an engine must take, which need not be reduced
            bases = operands(ring.modulus**2, count, rng)
            messages = operands(root**2, count, rng)
            rows = to_rows(bases, 2 * ring.modulus_bytes)
            powers = [pow(base, exponent, ring.modulus) for base in bases]
            assert to_ints(ring.powers(rows, exponent)) == powers
            assert to_ints(ring.public_powers(rows, exponent)) == powers
            got = ring.powers(rows, exponent, to_rows(messages, 2 * ring.root_bytes), scale)
            assert to_ints(got) == [
                power * (1 + scale * message * root) % ring.modulus
                for power, message in zip(powers, messages, strict=True)
            ]


@pytest.mark.parametrize("bits", SIZES)
@pytest.mark.parametrize("name", ENGINES)
def test_powers_modulo_the_root(name: str, bits: int) -> None:
    rng = random.Random(bits)
    for root in roots(bits, rng):
        ring = engine(name).ring(root)
        bases = operands(ring.modulus**2, 9, rng)
        for exponent in (1, 16, rng.getrandbits(90)):
            got = ring.residue_powers(to_rows(bases, 2 * ring.modulus_bytes), exponent)
            assert to_ints(got) == [pow(base, exponent, root) for base in bases]


@pytest.mark.parametrize("bits", SIZES)
@pytest.mark.parametrize("name", ENGINES)
def test_products_of_powers(name: str, bits: int) -> None:
    rng = random.Random(bits)
    for root in roots(bits, rng):
        ring = engine(name).ring(root)
        for count, width in ((0, 1), (1, 2), (3, 1), (8, 16), (13, 3)):
            bases, exponents = operands(ring.modulus**2, count, rng), operands(256**width, count, rng)
            rows = to_rows(bases, 2 * ring.modulus_bytes), to_rows(exponents, width)
            expected = product_of_powers(bases, exponents, ring.modulus)
            assert to_ints(ring.power_product(*rows)) == [expected]
            assert to_ints(ring.residue_power_product(*rows)) == [expected % root]


@pytest.mark.parametrize("name", ENGINES)
def test_products_of_more_powers_than_fit_one_table(name: str) -> None:
    rng = random.Random(0)
    ring = engine(name).ring((1 << 127) - 1)
    bases, exponents = operands(ring.modulus, 1200, rng), operands(256, 1200, rng)
    rows = to_rows(bases, ring.modulus_bytes), to_rows(exponents, 1)
    expected = product_of_powers(bases, exponents, ring.modulus)
    for count in (1, 2):
        set_threads(count)
        assert to_ints(ring.power_product(*rows)) == [expected]
        assert to_ints(ring.residue_power_product(*rows)) == [expected % ring.root]


def product_of_powers(bases: list[int], exponents: list[int], modulus: int) -> int:
    result = 1
    for base, exponent in zip(bases, exponents, strict=True):
        result = result * pow(base, exponent, modulus) % modulus
    return result


@pytest.mark.parametrize("bits", SIZES)
@pytest.mark.parametrize("name", ENGINES)
def test_powers_from_tables(name: str, bits: int) -> None:
    rng = random.Random(bits)
    root = roots(bits, rng)[0]
    ring, scale = engine(name).ring(root), rng.randrange(root)
    base, exponents = unit(ring.modulus, rng), operands(2**24, 9, rng)
    messages = operands(root, 9, rng)
    expected = [
        pow(base, exponent, ring.modulus) * (1 + scale * message * root) % ring.modulus
        for exponent, message in zip(exponents, messages, strict=True)
    ]
    for window, spacing in ((4, 6), (4, 4), (4, 1), (8, 3), (8, 2)):
        table = ring.build_table(base, 3, window, spacing)
        for count in (1, 9):
            rows, texts = to_rows(exponents[:count], 3), to_rows(messages[:count], ring.root_bytes)
            got = ring.table_powers(table, rows, window, spacing, texts, scale)
            assert to_ints(got) == expected[:count]


@pytest.mark.parametrize("name", native.usable())
def test_a_table_begins_with_a_cache_line(name: str) -> None:
    ring = engine(name).ring((1 << 1024) - 1)
    tables = [ring.build_table(2, 16, 4, spacing) for spacing in (8, 4, 1)]
    assert [table.ctypes.data % 64 for table in tables] == [0, 0, 0]


@pytest.mark.parametrize("bits", (200, 408))
@pytest.mark.parametrize("name", ENGINES)
def test_powers_from_tables_of_hundreds_of_rows(name: str, bits: int) -> None:
    """More logs than native code adds before it reduces, in roots that leave it the fewest bits to spare."""
    rng = random.Random(bits)
    for root in roots(bits, rng):
        ring = engine(name).ring(root)
        base, exponents = unit(ring.modulus, rng), [*operands(2**1600, 8, rng), 2**1600 - 1]
        messages = operands(root**2, 9, rng)
        expected = [
            pow(base, exponent, ring.modulus) * (1 + message * root) % ring.modulus
            for exponent, message in zip(exponents, messages, strict=True)
        ]
        for window, spacing in ((4, 1), (4, 3), (8, 1), (8, 2)):
            table = ring.build_table(base, 200, window, spacing)
            texts = to_rows(messages, 2 * ring.root_bytes)
            got = ring.table_powers(table, to_rows(exponents, 200), window, spacing, texts, 1)
            assert to_ints(got) == expected


@pytest.mark.parametrize("bits", (64, 128, 512, 1024))
@pytest.mark.parametrize("name", ENGINES)
def test_quotients(name: str, bits: int) -> None:
    rng = random.Random(bits)
    prime = int(gmpy2.prev_prime(1 << bits))
    ring, scale = engine(name).ring(prime), rng.randrange(1, prime)
    bases = [x for x in operands(ring.modulus**2, 30, rng) if x % prime][:11]
    expected = [(pow(x, prime - 1, ring.modulus) - 1) // prime * scale % prime for x in bases]
    assert to_ints(ring.quotients(to_rows(bases, 2 * ring.modulus_bytes), prime - 1, scale)) == expected
    for index in (0, 7, 10):
        rows = to_rows([5 * prime if i == index else x for i, x in enumerate(bases)], 2 * ring.modulus_bytes)
        with pytest.raises(InvalidCiphertext, match=f"Number {index} "):
            ring.quotients(rows, prime - 1, scale)


@pytest.mark.parametrize("name", ENGINES)
def test_chinese_remainders(name: str) -> None:
    rng = random.Random(1)
    primes = [int(gmpy2.next_prime(rng.getrandbits(bits) | 1 << (bits - 1))) for bits in (127, 128, 512, 512)]
    p, q, r, s = primes
    for a, b in ((p, q), (q, p), (r, s), (s, r), (r * r, s * s), (p, s), (s, p), (7, q)):
        remainders = engine(name).remainders(a, b)
        for count in (1, 9):
            numbers = operands(a * b, count, rng)
            low, high = (to_rows((x % m for x in numbers), (m.bit_length() + 7) // 8) for m in (a, b))
            assert to_ints(remainders.combine(low, high)) == numbers


@pytest.mark.parametrize("name", ENGINES)
def test_an_exponent_of_hundreds_of_digits(name: str) -> None:
    """Lengths that are no multiple of a window, and digits that are all zero or all one."""
    ring = engine(name).ring((1 << 127) - 1)
    bases = [3, 2**200 + 7]
    for exponent in (1 << 300, (1 << 301) - 1, (1 << 302) + 1, 0xF0F << 291, 1, 5 << 20, 3**90, 3**700):
        powers = [pow(base, exponent, ring.modulus) for base in bases]
        rows = to_rows(bases, ring.modulus_bytes)
        assert to_ints(ring.powers(rows, exponent)) == to_ints(ring.public_powers(rows, exponent)) == powers


def test_wrong_sizes_never_reach_an_engine() -> None:
    for name in ENGINES:
        ring = engine(name).ring(2**127 - 1)
        fixed = ring.fixed_base(3, 4)
        good, wide = np.ones((2, 16), np.uint8), np.ones((2, 65), np.uint8)
        calls: list[Any] = [
            lambda ring=ring, wide=wide: ring.powers(wide, 3),
            lambda ring=ring, good=good: ring.powers(good, 0),
            lambda ring=ring, good=good: ring.powers(good, 3, good[:1]),
            lambda ring=ring, good=good, wide=wide: ring.powers(good, 3, wide),
            lambda ring=ring, good=good: ring.powers(good.astype(np.uint16), 3),
            lambda ring=ring, wide=wide: ring.residue_powers(wide, 3),
            lambda ring=ring, good=good: ring.residue_powers(good, 0),
            lambda ring=ring, good=good, wide=wide: ring.power_product(wide, good),
            lambda ring=ring, good=good: ring.power_product(good, good[:1]),
            lambda ring=ring, good=good: ring.power_product(good, np.ones((2, 4097), np.uint8)),
            lambda ring=ring, wide=wide: ring.quotients(wide, 3, 1),
            lambda ring=ring, good=good: ring.quotients(good, 0, 1),
            lambda ring=ring, good=good: ring.product([good]),
            lambda fixed=fixed, good=good: fixed.powers(good),
            lambda fixed=fixed, good=good: fixed.powers(good[:, :3]),
            lambda fixed=fixed, good=good: fixed.powers(good[:, :4].copy(), good[:1]),
            lambda ring=ring: ring.fixed_base(3, 0),
            lambda ring=ring: ring.fixed_base(ring.root, 4),
        ]
        for call in calls:
            with pytest.raises(CryptoError):
                call()
    for root in (1, 2, 100, -7):
        with pytest.raises(CryptoError):
            GmpRing(root)


def test_a_base_earns_its_table_by_use() -> None:
    for name in ENGINES:
        TABLES.clear()
        ring = engine(name).ring((1 << 127) - 1)
        fixed, sizes, rng = ring.fixed_base(3, 16), [], random.Random(0)
        for count in (1, 1, 7, 60, 8, 1000, 8):
            exponents = operands(2**128, count, rng)
            got = fixed.powers(to_rows(exponents, 16))
            assert to_ints(got) == [pow(3, e, ring.modulus) for e in exponents]
            sizes.append(TABLES.size)
        direct, small, same_small, medium, same_medium, large, same_large = sizes
        assert direct < small == same_small < medium == same_medium < large == same_large


@pytest.mark.parametrize("name", ENGINES)
def test_short_exponents(name: str) -> None:
    ring = engine(name).ring((1 << 127) - 1)
    for exponent_bytes in (1, 2, 3):
        for count in (1, 2, 70, 1100):
            exponents = [(7 * i) % 256**exponent_bytes for i in range(count)]
            got = ring.fixed_base(5, exponent_bytes).powers(to_rows(exponents, exponent_bytes))
            assert to_ints(got) == [pow(5, e, ring.modulus) for e in exponents]


def test_equal_keys_share_a_table() -> None:
    ring = GmpEngine().ring(1009)
    ring.fixed_base(3, 4).powers(np.ones((2, 4), np.uint8))
    size = TABLES.size
    GmpEngine().ring(1009).fixed_base(3, 4).powers(np.ones((2, 4), np.uint8))
    assert TABLES.size == size > 0


def test_tables_stay_within_their_memory() -> None:
    rings = [GmpEngine().ring(root) for root in range(10**20 + 1, 10**20 + 41, 2)]
    one = TableCache(10**9)
    one.table(rings[0], 2, 16, 2)
    cache = TableCache(3 * one.size)
    for ring in rings:
        cache.table(ring, 2, 16, 2)
        assert cache.size <= cache.limit
    assert cache.size == cache.limit
    table = cache.table(rings[-1], 2, 16, 1)[0]
    assert cache.table(rings[-1], 2, 16, 1)[0] is table  # the most recent one is still there


def test_keys_in_turn_do_not_displace_each_other() -> None:
    """The largest tables take half of the memory; the rest is for everyone else's."""
    rings = [GmpEngine().ring(root) for root in range(10**20 + 1, 10**20 + 9, 2)]
    one = TableCache(10**9)
    one.table(rings[0], 2, 16, 2000)
    cache = TableCache(5 * one.size // 2)
    first = [cache.table(ring, 2, 16, 2000) for ring in rings]
    second = [cache.table(ring, 2, 16, 2000) for ring in rings]
    assert all(a[0] is b[0] for a, b in zip(first, second, strict=True))
    assert [spacing for _, _, spacing in first] == [2, 6, 6, 6]


def test_a_root_that_native_code_cannot_hold_is_left_to_gmp() -> None:
    for name in native.usable():
        for root in (35, (1 << 9000) - 1):
            ring = engine(name).ring(root)
            assert isinstance(ring, GmpRing)
            numbers = [1, root - 1]
            got = ring.product([to_rows(numbers, ring.modulus_bytes)] * 2)
            assert to_ints(got) == [number**2 for number in numbers]


def test_engines_are_found_by_name() -> None:
    assert available_engines()[-1] == "gmp"
    assert engine_named("auto").name == available_engines()[0]
    for name in available_engines():
        assert engine_named(name).name == name
    for name in ("abacus", ""):
        with pytest.raises(ConfigError, match="No arithmetic engine"):
            engine_named(name)
    missing = {"ifma", "avx2", "portable"} - set(available_engines())
    for name in missing:
        with pytest.raises(ConfigError, match="does not work here"):
            engine_named(name)


def test_rows_are_compared_as_numbers() -> None:
    for limit in (1, 255, 256, 2**64, 2**64 + 1, 2**127 - 1, 10**30):
        for width in (1, 7, 8, 9, 16, 17):
            for number in (0, 1, limit - 1, limit, limit + 1, 2 * limit, 256**width - 1):
                if number < 256**width:
                    rows = to_rows([0, number, number], width)
                    assert first_not_below(rows, limit) == (None if number < limit else 1)
