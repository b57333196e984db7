"""What every codec promises: integer sums, no overflow, named errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.packing import (
    Bounds,
    CompactCodec,
    ExactCodec,
    ReferenceModels,
    Segment,
    VectorCodec,
    codec_named,
)
from dapfl.crypto.packing.codec import LARGEST
from dapfl.crypto.packing.slots import SlotRows
from dapfl.errors import EncodingError

BOUNDS = Bounds(max_samples=1600, max_clients=20)
PLAINTEXT_BYTES = 255
weights = st.floats(-LARGEST, LARGEST, width=32)
vectors = st.integers(1, 300).flatmap(lambda size: arrays(np.float32, size, elements=weights))


def integers(rows: np.ndarray) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


def rows_of(numbers: list[int], width: int) -> np.ndarray:
    return np.array([list(number.to_bytes(width, "little")) for number in numbers], dtype=np.uint8)


def add_as_integers(batches: list[np.ndarray], width: int) -> np.ndarray:
    """What a product of ciphertexts decrypts to: sums of whole rows, carries and all."""
    return rows_of([sum(column) for column in zip(*map(integers, batches), strict=True)], width)


@given(vectors, st.integers(1, BOUNDS.max_samples))
def test_exact_round_trip_is_at_float32_level(local: np.ndarray, samples: int) -> None:
    codec = ExactCodec(BOUNDS, PLAINTEXT_BYTES)
    reference = ReferenceModels(np.zeros_like(local))
    encoded = codec.encode(local, samples, reference)
    decoded = codec.decode(encoded.plaintexts, 1, samples, reference)
    error = 2.0 ** -(codec.fraction_bits + 1)
    assert error <= 2.0**-29
    assert encoded.residual is None
    assert encoded.deferred == 0
    assert encoded.plaintexts.shape == (codec.plaintext_count(local.size), PLAINTEXT_BYTES)
    assert np.all(np.abs(decoded - local.astype(np.float64)) <= error + np.spacing(np.abs(local)) / 2)


def test_exact_keeps_weights_from_a_hundredth_up_bit_for_bit() -> None:
    codec = ExactCodec(BOUNDS, PLAINTEXT_BYTES)
    local = np.geomspace(2.0**-7, 1000, 5000).astype(np.float32) * np.resize(np.float32([1, -1]), 5000)
    reference = ReferenceModels(np.zeros_like(local))
    decoded = codec.decode(codec.encode(local, 617, reference).plaintexts, 1, 617, reference)
    np.testing.assert_array_equal(decoded, local)


@given(st.data())
def test_sums_of_rows_are_sums_of_numbers(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["exact", "compact"]))
    clients = data.draw(st.integers(1, 6))
    size = data.draw(st.integers(1, 200))
    codec = codec_named(name, BOUNDS, PLAINTEXT_BYTES)
    vector = arrays(np.float32, size, elements=weights)
    reference = ReferenceModels(data.draw(vector), data.draw(vector))
    counts = [data.draw(st.integers(1, BOUNDS.max_samples)) for _ in range(clients)]
    batches = [codec.encode(data.draw(vector), samples, reference).plaintexts for samples in counts]

    # As wide as decryption returns rows: the modulus, one byte more than a plaintext.
    encrypted = add_as_integers(batches, PLAINTEXT_BYTES + 1)
    plain = codec.add_plain(batches)
    assert integers(encrypted) == integers(plain)
    np.testing.assert_array_equal(
        codec.decode(encrypted, clients, sum(counts), reference),
        codec.decode(plain, clients, sum(counts), reference),
    )


@given(st.data())
@settings(max_examples=50)
def test_exact_sum_is_the_weighted_mean(data: st.DataObject) -> None:
    codec = ExactCodec(BOUNDS, PLAINTEXT_BYTES)
    size = data.draw(st.integers(1, 50))
    counts = data.draw(st.lists(st.integers(1, BOUNDS.max_samples), min_size=1, max_size=BOUNDS.max_clients))
    locals_ = [data.draw(arrays(np.float32, size, elements=weights)) for _ in counts]
    reference = ReferenceModels(np.zeros(size, np.float32))
    sums = codec.add_plain(
        codec.encode(w, n, reference).plaintexts for w, n in zip(locals_, counts, strict=True)
    )
    mean = np.average(np.array(locals_, dtype=np.float64), axis=0, weights=counts)
    decoded = codec.decode(sums, len(counts), sum(counts), reference)
    np.testing.assert_allclose(decoded, mean, rtol=2.0**-23, atol=2.0**-30)


@pytest.mark.parametrize("name", ["exact", "compact"])
def test_encrypted_sums_decode_to_the_same_bits_as_plain_ones(name: str) -> None:
    key = generate_keypair(512, allow_insecure_small_keys=True)
    codec = codec_named(name, BOUNDS, key.public_key.plaintext_bytes)
    rng = np.random.default_rng(3)
    reference = ReferenceModels(rng.normal(0, 0.1, 100).astype(np.float32))
    counts = [600, 32, 1600]
    locals_ = [reference.current + rng.normal(0, 0.05, 100).astype(np.float32) for _ in counts]
    batches = [codec.encode(w, n, reference).plaintexts for w, n in zip(locals_, counts, strict=True)]
    product = key.public_key.product([key.public_key.encrypt(batch) for batch in batches])
    np.testing.assert_array_equal(
        codec.decode(key.decrypt(product), 3, sum(counts), reference),
        codec.decode(codec.add_plain(batches), 3, sum(counts), reference),
    )


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(max_samples=1, max_clients=1),
        Bounds(max_samples=1600, max_clients=20),
        Bounds(max_samples=1600, max_clients=258),
        Bounds(max_samples=1600, max_clients=10_000),
        Bounds(max_samples=60_000, max_clients=300),
    ],
)
def test_nothing_overflows_at_the_bound(bounds: Bounds, sign: int) -> None:
    """Every client at the largest weight and the largest |D_i|: each slot at its very limit."""
    for codec in (ExactCodec(bounds, 64), CompactCodec(bounds, 64)):
        reference = ReferenceModels(np.zeros(100, np.float32), np.full(100, LARGEST / 4, np.float32))
        local = np.full(100, sign * LARGEST, np.float32)
        batch = codec.encode(local, bounds.max_samples, reference).plaintexts
        sums = rows_of([bounds.max_clients * number for number in integers(batch)], 64)
        samples = bounds.max_samples * bounds.max_clients
        decoded = codec.decode(sums, bounds.max_clients, samples, reference)
        np.testing.assert_array_equal(decoded, local, err_msg=codec.name)


def test_slots_hold_the_bound_and_hardly_more() -> None:
    """The width follows from the bound: one byte less could not hold it."""
    codec = ExactCodec(BOUNDS, PLAINTEXT_BYTES)
    most = 2 * codec.offset * BOUNDS.max_samples * BOUNDS.max_clients
    assert 256 ** (codec.rows.slot_bytes - 1) <= most < 256**codec.rows.slot_bytes
    assert codec.fraction_bits == 30
    assert CompactCodec(BOUNDS, PLAINTEXT_BYTES).plaintext_count(21_840) == 172


def test_compact_slots_widen_for_many_clients() -> None:
    widths = {
        clients: CompactCodec(Bounds(100, clients), 64).rows.slot_bytes
        for clients in (258, 259, 66_000, 70_000)
    }
    assert widths == {258: 2, 259: 3, 66_000: 3, 70_000: 4}


def test_bounds_that_leave_no_resolution_are_refused() -> None:
    assert ExactCodec(Bounds(max_samples=2**20, max_clients=2**12), 64).fraction_bits == 20
    with pytest.raises(EncodingError, match="leave 19 bits"):
        ExactCodec(Bounds(max_samples=2**20, max_clients=2**13), 64)
    with pytest.raises(EncodingError, match="at least 1"):
        Bounds(max_samples=0, max_clients=3)
    with pytest.raises(EncodingError, match="larger key"):
        ExactCodec(BOUNDS, 4)
    with pytest.raises(EncodingError, match="cannot add"):
        CompactCodec(Bounds(max_samples=1, max_clients=2**26), 64)


@pytest.mark.parametrize("name", ["exact", "compact"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1024.001, -3e38])
def test_a_weight_that_cannot_be_encoded_is_named(name: str, value: float) -> None:
    codec = codec_named(name, BOUNDS, PLAINTEXT_BYTES)
    segments = (Segment("conv.weight", 0, 6), Segment("fc.bias", 6, 10))
    reference = ReferenceModels(np.zeros(10, np.float32), None, segments)
    local = np.zeros(10, np.float32)
    local[8] = value
    with pytest.raises(EncodingError, match=r"Tensor 'fc\.bias' cannot be encoded: entry 2 is"):
        codec.encode(local, 5, reference)


@pytest.mark.parametrize("name", ["exact", "compact"])
def test_malformed_input_is_refused(name: str) -> None:
    codec = codec_named(name, BOUNDS, PLAINTEXT_BYTES)
    reference = ReferenceModels(np.zeros(300, np.float32))
    local = np.zeros(300, np.float32)
    for samples in (0, -1, BOUNDS.max_samples + 1):
        with pytest.raises(EncodingError, match="samples cannot contribute"):
            codec.encode(local, samples, reference)
    for wrong in (local[:-1], local.astype(np.float64), local.reshape(3, 100)):
        with pytest.raises(EncodingError, match="to encode is"):
            codec.encode(wrong, 1, reference)
    rows = codec.encode(local, 1, reference).plaintexts
    with pytest.raises(EncodingError, match="sum of 21 contributions"):
        codec.decode(rows, 21, 30, reference)
    with pytest.raises(EncodingError, match="cannot hold"):
        codec.decode(rows, 1, BOUNDS.max_samples + 1, reference)
    for bad in (rows[:-1], rows.astype(np.int16), rows[0], rows[:, :-9]):
        with pytest.raises(EncodingError):
            codec.decode(bad, 1, 1, reference)


@pytest.mark.parametrize("name", ["exact", "compact"])
@given(st.binary(min_size=256, max_size=256))
def test_rows_that_are_no_sum_give_a_named_error(name: str, data: bytes) -> None:
    """Any bytes at all either decode to finite weights or raise EncodingError."""
    codec = codec_named(name, BOUNDS, PLAINTEXT_BYTES)
    reference = ReferenceModels(np.zeros(codec.rows.per_row, np.float32))
    try:
        decoded = codec.decode(np.frombuffer(data, np.uint8).reshape(1, -1), 20, 12_000, reference)
    except EncodingError:
        return
    assert np.isfinite(decoded).all()


def test_a_sum_too_large_for_its_contributors_is_refused() -> None:
    codec = CompactCodec(BOUNDS, PLAINTEXT_BYTES)
    reference = ReferenceModels(np.zeros(4, np.float32))
    batch = codec.encode(np.full(4, 0.2, np.float32), 1600, reference).plaintexts
    with pytest.raises(EncodingError, match="cannot add up to"):
        codec.decode(codec.add_plain([batch, batch]), 1, 1600, reference)


def test_a_residual_of_another_codec_is_refused() -> None:
    zeros = np.zeros(3, np.float32)
    with pytest.raises(EncodingError, match="compact run"):
        ExactCodec(BOUNDS, PLAINTEXT_BYTES).encode(zeros, 1, ReferenceModels(zeros), zeros)


def test_segments_must_cover_the_model() -> None:
    zeros = np.zeros(3, np.float32)
    with pytest.raises(EncodingError, match="do not cover"):
        ReferenceModels(zeros, None, (Segment("a", 0, 2),))
    with pytest.raises(EncodingError, match="they differ"):
        ReferenceModels(zeros, zeros[:2])


@pytest.mark.parametrize("codec", [ExactCodec(BOUNDS, 255), CompactCodec(BOUNDS, 8)])
def test_counts_add_up(codec: VectorCodec) -> None:
    counts = [1600, 1, 599]
    rows = [codec.encode_count(count) for count in counts]
    assert rows[0].shape == (1, codec.plaintext_bytes)
    assert codec.decode_count(codec.add_counts(rows), contributors=3) == 2200
    assert codec.decode_count(add_as_integers(rows, codec.plaintext_bytes + 1), contributors=3) == 2200
    with pytest.raises(EncodingError, match="declared 1 to 1600"):
        codec.encode_count(1601)
    with pytest.raises(EncodingError, match="cannot hold 2200"):
        codec.decode_count(codec.add_counts(rows), contributors=1)


def test_slots_do_not_mix() -> None:
    rows = SlotRows(slot_bytes=3, plaintext_bytes=10)
    with pytest.raises(EncodingError, match="nothing to add"):
        rows.add([])
    with pytest.raises(EncodingError, match="cannot be added"):
        rows.add([np.zeros((1, 10), np.uint8), np.zeros((2, 10), np.uint8)])
    with pytest.raises(EncodingError, match="slots of 3 bytes"):
        rows.unpack(np.full((1, 10), 255, np.uint8), 3)
    with pytest.raises(EncodingError, match="1 to 8"):
        SlotRows(slot_bytes=9, plaintext_bytes=10)


def test_unknown_codec_is_refused() -> None:
    with pytest.raises(EncodingError, match="choose one of exact, compact"):
        codec_named("zip", BOUNDS, 255)
