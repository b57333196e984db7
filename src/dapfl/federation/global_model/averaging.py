"""From the decrypted sums of an aggregate to the next model: Eq. 44 and the server step.

Whoever decrypts an aggregate comes through here: every client, or CS with the help of a committee.
"""

from collections.abc import Sequence

import numpy as np

from dapfl.arrays import Rows
from dapfl.errors import EncodingError, ProtocolError
from dapfl.federation.global_model.models import GlobalModel
from dapfl.federation.global_model.parameters import PublicParameters


def check_cohort(cohort: Sequence[int], parameters: PublicParameters) -> None:
    """ProtocolError if the sum of these clients' contributions may not be decrypted."""
    if list(cohort) != sorted(set(cohort)):
        raise ProtocolError("bad-aggregate", "the cohort counts a client twice or is not sorted")
    if len(cohort) < parameters.min_cohort:
        # The sum of one contribution is that client's model, which nobody may read.
        raise ProtocolError("below-min-cohort", f"an aggregate of {len(cohort)}")


def next_model(
    name: bytes,
    contributors: int,
    sums: Rows,
    count: Rows,
    current: GlobalModel | None,
    parameters: PublicParameters,
) -> GlobalModel:
    """W(t+1) out of Σ|D_i|·ŵ_i and Σ|D_i|; `current` may be None where nothing is relative to W(t)."""
    codec, base = parameters.codec, current or parameters.unknown_model()
    try:
        samples = codec.decode_count(count, contributors)
        average = codec.decode(sums, contributors, samples, parameters.references(base))  # Eq. 44
    except EncodingError:
        # Someone reported an impossible |D_i|, or sent numbers that no client can have encoded.
        raise ProtocolError("bad-aggregate", "honest contributions cannot add up to these sums") from None
    weights, memory = parameters.step.apply(base, average, contributors)
    if not (np.isfinite(weights).all() and np.isfinite(memory).all()):
        raise ProtocolError("bad-aggregate", "the server step leaves numbers that are not finite")
    weights.flags.writeable = memory.flags.writeable = False
    return GlobalModel(name, weights, None if current is None else current.weights, memory)
