"""Paillier encryption for vectors: make keys, encrypt, add, decrypt.

Five lines are enough:

>>> from dapfl import crypto
>>> key = crypto.generate_keypair(512, allow_insecure_small_keys=True)  # without arguments: 2048 bits
>>> cipher = crypto.VectorCipher(key.public_key, max_terms=2, limit=100.0)
>>> total = cipher.add(cipher.encrypt([1.5, -2.0]), cipher.encrypt([0.25, 4.0]))
>>> cipher.decrypt(total, key)
array([1.75, 2.  ])

A federation uses the modules below these names: `key_generation`, `paillier` (batches of integers),
`packing` (float vectors and integers), `signature`, `envelope`, `keyfile` (keys in files, under a
passphrase), `range_proof`, `plaintext_proof` and `threshold`.
"""

from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.crypto.vector import EncryptedVector, VectorCipher

__all__ = ["EncryptedVector", "PrivateKey", "PublicKey", "VectorCipher", "generate_keypair"]
