"""Signatures: only the owner makes them, only for this message, only one for each."""

from collections.abc import Sequence

import gmpy2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapfl.crypto.engines.base import available_engines
from dapfl.crypto.paillier import PrivateKey
from dapfl.crypto.signature import _sound, hash_to_unit, sign, sign_each, signature_bytes, verify
from dapfl.errors import InvalidSignature, SigningFault

PROPERTY = settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@PROPERTY
@given(st.binary(max_size=200))
def test_what_was_signed_verifies(
    insecure_key: PrivateKey, other_insecure_key: PrivateKey, message: bytes
) -> None:
    for key in (insecure_key, other_insecure_key):
        signature = sign(message, key)
        assert len(signature) == signature_bytes(key.public_key)
        verify(message, signature, key.public_key)


@pytest.mark.parametrize("engine", available_engines())
def test_2048_bits_with_every_engine(key: PrivateKey, engine: str) -> None:
    key = key.using(engine)
    verify(b"message", sign(b"message", key), key.public_key)
    with pytest.raises(InvalidSignature):
        verify(b"message ", sign(b"message", key), key.public_key)


@pytest.mark.parametrize("engine", available_engines())
def test_messages_that_are_signed_together_have_the_signatures_of_each(
    insecure_key: PrivateKey, key: PrivateKey, engine: str
) -> None:
    for each in (insecure_key.using(engine), key.using(engine)):
        for count in range(4):
            messages = [b"%d" % i for i in range(count)]
            assert sign_each(messages, each) == [sign(message, each) for message in messages]


@PROPERTY
@given(st.binary(max_size=40), st.integers(0, 8 * 128 - 1))
def test_any_flipped_bit_is_noticed(insecure_key: PrivateKey, message: bytes, bit: int) -> None:
    signature = bytearray(sign(message, insecure_key))
    signature[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidSignature):
        verify(message, bytes(signature), insecure_key.public_key)


@PROPERTY
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_signature(insecure_key: PrivateKey, signature: bytes) -> None:
    with pytest.raises(InvalidSignature):
        verify(b"message", signature, insecure_key.public_key)


def test_a_signature_is_bound_to_key_and_message(
    insecure_key: PrivateKey, other_insecure_key: PrivateKey
) -> None:
    signature = sign(b"message", insecure_key)
    with pytest.raises(InvalidSignature):
        verify(b"message", signature, other_insecure_key.public_key)
    with pytest.raises(InvalidSignature):
        verify(b"another", signature, insecure_key.public_key)


def test_the_same_number_in_other_bytes_is_refused(insecure_key: PrivateKey) -> None:
    """σ + n and σ̃ + n satisfy Eq. 13 as well; there must be one signature only."""
    public, width = insecure_key.public_key, insecure_key.public_key.modulus_bytes
    message, room = b"0", 256**width - public.n
    for trial in range(100):
        message = str(trial).encode()
        sigma = int.from_bytes(sign(message, insecure_key)[:width], "little")
        if sigma < room:
            break
    assert sigma < room
    signature = sign(message, insecure_key)
    with pytest.raises(InvalidSignature):
        verify(message, (sigma + public.n).to_bytes(width, "little") + signature[width:], public)


def test_a_ciphertext_is_no_signature_of_its_own_hash(insecure_key: PrivateKey) -> None:
    """Enc(σ; σ̃) is a valid pair for the number it gives; hashing makes that number useless."""
    public = insecure_key.public_key
    forged = public.encrypt_int(5, 7)
    assert forged != hash_to_unit(forged.to_bytes(128, "little"), public)
    signature = (5).to_bytes(64, "little") + (7).to_bytes(64, "little")
    with pytest.raises(InvalidSignature):
        verify(forged.to_bytes(128, "little"), signature, public)


def factor_from(message: bytes, sigma: int, tilde: int, key: PrivateKey) -> int:
    """What anyone computes from one faulty signature: gcd(g^σ·σ̃ⁿ − h, n)."""
    public = key.public_key
    return int(gmpy2.gcd(public.encrypt_int(sigma, tilde) - hash_to_unit(message, public), public.n))


def with_fault(
    monkeypatch: pytest.MonkeyPatch, key: PrivateKey, sigma_error: int, root_error: int
) -> list[int]:
    """From now on the first decryption of `sign` goes wrong; the result gets the faulty root modulo p."""
    real, faulty = PrivateKey.decrypt_beside, list[int]()

    def decrypt_beside(
        self: PrivateKey, ciphertexts: Sequence[int], bases: Sequence[int], exponents: tuple[int, int]
    ) -> list[tuple[int | None, tuple[int, int]]]:
        *others, (sigma, roots) = real(self, ciphertexts, bases, exponents)
        if faulty or sigma is None:
            return [*others, (sigma, roots)]
        faulty.append(roots[0] ^ root_error)
        return [*others, ((sigma + sigma_error) % key.public_key.n, (faulty[0], roots[1]))]

    monkeypatch.setattr(PrivateKey, "decrypt_beside", decrypt_beside)
    return faulty


def test_a_fault_in_the_root_never_leaves_as_a_signature(
    insecure_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = insecure_key
    width = key.public_key.modulus_bytes
    good = sign(b"message", key)
    sigma, tilde = (int.from_bytes(half, "little") for half in (good[:width], good[width:]))
    faulty = with_fault(monkeypatch, key, 0, 2)  # one flipped bit in the half modulo p
    with pytest.raises(SigningFault, match="discarded"):
        sign(b"message", key)
    bad = int(faulty[0] + key.p * ((tilde - faulty[0]) * gmpy2.invert(key.p, key.q) % key.q))
    assert factor_from(b"message", sigma, bad, key) in (key.p, key.q)  # it would have given the key away


@pytest.mark.parametrize("prime", ["p", "q"])
def test_a_fault_in_sigma_never_leaves_as_a_signature(
    insecure_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, prime: str
) -> None:
    """A multiple of one prime is an error modulo the other one only."""
    with_fault(monkeypatch, insecure_key, getattr(insecure_key, prime), 0)
    with pytest.raises(SigningFault):
        sign(b"message", insecure_key)


def test_a_fault_in_one_of_several_signatures_stops_them_all(
    insecure_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_fault(monkeypatch, insecure_key, 0, 2)
    with pytest.raises(SigningFault):
        sign_each([b"one", b"two", b"three"], insecure_key)


def test_the_check_before_a_signature_leaves_is_the_equation_of_verify(insecure_key: PrivateKey) -> None:
    """Whatever pair of numbers comes out, it is sound for the owner just if it verifies for everyone."""
    key, public = insecure_key, insecure_key.public_key
    h, width = hash_to_unit(b"message", public), public.modulus_bytes
    good = sign(b"message", key)
    sigma, tilde = (int.from_bytes(half, "little") for half in (good[:width], good[width:]))
    pairs = [(sigma + a * key.p + b * key.q, tilde * t) for a in (0, 1) for b in (0, 1) for t in (1, 2, -1)]
    for s, t in [*pairs, (sigma, tilde + key.p), (sigma, tilde + key.q), (0, 1), (sigma, key.p)]:
        pair = s % public.n, t % public.n
        sound = public.encrypt_int(*pair) == h
        assert _sound([pair], [h], key) == _sound([(sigma, tilde), pair], [h, h], key) == sound
