"""Known answers: what every later version must still compute and still read."""

import json
from pathlib import Path
from typing import Any

import pytest

from dapfl.crypto.engines.base import available_engines
from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.keys.key_generation import keypair_from_primes
from dapfl.crypto.keys.keyfile import private_from_text, public_from_text
from dapfl.crypto.signature import sign, verify

VECTORS = Path(__file__).parents[1] / "vectors"
KEYS = json.loads((VECTORS / "paillier.json").read_text())["keys"]
FORMATS = json.loads((VECTORS / "formats.json").read_text())


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("vector", KEYS, ids=lambda v: f"{v['bits']}-{v['g'][:4]}")
def test_known_answers(vector: dict[str, Any], engine: str) -> None:
    p, q, g = (int(vector[name], 16) for name in "pqg")
    key = keypair_from_primes(p, q, generator=g, engine=engine, allow_insecure_small_keys=True)
    public = key.public_key
    assert public.bits == vector["bits"] and public.h_n == int(vector["h_n"], 16)
    for item in vector["encryptions"]:
        plaintext, zeta, ciphertext = (int(item[name], 16) for name in ("plaintext", "zeta", "ciphertext"))
        assert public.encrypt_int(plaintext, zeta) == ciphertext
        assert key.decrypt_int(ciphertext) == plaintext
    for item in vector["signatures"]:
        message, width = bytes.fromhex(item["message"]), public.modulus_bytes
        signature = b"".join(
            int(item[name], 16).to_bytes(width, "little") for name in ("sigma", "sigma_tilde")
        )
        assert sign(message, key) == signature
        verify(message, signature, public)


def test_key_files_of_version_1_can_be_read() -> None:
    private = private_from_text(FORMATS["private"], allow_insecure_small_keys=True)
    assert public_from_text(FORMATS["public"], allow_insecure_small_keys=True) == private.public_key
    locked = private_from_text(FORMATS["locked"], FORMATS["passphrase"], allow_insecure_small_keys=True)
    assert locked == private


@pytest.mark.parametrize("name", ["paillier", "hybrid"])
def test_envelopes_of_version_1_can_be_opened(name: str) -> None:
    key = private_from_text(FORMATS["private"], allow_insecure_small_keys=True)
    sealed, context = bytes.fromhex(FORMATS["sealed"][name]), FORMATS["context"].encode()
    assert envelope_named(name).open(sealed, key, context) == FORMATS["data"].encode()
