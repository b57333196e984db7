"""The same aggregation under CKKS, as TenSEAL does it: N = 8192, coefficient moduli [60, 40, 40, 60]."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapfl.arrays import Vector

INSTALL = "pip install tenseal"


def installed() -> bool:
    """Whether TenSEAL can be measured here."""
    return find_spec("tenseal") is not None


class Aggregation:
    """Encrypts |D_i|·ŵ_i for every client, adds, decrypts once and divides by Σ|D_i|."""

    def __init__(self, locals_: Sequence[Vector], samples: Sequence[int]) -> None:
        import tenseal

        self._tenseal: Any = tenseal
        self._context = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=8192, coeff_mod_bit_sizes=[60, 40, 40, 60]
        )
        self._context.global_scale = 2**40
        self._weighted = [n * local.astype(np.float64) for local, n in zip(locals_, samples, strict=True)]
        self._samples = sum(samples)
        self.result: NDArray[np.float64] = np.empty(0)
        self.bytes_up = len(self._encrypt(self._weighted[0]).serialize())

    def __call__(self) -> None:
        """Runs it; `result` is the mean."""
        total = self._encrypt(self._weighted[0])
        for vector in self._weighted[1:]:
            total += self._encrypt(vector)
        self.result = np.array(total.decrypt()) / self._samples

    def _encrypt(self, vector: NDArray[np.float64]) -> Any:
        return self._tenseal.ckks_vector(self._context, vector)
