"""Loads the key bundle from a participant's folder, and makes sure that it is the right one."""

from pathlib import Path

from dapfl.config import CryptoConfig
from dapfl.errors import KeyFileError
from dapfl.federation.kdc import Bundle, ClientBundle, ServerBundle, bundle_path, load_bundle
from dapfl.federation.transport import ClientId


def client_bundle(folder: Path, client: ClientId, crypto: CryptoConfig) -> ClientBundle | None:
    """The keys of a client; None if nothing is encrypted."""
    bundle = _load(bundle_path(folder, client), crypto)
    if bundle is not None and not (isinstance(bundle, ClientBundle) and bundle.client == client):
        raise KeyFileError(f"The key bundle in {folder} is not that of client {client}.")
    return bundle


def server_bundle(folder: Path, crypto: CryptoConfig) -> ServerBundle | None:
    """The keys of the server; None if nothing is encrypted."""
    bundle = _load(bundle_path(folder, None), crypto)
    if bundle is not None and not isinstance(bundle, ServerBundle):
        raise KeyFileError(f"The key bundle in {folder} is not that of the server.")
    return bundle


def _load(path: Path, crypto: CryptoConfig) -> Bundle | None:
    if crypto.encryption == "none":
        return None
    small = crypto.allow_insecure_small_keys
    return load_bundle(path, engine=crypto.engine, allow_insecure_small_keys=small)
