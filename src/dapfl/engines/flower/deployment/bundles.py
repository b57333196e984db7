"""Loads the key bundle from a participant's folder, and makes sure that it is the right one."""

from pathlib import Path

from dapfl.config import CryptoConfig
from dapfl.federation.keys.bundles import (
    ClientBundle,
    ServerBundle,
    bundle_path,
    load_client_bundle,
    load_server_bundle,
)
from dapfl.federation.transport import ClientId


def client_bundle(folder: Path, client: ClientId, crypto: CryptoConfig) -> ClientBundle | None:
    """The keys of a client; None if nothing is encrypted."""
    if crypto.encryption == "none":
        return None
    path, small = bundle_path(folder, client), crypto.allow_insecure_small_keys
    return load_client_bundle(path, client, engine=crypto.engine, allow_insecure_small_keys=small)


def server_bundle(folder: Path, crypto: CryptoConfig) -> ServerBundle | None:
    """The keys of the server; None if nothing is encrypted."""
    if crypto.encryption == "none":
        return None
    path, small = bundle_path(folder, None), crypto.allow_insecure_small_keys
    return load_server_bundle(path, engine=crypto.engine, allow_insecure_small_keys=small)
