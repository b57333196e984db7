"""One seed, many named streams.

Every random choice of a run (never a key: those come from `secrets`) is drawn from a stream
named after its purpose, so that a new choice changes no other, and a client's
stream for a round can be made anywhere, in any order, on any worker.

>>> bool(stream(7, "sgd", 3, 12).integers(1000) == stream(7, "sgd", 3, 12).integers(1000))
True
>>> bool(stream(7, "sgd", 3, 12).integers(2**62) == stream(7, "sgd", 3, 13).integers(2**62))
False
"""

import hashlib

import numpy as np


def entropy(seed: int, *name: str | int) -> int:
    """128 bits that depend on the seed and on every part of the name."""
    text = repr((int(seed), *(part if isinstance(part, str) else int(part) for part in name)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """The random stream `name` of a run's seed."""
    return np.random.Generator(np.random.PCG64(entropy(seed, *name)))
