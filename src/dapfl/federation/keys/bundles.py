"""Key bundles: what the KDC hands to each participant, and the file that holds it.

A bundle is one file, for its owner's eyes only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dapfl.config import CryptoConfig
from dapfl.crypto.keys import keyfile
from dapfl.crypto.keys.passphrase import VARIABLE, lock, unlock
from dapfl.crypto.keys.passphrase import given as given_passphrase
from dapfl.crypto.keys.threshold_keys import Committee, KeyShare
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import KeyFileError
from dapfl.federation.transport import ClientId
from dapfl.system.files import replacing
from dapfl.system.processes import forbid_core_files

_FORMAT, _LOCKED, _VERSION = "dapfl-bundle", "dapfl-locked-bundle", 1
_LARGEST_FILE = 2**28
GROUP_KEY_BYTES = 32


@dataclass(frozen=True)
class CommitteeKeys:
    """What all participants have where a committee decrypts."""

    committee: Committee
    members: tuple[ClientId, ...]
    """The clients on the committee: its member k is client members[k-1]."""
    group_key: bytes = field(repr=False)
    """Seals global models for clients."""


@dataclass(frozen=True)
class ServerBundle:
    """The keys of CS."""

    federation: bytes
    pk_cs_enc: PublicKey
    sk_cs_sign: PrivateKey
    sk_enc: Mapping[ClientId, PrivateKey]
    pk_sign: Mapping[ClientId, PublicKey]
    committee: CommitteeKeys | None = None
    pk_kdc_sign: PublicKey | None = None
    """Verifies rosters; None in a federation whose clients never change."""


@dataclass(frozen=True)
class ClientBundle:
    """The keys of client i."""

    federation: bytes
    client: ClientId
    sk_cs_enc: PrivateKey | None
    pk_i_enc: PublicKey
    sk_i_sign: PrivateKey
    pk_cs_sign: PublicKey
    pk_sign: Mapping[ClientId, PublicKey]
    committee: CommitteeKeys | None = None
    share: KeyShare | None = None
    pk_kdc_sign: PublicKey | None = None
    """Verifies rosters; None in a federation whose clients never change."""
    individual_key: bytes | None = field(default=None, repr=False)
    """Under which the KDC sends this client new keys; CS does not have it."""


@dataclass(frozen=True)
class DecryptionKeys:
    """Who can decrypt aggregates: every client by SK_CS, or a committee by its shares."""

    public_key: PublicKey
    private_key: PrivateKey | None = None
    committee: CommitteeKeys | None = None
    shares: Mapping[ClientId, KeyShare] = field(default_factory=dict, repr=False)


Bundle = ServerBundle | ClientBundle


def bundle_path(folder: Path, client: ClientId | None) -> Path:
    """The file of a client's bundle, or of the server's.

    >>> bundle_path(Path("keys"), 7).name, bundle_path(Path("keys"), None).name
    ('client-007.keys', 'server.keys')
    """
    return folder / ("server.keys" if client is None else f"client-{client:03d}.keys")


def save_bundle(path: Path, bundle: Bundle, passphrase: str | None = None) -> None:
    """Writes a bundle, whole or not at all, readable by its owner only, and under a passphrase if given."""
    data = to_builtins(bundle)
    if passphrase is not None:
        head = {"format": _LOCKED, "version": _VERSION}
        data = head | lock(json.dumps(data).encode(), passphrase, _LOCKED)
    with replacing(path, mode=0o600) as file:
        file.write(json.dumps(data, indent=1).encode() + b"\n")


def save_bundles(folder: Path, server: ServerBundle, clients: Mapping[ClientId, ClientBundle]) -> None:
    """Writes every participant's bundle into a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise KeyFileError(f"The folder {folder} cannot be made: {error.strerror}.") from None
    for client, bundle in clients.items():
        save_bundle(bundle_path(folder, client), bundle)
    save_bundle(bundle_path(folder, None), server)  # last: if it is there, so are the others


def load_bundle(path: Path, *, engine: str = "auto", allow_insecure_small_keys: bool = False) -> Bundle:
    """The bundle in a file. If it is under a passphrase, a file must be named that holds it
    (`passphrase.VARIABLE`)."""
    forbid_core_files()
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise KeyFileError(f"{path} is too large to be a key bundle.")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise KeyFileError(f"The key bundle {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise KeyFileError(
            f"{path} is not a key bundle: it is not complete JSON. Get it from the KDC again."
        ) from None
    if not isinstance(data, dict) or data.get("format") not in (_FORMAT, _LOCKED):
        raise KeyFileError(f"{path} is not a key bundle of Dap-FL.")
    if data.get("version") != _VERSION:
        raise KeyFileError(
            f"{path} has version {data.get('version')!r:.40}; this Dap-FL reads {_VERSION}: use the version "
            "that made it."
        )
    try:
        if data["format"] == _LOCKED:
            data = _unlocked(data)
        return _from_builtins(data, engine, allow_insecure_small_keys)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise KeyFileError(
            f"{path} is damaged: a part of the bundle is missing. Get it from the KDC again."
        ) from None
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}") from None


def _unlocked(data: dict[str, Any]) -> dict[str, Any]:
    passphrase = given_passphrase()
    if passphrase is None:
        raise KeyFileError(
            "This bundle is under a passphrase. Put the passphrase into a file that only you can read, and "
            f"name that file: export {VARIABLE}=FILE."
        )
    unlocked: dict[str, Any] = json.loads(unlock(data, passphrase, _LOCKED))
    return unlocked


