"""The challenges of non-interactive proofs: hashes of everything that was said before (Fiat and Shamir).

A verifier who is present would answer what a prover announces with a random number. A hash of the
announcement and of all that the proof is about takes its place. Every part is hashed with its length, and
every kind of proof has a label of its own, so that a proof means one thing only.

>>> Transcript(b"one proof", b"ab", b"c").seed() == Transcript(b"one proof", b"a", b"bc").seed()
False
"""

import hashlib

import numpy as np

from dapfl.arrays import Rows

CHALLENGE_BYTES = 16
CHALLENGE_BITS = 8 * CHALLENGE_BYTES
"""Guessing a challenge succeeds once in 2^128, and the primes of a secure key are far above 2^128."""

SEED_BYTES = 32


class Transcript:
    """What was said so far."""

    def __init__(self, label: bytes, *parts: bytes | Rows) -> None:
        self._state = hashlib.sha256()
        self.add(label, *parts)

    def add(self, *parts: bytes | Rows) -> None:
        """Says something more."""
        for part in parts:
            data = part if isinstance(part, bytes) else part.tobytes()
            self._state.update(len(data).to_bytes(8, "big"))
            self._state.update(data)

    def seed(self) -> bytes:
        """32 bytes that depend on every bit so far."""
        return self._state.digest()

    def challenge(self) -> int:
        """A number of 128 bits that depends on every bit so far."""
        return int.from_bytes(self.seed()[:CHALLENGE_BYTES], "little")


def weights(seed: bytes, count: int) -> Rows:
    """Independent numbers of 128 bits from a seed, one per row.

    >>> weights(bytes(32), 3).shape
    (3, 16)
    """
    stream = hashlib.shake_256(b"dapfl weights 1" + seed).digest(count * CHALLENGE_BYTES)
    return np.frombuffer(stream, np.uint8).reshape(count, CHALLENGE_BYTES)
