"""Small batches in which every number has a ring of its own: signatures and envelopes of many clients.

A native engine computes on several numbers at once, and takes as long for one. So numbers that belong to
different keys share its lanes, as long as the keys have the same size. Whatever does not fit together, and
everything under `gmp`, is computed ring by ring.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from dapfl.arrays import Rows
from dapfl.crypto.engines import native
from dapfl.crypto.engines.base import Ring, check_rows, to_rows
from dapfl.errors import CryptoError, InvalidCiphertext


def powers(rings: Sequence[Ring], bases: Rows, exponents: Sequence[int], messages: Rows) -> list[Rows]:
    """base^exponent · (1 + message·root) modulo root², each row in its own ring.

    The exponents may be public, or the bases random and secret: they are not protected otherwise.
    """
    _check(rings, bases, exponents)
    if len(messages) != len(rings):
        raise CryptoError(f"{len(messages)} messages do not fit {len(rings)} rings.")
    if native.share_lanes(rings):
        messages = check_rows(messages, 2 * rings[0].root_bytes, "Messages")
        bases = check_rows(bases, 2 * rings[0].modulus_bytes, "Bases")
        return list(_rows(native.lane_powers(rings, bases, exponents, messages)))
    each = zip(rings, _rows(bases), exponents, _rows(messages), strict=True)
    return [ring.powers(base, exponent, message) for ring, base, exponent, message in each]


def quotients(
    rings: Sequence[Ring], bases: Rows, exponents: Sequence[int], scales: Sequence[int]
) -> tuple[list[Rows], list[Rows]]:
    """L(base^exponent)·scale modulo root, and base^exponent modulo root, each row in its own ring.

    The exponents are secret. There is a quotient where the second number is 1 (see `Ring.quotients`); else
    the first means nothing. A scale of 0 says that only the second number is wanted, whatever it is.
    """
    _check(rings, bases, exponents)
    if native.share_lanes(rings):
        bases = check_rows(bases, 2 * rings[0].modulus_bytes, "Ciphertexts")
        results, residues = native.lane_quotients(rings, bases, exponents, scales)
        return list(_rows(results)), list(_rows(residues))
    pairs = [_quotient(*each) for each in zip(rings, _rows(bases), exponents, scales, strict=True)]
    return [quotient for quotient, _ in pairs], [residue for _, residue in pairs]


def _quotient(ring: Ring, base: Rows, exponent: int, scale: int) -> tuple[Rows, Rows]:
    """The same for one base alone."""
    none = np.zeros((1, ring.root_bytes), np.uint8)
    if not scale:
        return none, ring.residue_powers(base, exponent)
    try:
        return ring.quotients(base, exponent, scale), to_rows([1], ring.root_bytes)
    except InvalidCiphertext:
        return none, none


def _rows(matrix: Rows) -> Iterator[Rows]:
    return (matrix[index : index + 1] for index in range(len(matrix)))


def _check(rings: Sequence[Ring], bases: Rows, exponents: Sequence[int]) -> None:
    if not len(rings) == len(bases) == len(exponents):
        raise CryptoError(f"{len(bases)} bases and {len(exponents)} exponents do not fit {len(rings)} rings.")
    if any(exponent < 1 for exponent in exponents):
        raise CryptoError("An exponent must be positive.")