def load_server_bundle(
    path: Path, *, engine: str = "auto", allow_insecure_small_keys: bool = False
) -> ServerBundle:
    """The bundle in a file, which must be that of a server."""
    bundle = load_bundle(path, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys)
    if not isinstance(bundle, ServerBundle):
        raise KeyFileError(f"{path} is not the key bundle of a server: that is server.keys of the KDC.")
    return bundle


def load_client_bundle(
    path: Path,
    client: ClientId | None = None,
    *,
    engine: str = "auto",
    allow_insecure_small_keys: bool = False,
) -> ClientBundle:
    """The bundle in a file, which must be that of a client: of this one, if it is named."""
    bundle = load_bundle(path, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys)
    if not isinstance(bundle, ClientBundle) or client not in (None, bundle.client):
        owner = "a client" if client is None else f"client {client}"
        raise KeyFileError(f"{path} is not the key bundle of {owner}.")
    return bundle


def load_bundles(
    folder: Path, *, engine: str = "auto", allow_insecure_small_keys: bool = False
) -> tuple[ServerBundle, dict[ClientId, ClientBundle]]:
    """Every participant's bundle in a folder; clients share the key objects that they all hold."""
    small = allow_insecure_small_keys
    server = load_server_bundle(bundle_path(folder, None), engine=engine, allow_insecure_small_keys=small)
    clients: dict[ClientId, ClientBundle] = {}
    shared: PrivateKey | None = None
    for client in server.sk_enc:
        path = bundle_path(folder, client)
        bundle = load_client_bundle(path, client, engine=engine, allow_insecure_small_keys=small)
        if bundle.federation != server.federation:
            raise KeyFileError(f"{folder} holds bundles of two federations: make the keys again.")
        shared = shared or bundle.sk_cs_enc
        clients[client] = replace(
            bundle,
            sk_cs_enc=shared if bundle.sk_cs_enc == shared else bundle.sk_cs_enc,
            pk_sign=server.pk_sign,
        )
    return server, clients


def to_builtins(bundle: Bundle) -> dict[str, Any]:
    """A bundle as it is written; everything in it is secret."""
    head = {"format": _FORMAT, "version": _VERSION, "federation": bundle.federation.hex()}
    public: dict[str, Any] = {"pk_sign": {i: keyfile.to_text(key) for i, key in bundle.pk_sign.items()}}
    if bundle.committee is not None:
        public["committee"] = committee_to_builtins(bundle.committee)
    if bundle.pk_kdc_sign is not None:
        public["pk_kdc_sign"] = keyfile.to_text(bundle.pk_kdc_sign)
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
        "sk_cs_enc": None if bundle.sk_cs_enc is None else keyfile.to_text(bundle.sk_cs_enc),
        "share": None if bundle.share is None else keyfile.to_text(bundle.share),
        "pk_i_enc": keyfile.to_text(bundle.pk_i_enc),
        "sk_i_sign": keyfile.to_text(bundle.sk_i_sign),
        "pk_cs_sign": keyfile.to_text(bundle.pk_cs_sign),
        "individual_key": None if bundle.individual_key is None else bundle.individual_key.hex(),
        **public,
    }


def committee_to_builtins(keys: CommitteeKeys) -> dict[str, Any]:
    """What all participants have of a committee, as it is written in a bundle."""
    return {
        "keys": keyfile.to_text(keys.committee),
        "members": keys.members,
        "group_key": keys.group_key.hex(),
    }


def from_builtins(data: dict[str, Any], crypto: CryptoConfig) -> Bundle:
    """What `to_builtins` was given."""
    return _from_builtins(data, crypto.engine, crypto.allow_insecure_small_keys)


def _from_builtins(data: dict[str, Any], engine: str, allow_insecure_small_keys: bool) -> Bundle:
    def private(text: str) -> PrivateKey:
        return keyfile.private_from_text(
            text, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
        )

    def public(text: str) -> PublicKey:
        return keyfile.public_from_text(
            text, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
        )

    def share(text: str) -> KeyShare:
        return keyfile.share_from_text(
            text, engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
        )

    committee: CommitteeKeys | None = None
    if found := data.get("committee"):
        keys = keyfile.committee_from_text(
            found["keys"], engine=engine, allow_insecure_small_keys=allow_insecure_small_keys
        )
        group_key = bytes.fromhex(found["group_key"])
        if len(found["members"]) != keys.members or len(group_key) != GROUP_KEY_BYTES:
            raise KeyFileError("The bundle is damaged: its committee is not whole.")
        committee = CommitteeKeys(keys, tuple(map(int, found["members"])), group_key)
    federation = bytes.fromhex(data["federation"])
    pk_sign = {int(i): public(text) for i, text in data["pk_sign"].items()}
    kdc = public(data["pk_kdc_sign"]) if data.get("pk_kdc_sign") else None
    individual_key = bytes.fromhex(data["individual_key"]) if data.get("individual_key") else None
    if data["role"] == "server":
        sk_enc = {int(i): private(text) for i, text in data["sk_enc"].items()}
        pk_cs_enc, sk_cs_sign = public(data["pk_cs_enc"]), private(data["sk_cs_sign"])
        return ServerBundle(federation, pk_cs_enc, sk_cs_sign, sk_enc, pk_sign, committee, kdc)
    return ClientBundle(
        federation,
        int(data["client"]),
        private(data["sk_cs_enc"]) if data["sk_cs_enc"] is not None else None,
        public(data["pk_i_enc"]),
        private(data["sk_i_sign"]),
        public(data["pk_cs_sign"]),
        pk_sign,
        committee,
        share(data["share"]) if data.get("share") is not None else None,
        kdc,
        individual_key,
    )
