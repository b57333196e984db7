"""Numbers that careless arithmetic trips over, in the place of those in a message.

They are what no ciphertext or signature is (0, n, n², a multiple of n), another writing of a number
(itself plus the modulus), and what can be made of a number without any key (its negative, inverse, square).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import gmpy2
import msgspec
import numpy as np

from dapfl.crypto.paillier import PublicKey


def replaced(data: bytes, keys: Sequence[PublicKey], rng: np.random.Generator) -> bytes:
    """Bytes in which one number of a key's size, at a place where one may be, is such a number."""
    key = keys[int(rng.integers(len(keys)))]
    width, modulus = (key.modulus_bytes, key.n) if rng.integers(2) else (key.ciphertext_bytes, key.n * key.n)
    if len(data) < width:
        return data
    places = (
        int(rng.integers(len(data) // width)) * width,
        len(data) - width,
        int(rng.integers(len(data) - width + 1)),
    )
    place = places[int(rng.integers(len(places)))]
    there = int.from_bytes(data[place : place + width], "little")
    inverse = int(gmpy2.invert(there, modulus)) if gmpy2.gcd(there, modulus) == 1 else 0
    choices = (
        *(0, 1, modulus - 1, modulus, modulus + 1, 2 ** (8 * width) - 1),
        *(key.n, modulus - key.n, there + modulus, -there % modulus, inverse, there * there % modulus),
    )
    number = choices[int(rng.integers(len(choices)))] % 2 ** (8 * width)
    return data[:place] + number.to_bytes(width, "little") + data[place + width :]


def replaced_within(body: bytes, keys: Sequence[PublicKey], rng: np.random.Generator) -> bytes:
    """An encoded body in which one such number is replaced; the same body if it has none."""
    value = msgspec.msgpack.decode(body)
    least = min(key.modulus_bytes for key in keys)
    paths = [path for path, found in _bytes_in(value) if len(found) >= least]
    if not paths:
        return body
    *way, last = paths[int(rng.integers(len(paths)))]
    holder = value
    for step in way:
        holder = holder[step]
    holder[last] = replaced(holder[last], keys, rng)
    return msgspec.msgpack.encode(value)


def _bytes_in(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], bytes]]:
    for place, item in enumerate(value):
        if isinstance(item, bytes):
            yield (*path, place), item
        elif isinstance(item, list):
            yield from _bytes_in(item, (*path, place))
