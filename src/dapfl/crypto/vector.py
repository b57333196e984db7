"""Float vectors under Paillier encryption, for programs that need nothing else of Dap-FL.

>>> import numpy as np
>>> from dapfl.crypto import VectorCipher, generate_keypair
>>> key = generate_keypair(512, allow_insecure_small_keys=True)  # without arguments: 2048 bits
>>> cipher = VectorCipher(key.public_key, max_terms=3)
>>> a, b = cipher.encrypt(np.array([1.5, -2.0])), cipher.encrypt(np.array([0.25, 4.0]))
>>> cipher.decrypt(cipher.add(a, b), key)
array([1.75, 2.  ])
"""

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dapfl.arrays import Rows
from dapfl.crypto.packing import Bounds, ExactCodec, ReferenceModels
from dapfl.crypto.packing.codec import LARGEST
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import CryptoError, EncodingError, InvalidCiphertext

MOST_TERMS = 2**32


@dataclass(frozen=True)
class EncryptedVector:
    """A vector, or the sum of `terms` vectors, that only the owner of the private key can read."""

    ciphertexts: Rows = field(repr=False)
    size: int
    terms: int
    cipher_id: str  # of the VectorCipher that made it

    def to_bytes(self) -> bytes:
        """The bytes to store or send; `VectorCipher.from_bytes` reads them."""
        return msgspec.msgpack.encode((self.cipher_id, self.size, self.terms, self.ciphertexts.tobytes()))


@dataclass(frozen=True)
class VectorCipher:
    """Encrypts and adds float vectors under one public key.

    All who take part must agree on `max_terms`, the most vectors that are ever added up, and on `limit`, the
    largest absolute value of a number in any of them: the room for sums follows from both. What would exceed
    them is an EncodingError, never a wrong sum.

    Numbers are taken as float32 and kept in fixed point. Sums are exact from there on; one number is off by
    at most 2⁻³⁸ of the limit besides the rounding to float32.

    A ciphertext is secret, but not signed: whoever can change it can change the sum. Sign it by
    `dapfl.crypto.signature`, or send it over a channel that is authenticated.
    """

    public_key: PublicKey
    max_terms: int
    limit: float = LARGEST

    def __post_init__(self) -> None:
        if not 1 <= self.max_terms <= MOST_TERMS:
            raise EncodingError(f"max_terms must be between 1 and 2^32, not {self.max_terms}.")
        if not (math.isfinite(self.limit) and 2.0**-100 <= self.limit <= 2.0**100):
            raise EncodingError(f"limit must be a number between 2^-100 and 2^100, not {self.limit}.")
        _ = self._codec  # a key too small for even one number is refused here

    @cached_property
    def id(self) -> str:
        """32 hexadecimal digits that name this key with these bounds."""
        facts = (
            f"dapfl vector cipher 1 {self.public_key.fingerprint} {self.max_terms} {float(self.limit).hex()}"
        )
        return hashlib.sha256(facts.encode()).hexdigest()[:32]

    def encrypt(self, vector: ArrayLike) -> EncryptedVector:
        """The vector, encrypted; EncodingError if a number is not finite or beyond the limit."""
        numbers = np.asarray(vector, dtype=np.float64)
        if numbers.ndim != 1 or not numbers.size:
            raise EncodingError(
                f"A vector is one row of numbers, not an array of shape {numbers.shape}: use .ravel()."
            )
        wrong = ~(np.abs(numbers) <= self.limit)  # true for NaN too
        if wrong.any():
            first = int(np.argmax(wrong))
            raise EncodingError(
                f"Number {first} of the vector is {numbers[first]:g}, outside ±{self.limit:g}: "
                "all parties must declare a larger limit."
            )
        scaled = (numbers / self._unit).astype(np.float32)
        plaintexts = self._codec.encode(scaled, 1, _reference(len(numbers))).plaintexts
        return EncryptedVector(self.public_key.encrypt(plaintexts), len(numbers), 1, self.id)

    def add(self, *vectors: EncryptedVector) -> EncryptedVector:
        """The sum of encrypted vectors, itself encrypted."""
        if not vectors:
            raise EncodingError("There is nothing to add.")
        for vector in vectors:
            self._check(vector)
        sizes = {vector.size for vector in vectors}
        if len(sizes) > 1:
            raise EncodingError(
                f"Vectors of {' and '.join(map(str, sorted(sizes)))} numbers cannot be added."
            )
        terms = sum(vector.terms for vector in vectors)
        if terms > self.max_terms:
            raise EncodingError(
                f"A sum of {terms} vectors exceeds max_terms = {self.max_terms}: "
                "all parties must declare a larger one."
            )
        product = self.public_key.product([vector.ciphertexts for vector in vectors])
        return EncryptedVector(product, sizes.pop(), terms, self.id)

    def decrypt(self, vector: EncryptedVector, key: PrivateKey) -> NDArray[np.float64]:
        """The vector or the sum that `vector` holds."""
        self._check(vector)
        if key.public_key != self.public_key:
            raise CryptoError("This private key does not belong to the public key of the cipher.")
        rows = key.decrypt(vector.ciphertexts)
        total = self._codec.total(rows, vector.size, vector.terms, vector.terms)
        return total * self._unit

    def from_bytes(self, data: bytes) -> EncryptedVector:
        """What `EncryptedVector.to_bytes` wrote; InvalidCiphertext if it is not a vector of this cipher."""
        try:
            name, size, terms, body = msgspec.msgpack.decode(data, type=tuple[str, int, int, bytes])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidCiphertext(f"These bytes are not an encrypted vector: {error}.") from None
        width, octets = self.public_key.ciphertext_bytes, np.frombuffer(body, np.uint8)
        if size < 1 or len(octets) != width * self._codec.plaintext_count(size):
            raise InvalidCiphertext(
                f"{len(octets)} bytes of ciphertext do not hold a vector of {size} numbers."
            )
        vector = EncryptedVector(octets.reshape(-1, width), size, terms, name)
        self._check(vector)
        self.public_key.validate(vector.ciphertexts)
        return vector

    def _check(self, vector: EncryptedVector) -> None:
        if vector.cipher_id != self.id:
            raise InvalidCiphertext(
                "This vector was encrypted by another cipher: its key, max_terms or limit is not the same."
            )
        if not 1 <= vector.terms <= self.max_terms:
            raise InvalidCiphertext(f"This vector claims to be the sum of {vector.terms} vectors.")

    @cached_property
    def _unit(self) -> float:
        """What 1 means to the codec. A power of two, so that scaling rounds nothing."""
        return 2.0 ** math.ceil(math.log2(self.limit / LARGEST))

    @cached_property
    def _codec(self) -> ExactCodec:
        return ExactCodec(Bounds(max_samples=1, max_clients=self.max_terms), self.public_key.plaintext_bytes)


def _reference(size: int) -> ReferenceModels:
    """What the codec is told about the model of a federation: here, only the length of the vector."""
    return ReferenceModels(np.zeros(size, np.float32))
