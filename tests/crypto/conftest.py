"""Keys that everyone knows, so that no test waits for primes."""

import json
from pathlib import Path
from typing import Any

import pytest

from dapfl.crypto.engines.base import set_threads
from dapfl.crypto.engines.fixed_base import TABLES
from dapfl.crypto.keys.key_generation import keypair_from_primes
from dapfl.crypto.paillier import PrivateKey

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "paillier.json").read_text())["keys"]


def _key(bits: int, random_g: bool) -> PrivateKey:
    vector: dict[str, Any] = next(
        v
        for v in VECTORS
        if v["bits"] == bits and (int(v["g"], 16) != int(v["p"], 16) * int(v["q"], 16) + 1) == random_g
    )
    return keypair_from_primes(
        int(vector["p"], 16),
        int(vector["q"], 16),
        generator=int(vector["g"], 16),
        allow_insecure_small_keys=True,
    )


@pytest.fixture(scope="session")
def insecure_key() -> PrivateKey:
    """512 bits, g = 1 + n."""
    return _key(512, False)


@pytest.fixture(scope="session")
def other_insecure_key() -> PrivateKey:
    """512 bits, a random g."""
    return _key(512, True)


@pytest.fixture(scope="session")
def key() -> PrivateKey:
    """2048 bits, g = 1 + n."""
    return _key(2048, False)


@pytest.fixture(scope="session")
def key_3072() -> PrivateKey:
    """3072 bits, a random g."""
    return _key(3072, True)


@pytest.fixture(autouse=True)
def _one_thread_no_tables() -> Any:
    set_threads(1)
    yield
    set_threads(None)
    TABLES.clear()
