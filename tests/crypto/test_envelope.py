"""Envelopes: whole, secret, unaltered, under the same context, or not at all."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.paillier import PrivateKey
from dapfl.errors import ConfigError, EnvelopeError

PROPERTY = settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NAMES = ("paillier", "hybrid")


@pytest.mark.parametrize("name", NAMES)
@PROPERTY
@given(data=st.binary(max_size=500), context=st.binary(max_size=40))
def test_opening_inverts_sealing(insecure_key: PrivateKey, name: str, data: bytes, context: bytes) -> None:
    envelope = envelope_named(name)
    sealed = envelope.seal(data, insecure_key.public_key, context)
    assert envelope.open(sealed, insecure_key, context) == data
    assert envelope.name == name


@pytest.mark.parametrize("name", NAMES)
def test_every_length_around_a_block(insecure_key: PrivateKey, name: str) -> None:
    envelope = envelope_named(name)
    for length in [*range(4), *range(20, 27), *range(83, 90), 1000]:
        data = bytes(range(256)) * 4
        sealed = envelope.seal(data[:length], insecure_key.public_key, b"")
        assert envelope.open(sealed, insecure_key, b"") == data[:length]


@pytest.mark.parametrize("name", NAMES)
def test_2048_bits(key: PrivateKey, name: str) -> None:
    envelope, data = envelope_named(name), b"model " * 300
    assert envelope.open(envelope.seal(data, key.public_key, b"c"), key, b"c") == data


@pytest.mark.parametrize("name", NAMES)
def test_another_context_or_key_does_not_open(
    insecure_key: PrivateKey, other_insecure_key: PrivateKey, name: str
) -> None:
    envelope = envelope_named(name)
    sealed = envelope.seal(b"data", insecure_key.public_key, b"round 3")
    for key, context in ((insecure_key, b"round 4"), (insecure_key, b""), (other_insecure_key, b"round 3")):
        with pytest.raises(EnvelopeError):
            envelope.open(sealed, key, context)


@pytest.mark.parametrize("name", NAMES)
@PROPERTY
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(insecure_key: PrivateKey, name: str, position: int, bit: int) -> None:
    envelope = envelope_named(name)
    sealed = bytearray(envelope.seal(b"x" * 200, insecure_key.public_key, b"c"))
    sealed[position % len(sealed)] ^= 1 << bit
    with pytest.raises(EnvelopeError):
        envelope.open(bytes(sealed), insecure_key, b"c")


@pytest.mark.parametrize("name", NAMES)
@PROPERTY
@given(sealed=st.one_of(st.binary(max_size=600), st.integers(0, 5).map(lambda n: bytes(128 * n))))
def test_arbitrary_bytes_do_not_open(insecure_key: PrivateKey, name: str, sealed: bytes) -> None:
    with pytest.raises(EnvelopeError):
        envelope_named(name).open(sealed, insecure_key, b"c")


def test_blocks_cannot_be_dropped_swapped_or_shifted(insecure_key: PrivateKey) -> None:
    """Each block is a ciphertext that anyone may move, or add to without knowing what it holds."""
    envelope, public = envelope_named("paillier"), insecure_key.public_key
    sealed = envelope.seal(b"x" * 23 + b"a" * 63 + b"b" * 63, public, b"c")
    blocks = np.frombuffer(sealed, np.uint8).reshape(-1, 128)
    one = np.zeros((1, 63), np.uint8)
    one[0, 0] = 1
    plus_one = public.add(blocks[1:2].copy(), public.encrypt(one))
    forgeries = [
        blocks[:-1],
        blocks[[0, 2, 1]],
        blocks[[0, 1, 1]],
        blocks[[0, 1, 2, 2]],
        np.concatenate([blocks[:1], plus_one, blocks[2:]]),
        np.concatenate([blocks, public.encrypt(one * 0)]),
    ]
    for forged in forgeries:
        with pytest.raises(EnvelopeError):
            envelope.open(forged.tobytes(), insecure_key, b"c")


def test_plaintexts_beyond_a_block_are_refused(insecure_key: PrivateKey) -> None:
    """A block above 2^(8·63) cannot come from `seal`: its top byte is not silently dropped."""
    envelope, public = envelope_named("paillier"), insecure_key.public_key
    sealed = envelope.seal(b"data", public, b"c")
    high = public.encrypt_int(1 << 8 * 63)
    forged = public.add_int(int.from_bytes(sealed, "little"), high)
    with pytest.raises(EnvelopeError, match="altered"):
        envelope.open(forged.to_bytes(128, "little"), insecure_key, b"c")


def test_sealing_twice_gives_different_bytes(insecure_key: PrivateKey) -> None:
    for name in NAMES:
        sealed = {envelope_named(name).seal(b"same", insecure_key.public_key, b"") for _ in range(3)}
        assert len(sealed) == 3


def test_unknown_envelopes_are_refused() -> None:
    with pytest.raises(ConfigError, match="paillier or hybrid"):
        envelope_named("wax")
