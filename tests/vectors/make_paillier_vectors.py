"""Makes paillier.json, from the formulas of Section III-B and nothing but Python's own integers.

Run it only to add vectors: the point of the file is that it does not change.
    python tests/vectors/make_paillier_vectors.py > tests/vectors/paillier.json
"""

import hashlib
import json
import math
import random


def probably_prime(number: int) -> bool:
    return all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7, 11))


def prime(rng: random.Random, bits: int) -> int:
    while True:
        candidate = rng.getrandbits(bits) | 3 << (bits - 2) | 3
        if all(candidate % small for small in range(3, 2000, 2)) and probably_prime(candidate):
            return candidate


def hash_to_unit(message: bytes, n: int, width: int) -> int:
    data = b"dapfl signature 1" + bytes(4) + n.to_bytes(width, "big") + message
    return int.from_bytes(hashlib.shake_256(data).digest(width + 16), "big") % (n * n)


def djn_base(n: int) -> int:
    data = b"dapfl djn base 1" + bytes(4) + n.to_bytes(n.bit_length() // 8, "big")
    x = int.from_bytes(hashlib.shake_256(data).digest(n.bit_length() // 8 + 16), "big")
    return pow(-x * x % n, n, n * n)


def key_vectors(rng: random.Random, bits: int, random_g: bool) -> dict[str, object]:
    while True:
        p, q = prime(rng, bits // 2), prime(rng, bits // 2)
        if math.gcd(p * q, (p - 1) * (q - 1)) == 1 and math.gcd(p - 1, q - 1) == 2:
            break
    n, width = p * q, bits // 4
    square, rho = n * n, math.lcm(p - 1, q - 1)
    g = rng.randrange(square) if random_g else n + 1

    def big_l(x: int) -> int:
        return (x - 1) // n

    delta = pow(big_l(pow(g, rho, square)), -1, n)
    encryptions = []
    for plaintext in (0, 1, n - 1, rng.randrange(n), rng.randrange(n)):
        zeta = rng.randrange(1, n)
        ciphertext = pow(g, plaintext, square) * pow(zeta, n, square) % square
        assert big_l(pow(ciphertext, rho, square)) * delta % n == plaintext
        encryptions.append({"plaintext": plaintext, "zeta": zeta, "ciphertext": ciphertext})
    signatures = []
    for message in (b"", b"Dap-FL", bytes(range(256))):
        h = hash_to_unit(message, n, width)
        sigma = big_l(pow(h, rho, square)) * delta % n
        tilde = pow(h * pow(g, -sigma, square) % n, pow(n, -1, rho), n)
        assert pow(g, sigma, square) * pow(tilde, n, square) % square == h
        signatures.append({"message": message.hex(), "sigma": sigma, "sigma_tilde": tilde})
    vectors = {
        "p": p,
        "q": q,
        "g": g,
        "h_n": djn_base(n),
        "encryptions": encryptions,
        "signatures": signatures,
    }
    return {"bits": bits, **as_hex(vectors)}


def as_hex(value: object) -> object:
    match value:
        case int():
            return f"{value:x}"
        case dict():
            return {name: as_hex(item) for name, item in value.items()}
        case list():
            return [as_hex(item) for item in value]
    return value


if __name__ == "__main__":
    source = random.Random("dapfl paillier vectors 1")  # keys for tests: anyone can make them again
    keys = [key_vectors(source, bits, random_g) for bits in (512, 2048, 3072) for random_g in (False, True)]
    print(json.dumps({"warning": "TEST KEYS: everyone knows them.", "keys": keys}, indent=1))
