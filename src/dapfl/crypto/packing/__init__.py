"""Float vectors ↔ packed plaintexts whose sums are exact integers (the |D_i|·ŵ_i of Eq. 33).

Two codecs behind one interface:

`ExactCodec`    fixed point at float32 level, for any weights within ±2^10.
`CompactCodec`  16-bit slots on the difference to W(t), which every client knows. What a slot cannot express
                (rounding, and whatever lies beyond the range) stays with the client as a residual that is
                added to its next contribution, and is counted.

Tensors marked `wide`, which may hold numbers of any size (running variances), travel apart: exact with either
codec, in as many slots as their digits need (`wide.py`).

Decoding is integer arithmetic, then one or two float64 operations per weight in a fixed order, then one
rounding to float32: the same bits on every machine. `add_plain` adds the same integers without
encryption, so an encrypted and a plain run give the same model.

>>> import numpy as np
>>> codec = codec_named("exact", Bounds(max_samples=100, max_clients=3), plaintext_bytes=255)
>>> reference = ReferenceModels(np.zeros(2, np.float32))
>>> batches = [codec.encode(np.float32([1, -2]), 10, reference).plaintexts,
...            codec.encode(np.float32([3, 0.5]), 30, reference).plaintexts]
>>> codec.decode(codec.add_plain(batches), contributors=2, sample_count=40, reference=reference)
array([ 2.5  , -0.125], dtype=float32)
"""

from collections.abc import Callable

from dapfl.crypto.packing.bounds import Bounds
from dapfl.crypto.packing.codec import Encoded, ReferenceModels, Segment, VectorCodec, wide_size
from dapfl.crypto.packing.compact import CompactCodec
from dapfl.crypto.packing.exact import ExactCodec
from dapfl.errors import EncodingError

__all__ = [
    "Bounds",
    "CompactCodec",
    "Encoded",
    "ExactCodec",
    "ReferenceModels",
    "Segment",
    "VectorCodec",
    "codec_named",
    "wide_size",
]

CODECS: dict[str, Callable[[Bounds, int], VectorCodec]] = {
    codec.name: codec for codec in (ExactCodec, CompactCodec)
}


def codec_named(name: str, bounds: Bounds, plaintext_bytes: int) -> VectorCodec:
    """The codec of that name, for a federation's bounds and the plaintext width of its key."""
    if name not in CODECS:
        raise EncodingError(f"There is no codec '{name}': choose one of {', '.join(CODECS)}.")
    return CODECS[name](bounds, plaintext_bytes)
