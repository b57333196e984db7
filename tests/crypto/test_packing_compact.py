"""What the compact codec promises beyond the others: small slots, and nothing lost over rounds."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dapfl.crypto.packing import Bounds, CompactCodec, ExactCodec, ReferenceModels, Segment
from dapfl.crypto.packing.compact import LEAST_RANGE, tensor_range
from dapfl.errors import EncodingError

BOUNDS = Bounds(max_samples=1600, max_clients=20)
SEGMENTS = (Segment("conv", 0, 20), Segment("bias", 20, 23), Segment("fc", 23, 60))
SIZE = 60


def spread(low: float, high: float) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float32, SIZE, elements=st.floats(low, high, width=16))


@given(st.data())
@settings(max_examples=60)
def test_nothing_is_lost_over_rounds(data: st.DataObject) -> None:
    """Decoded steps times samples, plus the residuals, are what the clients wanted to say, always."""
    codec = CompactCodec(BOUNDS, 255)
    counts = data.draw(st.lists(st.integers(1, BOUNDS.max_samples), min_size=1, max_size=5))
    reach = data.draw(st.sampled_from([0.01, 1.0, 30.0]))
    current, previous = data.draw(spread(-1, 1)), None
    residuals: list[np.ndarray | None] = [None] * len(counts)
    wanted, said = np.zeros(SIZE), np.zeros(SIZE)
    for _ in range(data.draw(st.integers(1, 5))):
        reference = ReferenceModels(current, previous, SEGMENTS)
        batches = []
        for i, samples in enumerate(counts):
            local = (current + data.draw(spread(-1, 1)) * np.float32(reach)).astype(np.float32)
            encoded = codec.encode(local, samples, reference, residuals[i])
            residuals[i] = encoded.residual
            batches.append(encoded.plaintexts)
            wanted += samples * (local.astype(np.float64) - current)
        following = codec.decode(codec.add_plain(batches), len(counts), sum(counts), reference)
        said += sum(counts) * (following.astype(np.float64) - current)
        current, previous = following, current
        left = np.sum(np.array(residuals, dtype=np.float64), axis=0)
        np.testing.assert_allclose(said + left, wanted, rtol=0, atol=1e-5 * (1 + reach) * sum(counts))


def test_within_the_range_only_rounding_is_left_over() -> None:
    rng = np.random.default_rng(1)
    current = rng.normal(0, 0.05, SIZE).astype(np.float32)
    previous = (current - rng.normal(0, 0.01, SIZE)).astype(np.float32)
    reference = ReferenceModels(current, previous, SEGMENTS)
    codec = CompactCodec(BOUNDS, 255)
    encoded = codec.encode((current + rng.normal(0, 0.01, SIZE)).astype(np.float32), 600, reference)
    assert encoded.deferred == 0
    for segment in SEGMENTS:
        assert encoded.residual is not None
        left = np.abs(encoded.residual[segment.start : segment.stop])
        assert left.max() <= codec.step(reference, segment) / 2 * (1 + 1e-6)


def test_what_lies_beyond_the_range_is_counted_and_arrives_later() -> None:
    codec = CompactCodec(BOUNDS, 255)
    current = np.zeros(SIZE, np.float32)
    local = current.copy()
    local[[3, 40]] = 32.0, -16.0
    first = codec.encode(local, 1600, ReferenceModels(current, None, SEGMENTS))
    assert first.deferred == 2
    moved = codec.decode(first.plaintexts, 1, 1600, ReferenceModels(current, None, SEGMENTS))
    np.testing.assert_allclose(moved[[3, 40]], [4.0, -4.0])

    # The client wants nothing new; the range has grown with the step just made.
    deferred = first.deferred
    previous, residual = current, first.residual
    for _ in range(3):
        reference = ReferenceModels(moved, previous, SEGMENTS)
        encoded = codec.encode(moved, 1600, reference, residual)
        previous, residual = moved, encoded.residual
        moved = codec.decode(encoded.plaintexts, 1, 1600, reference)
        assert encoded.deferred <= deferred
        deferred = encoded.deferred
    assert deferred == 0
    np.testing.assert_allclose(moved, local, atol=0.1)


def test_nothing_is_deferred_where_a_small_network_moves_far_in_the_first_round() -> None:
    codec = CompactCodec(BOUNDS, 255)
    current = np.full(SIZE, 0.1, np.float32)
    local = np.linspace(-3.5, 3.5, SIZE, dtype=np.float32)
    reference = ReferenceModels(current, None, SEGMENTS)
    encoded = codec.encode(local, 1600, reference)
    assert encoded.deferred == 0
    moved = codec.decode(encoded.plaintexts, 1, 1600, reference)
    np.testing.assert_allclose(moved, local, atol=codec.step(reference, SEGMENTS[0]) / 1600)


def test_residuals_keep_small_steps_alive() -> None:
    """A step far below one slot unit moves the mean over many rounds instead of vanishing."""
    codec = CompactCodec(BOUNDS, 255)
    current = np.full(SIZE, 0.5, np.float32)
    reference = ReferenceModels(current, None, SEGMENTS)
    tiny = np.float32(codec.step(reference, SEGMENTS[0]) / 600 / 10)
    residual, total = None, np.zeros(SIZE)
    for _ in range(1000):
        encoded = codec.encode(current + tiny, 600, reference, residual)
        residual = encoded.residual
        total += codec.decode(encoded.plaintexts, 1, 600, reference).astype(np.float64) - current
    np.testing.assert_allclose(total, 1000 * ((current + tiny).astype(np.float64) - current), rtol=0.01)


def test_the_range_follows_the_model() -> None:
    def range_of(current: list[float], previous: list[float] | None, nonnegative: bool = False) -> float:
        before = None if previous is None else np.float32(previous)
        reference = ReferenceModels(np.float32(current), before, (Segment("w", 0, 2, nonnegative),))
        return tensor_range(reference, reference.segments[0])

    assert range_of([0.0, 0.0], None) == 4.0  # in the first round networks move far
    assert range_of([3.0, -1.0], None) == 12.0
    assert range_of([0.0, 0.0], [0.0, 0.0]) == 0.25
    assert range_of([3.0, -1.0], [3.0, -1.0]) == 3.0
    assert range_of([3.0, -1.0], [2.5, -1.0]) == 2.0
    assert range_of([3.0, -1.0], [2.99, -1.0]) == 0.75
    assert range_of([3.0, 1.0], [2.99, 1.0], nonnegative=True) == 3.0
    assert range_of([0.0, 0.0], [0.0, 1e-30]) == LEAST_RANGE


def test_a_variance_never_turns_negative() -> None:
    codec = CompactCodec(BOUNDS, 255)
    current = np.float32([10.0, 10.0, 1e-4])
    for nonnegative in (True, False):
        segments = (Segment("bn.running_var", 0, 3, nonnegative),)
        reference = ReferenceModels(current, current * np.float32(0.999), segments)
        residual = np.float32([0, 0, -6.0])
        encoded = codec.encode(np.float32([0, 9.9, 1e-5]), 600, reference, residual)
        decoded = codec.decode(encoded.plaintexts, 1, 600, reference)
        assert (decoded.min() >= 0) == nonnegative


def test_a_broken_global_model_is_named() -> None:
    codec = CompactCodec(BOUNDS, 255)
    broken = np.float32([1.0, np.nan])
    with pytest.raises(EncodingError, match="not finite"):
        codec.encode(np.zeros(2, np.float32), 1, ReferenceModels(broken))


def test_compact_is_close_to_exact_in_a_federation() -> None:
    """The error is under 2e-5 a weight for 20 clients and 12,000 samples."""
    rng = np.random.default_rng(5)
    size = 5000
    current = rng.uniform(-0.2, 0.2, size).astype(np.float32)
    previous = (current - rng.normal(0, 0.01, size)).astype(np.float32)
    reference = ReferenceModels(current, previous)
    counts = rng.normal(600, 200, 20).clip(32, 1600).astype(int)
    locals_ = [(current + rng.normal(0, 0.01, size)).astype(np.float32) for _ in counts]
    models = []
    for codec in (ExactCodec(BOUNDS, 255), CompactCodec(BOUNDS, 255)):
        batches = [
            codec.encode(local, int(n), reference).plaintexts
            for local, n in zip(locals_, counts, strict=True)
        ]
        models.append(codec.decode(codec.add_plain(batches), 20, int(counts.sum()), reference))
    assert np.sqrt(np.mean((models[0] - models[1]) ** 2)) < 2e-5


@pytest.mark.parametrize(("tensors", "most"), [(16, (4.3, 2.3)), (1, (4.3, 3.0))])
def test_a_large_model_is_encoded_and_decoded_with_little_memory(
    tensors: int, most: tuple[float, float]
) -> None:
    """In models: rows and residual are 1.5, slots half of one; the rest is a share of the work."""
    each = 2**19 // tensors
    segments = (
        *(Segment(f"tensor {k}", k * each, (k + 1) * each) for k in range(tensors)),
        Segment("bias", 2**19, 2**19 + 32),
        Segment("variance", 2**19 + 32, 2**19 + 64, nonnegative=True, wide=True),
    )
    rng = np.random.default_rng(0)
    current, change = np.abs(rng.normal(0, (0.05, 0.01), (2**19 + 64, 2))).astype(np.float32).T.copy()
    reference, codec = ReferenceModels(current, current - change, segments), CompactCodec(BOUNDS, 255)
    residual = np.zeros_like(current)
    peaks = []
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        encoded = codec.encode(current + change, 100, reference, residual)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        codec.decode(encoded.plaintexts, 1, 100, reference)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    encoding, decoding = (peak / current.nbytes for peak in peaks)
    assert encoding < most[0] and decoding < most[1]
