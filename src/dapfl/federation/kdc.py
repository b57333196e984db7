"""The key distribution center: Phase 0 of Fig. 4.

It makes four kinds of Paillier keys and hands each participant exactly what Fig. 4 gives it:

    CS         SK_i^Enc of every client, SK_CS^Sign, all public signing keys, and PK_CS^Enc, which
               Fig. 4 leaves out but without whose n² nobody can multiply ciphertexts
    client i   SK_CS^Enc (with PK_CS^Enc), PK_i^Enc, SK_i^Sign, all public signing keys

So CS can open envelopes but no contribution, and a client can open the aggregate but no other
client's envelope. A bundle is one file, for its owner's eyes only.
"""

import json
import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dapfl.config import CryptoConfig
from dapfl.crypto import keyfile
from dapfl.crypto.engine import set_threads
from dapfl.crypto.paillier import PrivateKey, PublicKey, generate_keypair
from dapfl.errors import KeyFileError
from dapfl.federation.messages import FEDERATION_BYTES
from dapfl.federation.transport import ClientId
from dapfl.files import replacing

_FORMAT, _VERSION = "dapfl-bundle", 1
_LARGEST_FILE = 2**28
_FEW = 8  # so few keys are made sooner than worker processes are started


@dataclass(frozen=True)
class ServerBundle:
    """The keys of CS."""

    federation: bytes
    pk_cs_enc: PublicKey
    sk_cs_sign: PrivateKey
    sk_enc: Mapping[ClientId, PrivateKey]
    pk_sign: Mapping[ClientId, PublicKey]


@dataclass(frozen=True)
class ClientBundle:
    """The keys of client i."""

    federation: bytes
    client: ClientId
    sk_cs_enc: PrivateKey
    pk_i_enc: PublicKey
    sk_i_sign: PrivateKey
    pk_cs_sign: PublicKey
    pk_sign: Mapping[ClientId, PublicKey]


Bundle = ServerBundle | ClientBundle


def generate(
    clients: int, crypto: CryptoConfig, advance: Callable[[], object] = lambda: None
) -> tuple[ServerBundle, dict[ClientId, ClientBundle]]:
    """New keys for CS and clients 1..N; `advance` is called as often as `keys_needed` says.

    >>> insecure = CryptoConfig(key_bits=256, allow_insecure_small_keys=True)
    >>> server, clients = generate(2, insecure)
    >>> sorted(server.sk_enc), clients[2].sk_cs_enc.public_key == server.pk_cs_enc
    ([1, 2], True)
    """
    keys = []
    for key in _make(keys_needed(clients), crypto):
        keys.append(key)
        advance()
    cs_enc, cs_sign, *rest = keys
    ids = range(1, clients + 1)
    enc, sign = dict(zip(ids, rest[:clients], strict=True)), dict(zip(ids, rest[clients:], strict=True))
    federation = secrets.token_bytes(FEDERATION_BYTES)
    pk_sign = {i: key.public_key for i, key in sign.items()}
    server = ServerBundle(federation, cs_enc.public_key, cs_sign, enc, pk_sign)
    return server, {
        i: ClientBundle(federation, i, cs_enc, enc[i].public_key, sign[i], cs_sign.public_key, pk_sign)
        for i in ids
    }


def keys_needed(clients: int) -> int:
    """One key to encrypt and one to sign for every participant."""
    return 2 * (clients + 1)


def _make(count: int, crypto: CryptoConfig) -> Iterator[PrivateKey]:
    make = partial(
        generate_keypair,
        crypto.key_bits,
        generator=crypto.generator,
        randomness=crypto.randomness,
        engine=crypto.engine,
        allow_insecure_small_keys=crypto.allow_insecure_small_keys,
    )
    if count <= _FEW or crypto.key_bits < 1024 or os.cpu_count() == 1:
        yield from (make() for _ in range(count))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context, initializer=set_threads, initargs=(1,)) as pool:
        yield from pool.map(_call, [make] * count)


def _call(make: Callable[[], PrivateKey]) -> PrivateKey:
    return make()


# Files -----------------------------------------------------------------------------------------


def bundle_path(folder: Path, client: ClientId | None) -> Path:
    """The file of a client's bundle, or of the server's.

    >>> bundle_path(Path("keys"), 7).name, bundle_path(Path("keys"), None).name
    ('client-007.keys', 'server.keys')
    """
    return folder / ("server.keys" if client is None else f"client-{client:03d}.keys")


def save_bundle(path: Path, bundle: Bundle) -> None:
    """Writes a bundle, whole or not at all, readable by its owner only."""
    try:
        with replacing(path, mode=0o600) as file:
            file.write(json.dumps(_to_builtins(bundle), indent=1).encode() + b"\n")
    except OSError as error:
        raise KeyFileError(f"The key bundle {path} cannot be written: {error.strerror}.") from None


