"""Tensors whose numbers may be of any size: running variances of raw features, and the like."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapfl.crypto import generate_keypair
from dapfl.crypto.packing import Bounds, ReferenceModels, Segment, codec_named
from dapfl.crypto.packing.codec import LARGEST
from dapfl.crypto.packing.wide import LARGEST_WIDE
from dapfl.errors import EncodingError

BOUNDS = Bounds(max_samples=1800, max_clients=20)
SEGMENTS = (
    Segment("weight", 0, 5),
    Segment("running_mean", 5, 8, wide=True),
    Segment("bias", 8, 10),
    Segment("running_var", 10, 13, nonnegative=True, wide=True),
)
WIDE = [5, 6, 7, 10, 11, 12]
CODECS = pytest.mark.parametrize("name", ["exact", "compact"])
reals = st.floats(-LARGEST_WIDE, LARGEST_WIDE, width=32)


def contribution(numbers: list[float]) -> np.ndarray:
    """A model whose wide tensors hold these numbers."""
    vector = np.linspace(-0.1, 0.1, 13).astype(np.float32)
    vector[WIDE] = numbers
    return vector


def mean(models: list[np.ndarray], counts: list[int], place: int) -> np.float32:
    """The weighted mean by its definition, in fractions, of numbers rounded to 2^-32."""
    total = sum(n * round(Fraction(float(m[place])) * 2**32) for m, n in zip(models, counts, strict=True))
    return np.float32(float(Fraction(total, sum(counts) * 2**32)))


@CODECS
@given(data=st.data())
def test_sums_of_wide_tensors_are_exact_whatever_their_size(name: str, data: st.DataObject) -> None:
    codec = codec_named(name, BOUNDS, 255)
    variances = st.floats(0, LARGEST_WIDE, width=32)
    numbers = st.tuples(reals, reals, reals, variances, variances, variances)
    models = [contribution(list(each)) for each in data.draw(st.lists(numbers, min_size=1, max_size=20))]
    counts = [data.draw(st.integers(1, BOUNDS.max_samples)) for _ in models]
    reference = ReferenceModels(contribution([0, 0, 0, 1, 1, 1]), None, SEGMENTS)
    encoded = [codec.encode(m, n, reference) for m, n in zip(models, counts, strict=True)]
    assert {len(each.plaintexts) for each in encoded} == {codec.plaintext_count(13, 6)}
    sums = codec.add_plain(each.plaintexts for each in encoded)
    decoded = codec.decode(sums, len(models), sum(counts), reference)
    assert [decoded[place] for place in WIDE] == [mean(models, counts, place) for place in WIDE]
    narrow = [place for place in range(13) if place not in WIDE]
    np.testing.assert_allclose(decoded[narrow], models[0][narrow], atol=1e-4)
    for each in encoded:  # what is exact leaves nothing for the next round
        assert each.residual is None or not each.residual[WIDE].any()


@CODECS
@pytest.mark.parametrize(
    "bounds",
    [Bounds(1, 1), Bounds(2**20, 2**12), Bounds(100, 258), Bounds(100, 259), Bounds(10**6, 3)],
    ids=str,
)
def test_the_largest_sum_fits_and_is_read_back(name: str, bounds: Bounds) -> None:
    codec = codec_named(name, bounds, 255)
    segments = (Segment("low", 0, 1, wide=True), Segment("high", 1, 2, wide=True))
    extreme = np.float32([-LARGEST_WIDE, LARGEST_WIDE])
    reference = ReferenceModels(np.zeros(2, np.float32), None, segments)
    one = codec.encode(extreme, bounds.max_samples, reference).plaintexts
    clients = min(bounds.max_clients, 300)
    sums = codec.add_plain([one] * clients)
    decoded = codec.decode(sums, clients, clients * bounds.max_samples, reference)
    assert decoded.tolist() == extreme.tolist()


@CODECS
def test_the_sum_under_encryption_is_the_sum_in_the_clear(name: str) -> None:
    key = generate_keypair(512, allow_insecure_small_keys=True)
    codec = codec_named(name, BOUNDS, key.public_key.plaintext_bytes)
    models = [contribution([-3e5 * k, 7, k, 2.5e6 * k, 1e12, k]) for k in (1, 2, 3)]
    reference = ReferenceModels(contribution([0, 0, 0, 1, 1, 1]), None, SEGMENTS)
    batches = [codec.encode(model, 100 * k, reference).plaintexts for k, model in enumerate(models, 1)]
    product = key.public_key.product([key.public_key.encrypt(batch) for batch in batches])
    encrypted = codec.decode(key.decrypt(product), 3, 600, reference)
    assert encrypted.tobytes() == codec.decode(codec.add_plain(batches), 3, 600, reference).tobytes()
    assert encrypted[10] == np.float32(2.5e6 * (1 + 4 + 9) / 6)


@CODECS
def test_a_wide_tensor_of_ordinary_numbers_comes_back_as_a_narrow_one_would(name: str) -> None:
    codec = codec_named("exact", Bounds(max_samples=600, max_clients=20), 255)  # at 32 bits as well
    numbers = np.random.default_rng(0).normal(0, 1, 40).astype(np.float32)
    narrow = ReferenceModels(np.zeros(40, np.float32))
    wide = ReferenceModels(np.zeros(40, np.float32), None, (Segment("all", 0, 40, wide=True),))
    found = [codec.decode(codec.encode(numbers, 7, r).plaintexts, 1, 7, r) for r in (narrow, wide)]
    np.testing.assert_allclose(*found, rtol=0, atol=2.0**-28)


@CODECS
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 2.0**65])
def test_only_what_is_no_number_or_absurd_is_called_divergence(name: str, number: float) -> None:
    codec = codec_named(name, BOUNDS, 255)
    reference = ReferenceModels(contribution([0, 0, 0, 1, 1, 1]), None, SEGMENTS)
    codec.encode(contribution([-2 * LARGEST, 0, 0, 1e9, 1, 1]), 1, reference)
    with pytest.raises(EncodingError, match=r"Tensor 'running_var'.*diverged"):
        codec.encode(contribution([0, 0, 0, 1, number, 1]), 1, reference)
    broken = contribution([0, 0, 0, 1, 1, 1])
    broken[9] = 2 * LARGEST
    with pytest.raises(EncodingError, match=r"Tensor 'bias'.*entry 1 is 2048, beyond ±1024"):
        codec.encode(broken, 1, reference)


@CODECS
def test_a_sum_beyond_what_its_contributors_can_have_sent_is_refused(name: str) -> None:
    codec = codec_named(name, BOUNDS, 255)
    reference = ReferenceModels(np.zeros(1, np.float32), None, (Segment("all", 0, 1, wide=True),))
    one = codec.encode(np.float32([LARGEST_WIDE]), 1800, reference).plaintexts
    with pytest.raises(EncodingError, match="cannot add up to"):
        codec.decode(codec.add_plain([one, one]), 2, 1801, reference)
