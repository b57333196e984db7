"""The same aggregation by Flower's SecAgg+: its own functions for clients and server, in one process.

What its workflow does between the functions (rounds of messages, timeouts) is left out. It protects against a
server that follows the protocol: nothing is signed.
"""

import importlib
import os
from collections.abc import Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapfl.arrays import Vector

INSTALL = "pip install 'flwr==1.41.0'"
_MODULUS = 1 << 32
_LEVELS = 1 << 22
_CLIPPING = 8.0


def installed() -> bool:
    """Whether Flower can be measured here."""
    return find_spec("flwr") is not None


def _flower() -> SimpleNamespace:
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    load = importlib.import_module
    return SimpleNamespace(
        client=load("flwr.client.mod.secure_aggregation.secaggplus_mod"),
        key=load("flwr.common.secure_aggregation.secaggplus_constants").Key,
        common=load("flwr.common"),
        masks=load("flwr.common.secure_aggregation.secaggplus_utils"),
        shamir=load("flwr.common.secure_aggregation.crypto.shamir"),
        sums=load("flwr.common.secure_aggregation.ndarrays_arithmetic"),
    )


class Aggregation:
    """One aggregation; every client shares its secrets with `neighbours` clients, itself among them."""

    def __init__(self, locals_: Sequence[Vector], neighbours: int, threshold: int) -> None:
        self._flower = _flower()
        self._locals = locals_
        self._neighbours, self._threshold = neighbours, threshold
        self.result: NDArray[np.float64] = np.empty(0)
        self.bytes_up = 0

    def __call__(self) -> None:
        """Runs it with equal weights; `result` is the mean, `bytes_up` what one client sends."""
        states, shares = self._share_keys()
        masked = self._mask(states, shares)
        key, sums = self._flower.key, self._flower.sums
        self.bytes_up = sum(map(len, (*shares[1][key.CIPHERTEXT_LIST], *masked[1][key.MASKED_PARAMETERS])))
        unmasking = self._unmask(states)
        total: list[NDArray[np.int64]] | None = None
        for reply in masked.values():
            arrays = [self._flower.common.bytes_to_ndarray(data) for data in reply[key.MASKED_PARAMETERS]]
            total = arrays if total is None else sums.parameters_addition(total, arrays)
        total = sums.parameters_mod(total, _MODULUS)
        shapes = [array.shape for array in total]
        for parts in unmasking.values():
            secret = self._flower.shamir.combine_shares(parts)
            mask = self._flower.masks.pseudo_rand_gen(secret, _MODULUS, shapes)
            total = sums.parameters_subtraction(total, mask)
        _, (quantised, *_) = sums.factor_extract(sums.parameters_mod(total, _MODULUS))
        clients, weight = len(self._locals), round(0.6 * _LEVELS) / _LEVELS
        spread = quantised.astype(np.float64) * (2 * _CLIPPING / _LEVELS) - _CLIPPING * clients
        self.result = spread / (weight * clients)

    def _share_keys(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """Stages 0 and 1: key pairs, and shares of every client's secrets for its neighbours."""
        mod, key, clients = self._flower.client, self._flower.key, len(self._locals)
        config = {
            key.SAMPLE_NUMBER: clients,
            key.SHARE_NUMBER: self._neighbours,
            key.THRESHOLD: self._threshold,
            key.CLIPPING_RANGE: _CLIPPING,
            key.TARGET_RANGE: _LEVELS,
            key.MOD_RANGE: _MODULUS,
            key.MAX_WEIGHT: 1000.0,
        }
        states, public = {}, {}
        for i in range(1, clients + 1):
            states[i] = mod.SecAggPlusState()
            states[i].nid = i
            public[i] = mod._setup(states[i], config)
        half, rest = self._neighbours // 2, self._neighbours - self._neighbours // 2
        shares = {}
        for i, state in states.items():
            near = [(i - 1 + k) % clients + 1 for k in range(-half, rest)]
            keys = {str(j): (public[j][key.PUBLIC_KEY_1], public[j][key.PUBLIC_KEY_2]) for j in near}
            shares[i] = mod._share_keys(state, keys)
        return states, shares

    def _mask(self, states: dict[int, Any], shares: dict[int, Any]) -> dict[int, Any]:
        """Stage 2: every client's masked vector."""
        key, masked = self._flower.key, {}
        for i, state in states.items():
            sources = [j for j in shares if i in shares[j][key.DESTINATION_LIST]]
            boxes = [
                shares[j][key.CIPHERTEXT_LIST][shares[j][key.DESTINATION_LIST].index(i)] for j in sources
            ]
            state.sources = sources
            vector = self._flower.common.ndarrays_to_parameters([self._locals[i - 1]])
            received = {key.CIPHERTEXT_LIST: boxes, key.SOURCE_LIST: sources}
            masked[i] = self._flower.client._collect_masked_vectors(state, received, 600, vector)
        return masked

    def _unmask(self, states: dict[int, Any]) -> dict[int, list[bytes]]:
        """Stage 3: the shares of every client's own mask; nobody has dropped out."""
        key, found = self._flower.key, dict[int, list[bytes]]()
        for i, state in states.items():
            request = {key.ACTIVE_NODE_ID_LIST: [i, *state.sources], key.DEAD_NODE_ID_LIST: []}
            reply = self._flower.client._unmask(state, request)
            for j, share in zip(reply[key.NODE_ID_LIST], reply[key.SHARE_LIST], strict=True):
                found.setdefault(j, []).append(share)
        return found