def save_bundles(folder: Path, server: ServerBundle, clients: Mapping[ClientId, ClientBundle]) -> None:
    """Writes every participant's bundle into a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise KeyFileError(f"The folder {folder} cannot be made: {error.strerror}.") from None
    for client, bundle in clients.items():
        save_bundle(bundle_path(folder, client), bundle)
    save_bundle(bundle_path(folder, None), server)  # last: where it is, the others are


def load_bundle(path: Path, *, engine: str = "auto", allow_insecure_small_keys: bool = False) -> Bundle:
    """The bundle in a file."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise KeyFileError(f"{path} is too large to be a key bundle.")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise KeyFileError(f"The key bundle {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise KeyFileError(f"{path} is no key bundle: it is no whole JSON text.") from None
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise KeyFileError(f"{path} is no key bundle of Dap-FL.")
    if data.get("version") != _VERSION:
        raise KeyFileError(f"{path} has version {data.get('version')!r}; this Dap-FL reads {_VERSION}.")
    try:
        return _from_builtins(data, engine, allow_insecure_small_keys)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise KeyFileError(
            f"{path} is damaged: it lacks a part of a bundle. Get it from the KDC again."
        ) from None
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}") from None


def load_bundles(
    folder: Path, *, engine: str = "auto", allow_insecure_small_keys: bool = False
) -> tuple[ServerBundle, dict[ClientId, ClientBundle]]:
    """Every participant's bundle in a folder; clients share the key objects that they all hold."""
    load = partial(load_bundle, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys)
    server = load(bundle_path(folder, None))
    if not isinstance(server, ServerBundle):
        raise KeyFileError(f"{bundle_path(folder, None)} is not the bundle of the server.")
    clients: dict[ClientId, ClientBundle] = {}
    shared: PrivateKey | None = None
    for client in server.sk_enc:
        bundle = load(bundle_path(folder, client))
        if not isinstance(bundle, ClientBundle) or bundle.client != client:
            raise KeyFileError(f"{bundle_path(folder, client)} is not the bundle of client {client}.")
        if bundle.federation != server.federation:
            raise KeyFileError(f"{folder} holds bundles of two federations: make the keys again.")
        shared = shared or bundle.sk_cs_enc
        clients[client] = ClientBundle(
            bundle.federation,
            client,
            shared if bundle.sk_cs_enc == shared else bundle.sk_cs_enc,
            bundle.pk_i_enc,
            bundle.sk_i_sign,
            bundle.pk_cs_sign,
            server.pk_sign,
        )
    return server, clients


def _to_builtins(bundle: Bundle) -> dict[str, Any]:
    head = {"format": _FORMAT, "version": _VERSION, "federation": bundle.federation.hex()}
    public = {"pk_sign": {i: keyfile.to_text(key) for i, key in bundle.pk_sign.items()}}
    if isinstance(bundle, ServerBundle):
        return head | {
            "role": "server",
            "pk_cs_enc": keyfile.to_text(bundle.pk_cs_enc),
            "sk_cs_sign": keyfile.to_text(bundle.sk_cs_sign),
            "sk_enc": {i: keyfile.to_text(key) for i, key in bundle.sk_enc.items()},
            **public,
        }
    return head | {
        "role": "client",
        "client": bundle.client,
        "sk_cs_enc": keyfile.to_text(bundle.sk_cs_enc),
        "pk_i_enc": keyfile.to_text(bundle.pk_i_enc),
        "sk_i_sign": keyfile.to_text(bundle.sk_i_sign),
        "pk_cs_sign": keyfile.to_text(bundle.pk_cs_sign),
        **public,
    }


def _from_builtins(data: dict[str, Any], engine: str, allow_insecure_small_keys: bool) -> Bundle:
    def private(text: str) -> PrivateKey:
        return keyfile.private_from_text(
            text, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
        )

    def public(text: str) -> PublicKey:
        return keyfile.public_from_text(
            text, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
        )

    federation = bytes.fromhex(data["federation"])
    pk_sign = {int(i): public(text) for i, text in data["pk_sign"].items()}
    if data["role"] == "server":
        sk_enc = {int(i): private(text) for i, text in data["sk_enc"].items()}
        return ServerBundle(
            federation, public(data["pk_cs_enc"]), private(data["sk_cs_sign"]), sk_enc, pk_sign
        )
    return ClientBundle(
        federation,
        int(data["client"]),
        private(data["sk_cs_enc"]),
        public(data["pk_i_enc"]),
        private(data["sk_i_sign"]),
        public(data["pk_cs_sign"]),
        pk_sign,
    )
