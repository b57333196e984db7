"""The key distribution centre: Phase 0 of Fig. 4.

It makes four kinds of Paillier keys and hands each participant exactly what Fig. 4 gives it:

    CS         SK_i^Enc of every client, SK_CS^Sign, all public signing keys, and PK_CS^Enc, which
               Fig. 4 leaves out but without whose n² nobody can multiply ciphertexts
    client i   SK_CS^Enc (with PK_CS^Enc), PK_i^Enc, SK_i^Sign, all public signing keys

So CS can open envelopes but no contribution, and a client can open the aggregate but no other
client's envelope. With `decryption = "committee"` nobody gets SK_CS^Enc: it is shared out among the
committee's members, and everyone gets a group key, under which CS sends the global model to clients.
A bundle is one file, for its owner's eyes only.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from dapfl.config import CryptoConfig
from dapfl.crypto import keyfile
from dapfl.crypto.engines.base import set_threads
from dapfl.crypto.paillier import PrivateKey, PublicKey, generate_keypair
from dapfl.crypto.threshold_keys import Committee, KeyShare, generate_committee
from dapfl.errors import KeyFileError
from dapfl.federation.messages import FEDERATION_BYTES
from dapfl.federation.transport import ClientId
from dapfl.files import replacing
from dapfl.processes import WORKERS

_FORMAT, _VERSION = "dapfl-bundle", 1
_LARGEST_FILE = 2**28
_GROUP_KEY_BYTES = 32
_FEW = 8  # so few keys are made sooner than worker processes are started


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


Bundle = ServerBundle | ClientBundle


def generate(
    clients: int,
    crypto: CryptoConfig,
    advance: Callable[[], object] = lambda: None,
    seats: Sequence[ClientId] = (),
) -> tuple[ServerBundle, dict[ClientId, ClientBundle]]:
    """New keys for CS and clients 1..N; `advance` is called as often as `keys_needed` says.

    `seats` are clients that must be on the committee, if there is one.

    >>> insecure = CryptoConfig(key_bits=256, allow_insecure_small_keys=True)
    >>> server, clients = generate(2, insecure)
    >>> sorted(server.sk_enc), clients[2].pk_cs_sign == server.sk_cs_sign.public_key
    ([1, 2], True)
    """
    ids = range(1, clients + 1)
    keys: list[PrivateKey] = []
    for key in _make(keys_needed(clients) - 1, crypto):
        keys.append(key)
        advance()
    cs_sign, *rest = keys
    enc, sign = dict(zip(ids, rest[:clients], strict=True)), dict(zip(ids, rest[clients:], strict=True))
    federation = secrets.token_bytes(FEDERATION_BYTES)
    pk_sign = {i: key.public_key for i, key in sign.items()}
    cs_enc: PrivateKey | None = None
    committee: CommitteeKeys | None = None
    shares: dict[ClientId, KeyShare] = {}
    if crypto.decryption == "committee":
        committee, shares = _make_committee(clients, crypto, seats)
        pk_cs_enc = committee.committee.public_key
    else:
        (cs_enc,) = _make(1, crypto)
        pk_cs_enc = cs_enc.public_key
    advance()
    server = ServerBundle(federation, pk_cs_enc, cs_sign, enc, pk_sign, committee)
    return server, {
        i: ClientBundle(
            federation,
            i,
            cs_enc,
            enc[i].public_key,
            sign[i],
            cs_sign.public_key,
            pk_sign,
            committee,
            shares.get(i),
        )
        for i in ids
    }


def committee_of(clients: int, crypto: CryptoConfig) -> tuple[int, int]:
    """How many clients are on the committee of a federation, and how many of them decrypt together.

    Unless told otherwise, so many that CS and two members who break the protocol together get no second
    proposal of a round decrypted (see `Committee.colluders`), but one of them may be off. With four clients
    that is one colluder, with three CS alone.

    >>> [committee_of(clients, CryptoConfig()) for clients in (20, 4, 3)]
    [(5, 4), (4, 3), (3, 2)]
    """
    members = min(crypto.committee_members, clients)
    return members, min(members, crypto.committee_threshold or max(2, min(members - 1, (members + 4) // 2)))


def colluders(clients: int, crypto: CryptoConfig) -> int:
    """How many clients may help a CS that breaks the protocol, without any contribution being read."""
    members, threshold = committee_of(clients, crypto)
    return 2 * threshold - members - 1


def _make_committee(
    clients: int, crypto: CryptoConfig, seats: Sequence[ClientId]
) -> tuple[CommitteeKeys, dict[ClientId, KeyShare]]:
    members, threshold = committee_of(clients, crypto)
    shares = generate_committee(
        crypto.key_bits,
        members=members,
        threshold=threshold,
        engine=crypto.engine,
        allow_insecure_small_keys=crypto.allow_insecure_small_keys,
    )
    others = (client for client in range(1, clients + 1) if client not in seats)
    ids = tuple(islice((*seats, *others), members))
    keys = CommitteeKeys(shares[0].committee, ids, secrets.token_bytes(_GROUP_KEY_BYTES))
    return keys, dict(zip(ids, shares, strict=True))


def generate_more(count: int, crypto: CryptoConfig) -> list[PrivateKey]:
    """Further keys for a federation: of the KDC itself, or of a client that joins later."""
    return list(_make(count, crypto))


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
    with ProcessPoolExecutor(mp_context=WORKERS, initializer=set_threads, initargs=(1,)) as pool:
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
    with replacing(path, mode=0o600) as file:
        file.write(json.dumps(to_builtins(bundle), indent=1).encode() + b"\n")


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
    """The bundle in a file."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise KeyFileError(f"{path} is too large to be a key bundle.")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise KeyFileError(f"The key bundle {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise KeyFileError(f"{path} is not a key bundle: it is not complete JSON.") from None
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise KeyFileError(f"{path} is not a key bundle of Dap-FL.")
    if data.get("version") != _VERSION:
        raise KeyFileError(f"{path} has version {data.get('version')!r}; this Dap-FL reads {_VERSION}.")
    try:
        return _from_builtins(data, engine, allow_insecure_small_keys)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise KeyFileError(
            f"{path} is damaged: a part of the bundle is missing. Get it from the KDC again."
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
        public["committee"] = {
            "keys": keyfile.to_text(bundle.committee.committee),
            "members": bundle.committee.members,
            "group_key": bundle.committee.group_key.hex(),
        }
    if isinstance(bundle, ServerBundle):
        if bundle.pk_kdc_sign is not None:
            public["pk_kdc_sign"] = keyfile.to_text(bundle.pk_kdc_sign)
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
        **public,
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
        if len(found["members"]) != keys.members or len(group_key) != _GROUP_KEY_BYTES:
            raise KeyFileError("The bundle is damaged: its committee is not whole.")
        committee = CommitteeKeys(keys, tuple(map(int, found["members"])), group_key)
    federation = bytes.fromhex(data["federation"])
    pk_sign = {int(i): public(text) for i, text in data["pk_sign"].items()}
    if data["role"] == "server":
        sk_enc = {int(i): private(text) for i, text in data["sk_enc"].items()}
        kdc = public(data["pk_kdc_sign"]) if data.get("pk_kdc_sign") else None
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
    )
