"""What a user of keys may rely on."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapfl.crypto.engines.base import available_engines, set_threads, to_ints, to_rows
from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import ConfigError, CryptoError, InvalidCiphertext, KeyGenerationError

PROPERTY = settings(
    derandomize=True,
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def random_plaintexts(key: PublicKey, count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, key.plaintext_bytes), np.uint8)


@PROPERTY
@given(st.lists(st.binary(min_size=63, max_size=63), min_size=1, max_size=9))
def test_decryption_inverts_encryption(insecure_key: PrivateKey, texts: list[bytes]) -> None:
    rows = np.frombuffer(b"".join(texts), np.uint8).reshape(-1, 63)
    for ciphertexts in (insecure_key.public_key.encrypt(rows), insecure_key.encrypt(rows)):
        plaintexts = insecure_key.decrypt(ciphertexts)
        assert plaintexts.shape == (len(rows), 64)
        assert plaintexts[:, :63].tobytes() == rows.tobytes() and not plaintexts[:, 63:].any()


@PROPERTY
@given(st.lists(st.lists(st.integers(0, 2**500), min_size=3, max_size=3), min_size=1, max_size=6))
def test_a_product_of_ciphertexts_holds_the_sum(
    other_insecure_key: PrivateKey, batches: list[list[int]]
) -> None:
    key = other_insecure_key.public_key
    product = key.product([key.encrypt(to_rows(batch, 63)) for batch in batches])
    sums = [sum(column) % key.n for column in zip(*batches, strict=True)]
    assert to_ints(other_insecure_key.decrypt(product)) == sums


@pytest.mark.parametrize("randomness", ["djn", "full"])
@pytest.mark.parametrize("engine", available_engines())
def test_2048_bits_with_every_engine(key: PrivateKey, engine: str, randomness: str) -> None:
    key = replace(key, public_key=replace(key.public_key, randomness=randomness, engine=engine))
    a, b = random_plaintexts(key.public_key, 11, 1), random_plaintexts(key.public_key, 11, 2)
    total = key.decrypt(key.public_key.add(key.public_key.encrypt(a), key.encrypt(b)))
    sums = [(x + y) % key.public_key.n for x, y in zip(to_ints(a), to_ints(b), strict=True)]
    assert to_ints(total) == sums


@pytest.mark.parametrize("engine", available_engines())
def test_3072_bits_and_a_random_g_with_every_engine(key_3072: PrivateKey, engine: str) -> None:
    key = key_3072.using(engine)
    plaintexts = random_plaintexts(key.public_key, 3)
    for ciphertexts in (key.public_key.encrypt(plaintexts), key.encrypt(plaintexts)):
        assert to_ints(key.decrypt(ciphertexts)) == to_ints(plaintexts)


def test_every_encryption_is_fresh(insecure_key: PrivateKey) -> None:
    rows = np.zeros((20, 63), np.uint8)
    for randomness in ("djn", "full"):
        key = replace(insecure_key, public_key=replace(insecure_key.public_key, randomness=randomness))
        ciphertexts = np.concatenate([key.public_key.encrypt(rows), key.encrypt(rows)])
        assert len({row.tobytes() for row in ciphertexts}) == 40


def test_threads_change_nothing(insecure_key: PrivateKey) -> None:
    rows = random_plaintexts(insecure_key.public_key, 37)
    set_threads(3)
    for engine in available_engines():
        key = insecure_key.using(engine)
        ciphertexts = key.public_key.encrypt(rows)
        assert to_ints(key.decrypt(ciphertexts)) == to_ints(rows)
        full = replace(key, public_key=replace(key.public_key, randomness="full"))
        assert to_ints(key.decrypt(full.encrypt(rows))) == to_ints(rows)
    with pytest.raises(ConfigError):
        set_threads(0)


@pytest.mark.parametrize("generator", ["n+1", "random"])
def test_a_generated_key_has_the_asked_size(generator: str) -> None:
    for bits in (64, 256, 512):
        key = generate_keypair(bits, generator=generator, allow_insecure_small_keys=True)
        assert key.public_key.bits == bits and key.p % 4 == key.q % 4 == 3
        assert (key.public_key.g == key.public_key.n + 1) == (generator == "n+1")
        assert key.decrypt_int(key.public_key.encrypt_int(99)) == 99


def test_a_secure_key_is_the_default() -> None:
    key = generate_keypair()
    assert key.public_key.bits == 2048 and key.public_key.g == key.public_key.n + 1
    assert (key.public_key.plaintext_bytes, key.public_key.ciphertext_bytes) == (255, 512)


def test_a_small_key_must_be_asked_for_by_name() -> None:
    for bits in (512, 2047):
        with pytest.raises(KeyGenerationError, match="not secure"):
            generate_keypair(bits)
    for bits in (16, 100, 1001):
        with pytest.raises(KeyGenerationError, match="multiple of 16"):
            generate_keypair(bits, allow_insecure_small_keys=True)


def test_a_public_key_must_be_one() -> None:
    for n, g in ((9, 2), (78, 79), (77, 7), (77, 1), (77, 77**2)):
        with pytest.raises(KeyGenerationError):
            PublicKey(n, g)
    with pytest.raises(KeyGenerationError, match="randomness"):
        PublicKey(77, 78, "none")  # type: ignore[arg-type]


def test_primes_and_public_key_must_belong_together(
    insecure_key: PrivateKey, other_insecure_key: PrivateKey
) -> None:
    with pytest.raises(KeyGenerationError, match="belong"):
        PrivateKey(insecure_key.p, insecure_key.q, other_insecure_key.public_key)


def test_a_private_key_shows_no_secret(insecure_key: PrivateKey) -> None:
    text = f"{insecure_key!r} {insecure_key}"
    for secret in (insecure_key.p, insecure_key.q):
        assert str(secret) not in text and f"{secret:x}" not in text
    assert insecure_key.public_key.fingerprint in text


def test_pickled_keys_leave_their_tables_behind(key: PrivateKey) -> None:
    rows = np.zeros((300, 255), np.uint8)
    used = replace(key)
    used.encrypt(rows), used.public_key.encrypt(rows[:1])
    data = pickle.dumps(used)
    assert len(data) < 3000
    copy = pickle.loads(data)
    assert copy == key and hash(copy) == hash(key)
    assert not copy.decrypt(used.public_key.encrypt(rows[:1])).any()


def test_fingerprints_name_keys(insecure_key: PrivateKey, other_insecure_key: PrivateKey) -> None:
    public = insecure_key.public_key
    fingerprints = {
        public.fingerprint,
        other_insecure_key.public_key.fingerprint,
        replace(public, g=public.g + public.n).fingerprint,
    }
    assert len(fingerprints) == 3 and all(len(f) == 32 for f in fingerprints)
    assert public.using("gmp").fingerprint == public.fingerprint and public.using("gmp") == public


def test_misshapen_plaintexts_are_refused(insecure_key: PrivateKey) -> None:
    wrong = [
        np.zeros((2, 64), np.uint8),
        np.zeros((2, 0), np.uint8),
        np.zeros(63, np.uint8),
        np.zeros((2, 63), np.int8),
        [[0] * 63],
        b"x" * 63,
    ]
    for plaintexts in wrong:
        for encrypt in (insecure_key.public_key.encrypt, insecure_key.encrypt):
            with pytest.raises(CryptoError):
                encrypt(plaintexts)  # type: ignore[arg-type]
    for number in (-1, insecure_key.public_key.n):
        with pytest.raises(CryptoError):
            insecure_key.public_key.encrypt_int(number)
    for zeta in (0, insecure_key.public_key.n):
        with pytest.raises(CryptoError):
            insecure_key.public_key.encrypt_int(1, zeta)


def test_narrow_and_strided_plaintexts_are_fine(insecure_key: PrivateKey) -> None:
    rows = random_plaintexts(insecure_key.public_key, 8)
    assert to_ints(insecure_key.decrypt(insecure_key.encrypt(rows[::2, :5]))) == to_ints(rows[::2, :5])


def test_an_empty_batch_is_a_batch(insecure_key: PrivateKey) -> None:
    for engine in available_engines():
        for randomness in ("djn", "full"):
            key = insecure_key.using(engine)
            key = replace(key, public_key=replace(key.public_key, randomness=randomness))
            nothing = key.public_key.encrypt(np.empty((0, 63), np.uint8))
            assert nothing.shape == (0, 128) and key.decrypt(nothing).shape == (0, 64)
            assert key.encrypt(np.empty((0, 63), np.uint8)).shape == (0, 128)
            assert key.public_key.add(nothing, nothing).shape == (0, 128)
            key.public_key.validate(nothing)


@pytest.mark.parametrize("engine", available_engines())
def test_what_is_no_ciphertext_is_refused(insecure_key: PrivateKey, engine: str) -> None:
    key = insecure_key.using(engine)
    public = key.public_key
    good = public.encrypt(np.zeros((9, 63), np.uint8))
    public.validate(good)
    for number in (
        0,
        key.p,
        key.q,
        public.n,
        key.p * 5,
        public.n * 7,
        public.n**2,
        public.n**2 + 1,
        2**1024 - 1,
    ):
        bad = good.copy()
        bad[6] = to_rows([number], 128)[0]
        for refuse in (public.validate, key.decrypt):
            with pytest.raises(InvalidCiphertext, match="6"):
                refuse(bad)
    for wrong in (good[:, :-1], np.zeros((1, 129), np.uint8)):
        for refuse in (public.validate, key.decrypt):
            with pytest.raises(CryptoError):
                refuse(wrong)


def test_batches_that_do_not_fit_are_refused(insecure_key: PrivateKey) -> None:
    public = insecure_key.public_key
    good = public.encrypt(np.zeros((3, 63), np.uint8))
    too_large = good.copy()
    too_large[1] = 255
    for batches in (
        [],
        [good, good[:2]],
        [good, good[:, :100]],
        [good, too_large],
        [good, good.astype(np.int16)],
        [b"x"],
    ):
        with pytest.raises(CryptoError):
            public.product(batches)
