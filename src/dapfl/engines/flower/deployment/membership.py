"""Clients of a deployment join, leave, and get new devices, and nobody else gets a new folder.

The KDC's own file, `kdc.keys`, stays with `authority.key` in the deployment's directory. A change makes the
next `update-001/` there: the folder of the newcomer, and `server.update`, which `dapfl deploy update` applies
to the server's folder. The others get their new keys with the roster, which CS sends them with its next call.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from dapfl.config import CryptoConfig
from dapfl.crypto.keys import keyfile
from dapfl.engines.flower.deployment import certificates, prepare
from dapfl.engines.flower.deployment.folders import (
    ClientFolder,
    ClientSettings,
    ServerFolder,
    client_name,
    write,
)
from dapfl.engines.flower.deployment.readme import PASSPHRASES
from dapfl.engines.flower.deployment.scripts import Place
from dapfl.errors import ConfigError, KeyFileError
from dapfl.federation.global_model.parameters import MOST_ROSTER_BYTES
from dapfl.federation.keys import bundles, kdc
from dapfl.federation.keys.bundles import (
    ClientBundle,
    DecryptionKeys,
    ServerBundle,
    bundle_path,
    load_server_bundle,
)
from dapfl.federation.keys.roster import INDIVIDUAL_KEY_BYTES, Roster, SignedRoster, part_of
from dapfl.federation.keys.updates import Enrolment, ServerPart, ServerRosters, ServerUpdate
from dapfl.federation.participants import smallest_cohort
from dapfl.federation.transport import ClientId

KDC = "kdc.keys"
_FORMAT, _VERSION = "dapfl-kdc", 2


class KdcFile(Struct, frozen=True, kw_only=True):
    """What the KDC keeps, to admit and remove clients later: its signing key, what every client of the
    federation has, and the roster."""

    format: str = _FORMAT
    version: int = _VERSION
    sk_kdc_sign: str
    newcomer: dict[str, Any]  # the bundle of a client, without what is that client's own
    settings: ClientSettings
    host: str
    port: int
    home: str
    roster: Roster
    individual_keys: dict[ClientId, str]  # by which it sends each client new keys
    committee: tuple[ClientId, ...] = ()  # who decrypts, if not everybody
    next_client: ClientId


class _Head(Struct, frozen=True):
    format: str
    version: int


@dataclass(frozen=True)
class Change:
    """What came of a change: where it is, and the client that it is about."""

    path: Path
    client: ClientId
    serial: int
    passphrase: Path | None = None  # of the newcomer


def keep(
    path: Path,
    place: Place,
    settings: ClientSettings,
    server: ServerBundle,
    clients: Mapping[ClientId, ClientBundle],
) -> tuple[ServerBundle, dict[ClientId, ClientBundle]]:
    """Makes the KDC's file in a new deployment; returns the bundles with what a change needs."""
    (key,) = kdc.generate_more(1, settings.run.crypto)
    individual = {client: secrets.token_bytes(INDIVIDUAL_KEY_BYTES) for client in clients}
    able = {
        client: replace(bundle, pk_kdc_sign=key.public_key, individual_key=individual[client])
        for client, bundle in clients.items()
    }
    newcomer = replace(able[min(able)], pk_sign={}, share=None, individual_key=None)
    file = KdcFile(
        sk_kdc_sign=keyfile.to_text(key),
        newcomer=bundles.to_builtins(newcomer),
        settings=settings,
        host=place.host,
        port=place.port,
        home=str(place.home),
        roster=Roster(server.federation, 0, {i: keyfile.to_text(each) for i, each in server.pk_sign.items()}),
        individual_keys={client: secret.hex() for client, secret in individual.items()},
        committee=server.committee.members if server.committee else (),
        next_client=max(server.pk_sign) + 1,
    )
    _save(path, file)
    return replace(server, pk_kdc_sign=key.public_key), able


def add(path: Path) -> Change:
    """A folder for one more client."""
    file = _load(path)
    run = file.settings.run
    if run.partition != "own":
        raise ConfigError(
            "In this deployment every device has its share of a common data set, by its number: there is "
            "none for one more. Replace a client, or make a deployment with --own-data."
        )
    if len(file.roster.members) >= max(run.room or 0, run.clients):
        raise ConfigError(
            f"There is room for {max(run.room or 0, run.clients)} clients in this federation: remove one, or "
            "make a deployment with more --room."
        )
    return _admit(path, msgspec.structs.replace(file, next_client=file.next_client + 1), file.next_client)


def replace_client(path: Path, client: ClientId) -> Change:
    """A folder with new keys for a client whose device is lost; the old keys become worthless."""
    file = _load(path)
    _check_member(file, client)
    return _admit(path, file, client)


def remove(path: Path, client: ClientId) -> Change:
    """A roster without a client."""
    file = _load(path)
    _check_member(file, client)
    run = file.settings.run
    left = len(file.roster.members) - 1
    needed = smallest_cohort(run)
    if left < needed:
        raise ConfigError(f"{left} clients would be left, and a round needs {needed}: admit another first.")
    return _change(path, file, file.roster.without(client), client)


def apply(server: ServerFolder, update_file: Path, crypto: CryptoConfig) -> Enrolment:
    """Brings the server's folder up to date; KeyFileError unless the KDC has signed the update."""
    update = ServerUpdate.read(update_file)
    small = crypto.allow_insecure_small_keys
    bundle = load_server_bundle(bundle_path(server.path, None), allow_insecure_small_keys=small)
    enrolment = ServerRosters(server.path, bundle, crypto).add(update)
    for client, public in update.server.nodes.items():
        write(server.node_key(client), public)
    for node in (server.path / "nodes").glob("client-*.pub"):
        if int(node.stem.rpartition("-")[2]) not in enrolment.members:
            node.unlink()
    return enrolment


# Parts -----------------------------------------------------------------------------------------


def _admit(path: Path, file: KdcFile, client: ClientId) -> Change:
    """A folder for a client with new keys of its own, and the roster with them."""
    crypto = file.settings.run.crypto
    enc, sign = kdc.generate_more(2, crypto)
    individual = secrets.token_hex(INDIVIDUAL_KEY_BYTES)
    file = msgspec.structs.replace(file, individual_keys={**file.individual_keys, client: individual})
    node = certificates.make_node_key(client_name(client))
    roster = file.roster.with_client(client, sign.public_key)
    own = {
        "client": client,
        "pk_i_enc": keyfile.to_text(enc.public_key),
        "sk_i_sign": keyfile.to_text(sign),
        "individual_key": individual,
        "pk_sign": roster.members,
    }

    def write_folder(keys: DecryptionKeys) -> None:
        bundle = bundles.from_builtins(file.newcomer | own | part_of(client, keys), crypto)
        assert isinstance(bundle, ClientBundle)
        folder = ClientFolder(_update_path(path, roster) / client_name(client))
        place = Place(file.host, file.port, PurePosixPath(file.home))
        settings = msgspec.structs.replace(file.settings, client=client)
        kept = path / "files"
        files = {str(each.relative_to(kept)): each.read_bytes() for each in kept.rglob("*") if each.is_file()}
        authority = (path / "ca.crt").read_bytes()
        passphrase = prepare.new_passphrase(path, client_name(client))
        prepare.write_client_folder(folder, settings, bundle, place, files, authority, node, passphrase)

    keys, nodes = {client: keyfile.to_text(enc)}, {client: node.public}
    return _change(path, file, roster, client, keys, nodes, write_folder)


def _change(
    path: Path,
    file: KdcFile,
    roster: Roster,
    client: ClientId,
    keys: Mapping[ClientId, str] = {},
    nodes: Mapping[ClientId, bytes] = {},
    write_folder: Callable[[DecryptionKeys], None] = lambda _: None,
) -> Change:
    """The next roster, with new decryption keys for everyone who is on it, and for nobody else."""
    run = file.settings.run
    seats = [each for each in file.committee if each in roster.members]
    ids = [*seats, *(each for each in roster.members if each not in seats)]
    # A committee that grew would need larger cohorts than the devices ask for in their settings.
    decryption = kdc.make_decryption_keys(ids, min(len(ids), run.clients), run.crypto)
    part = ServerPart.of(decryption, keys, nodes)
    individual = {each: bytes.fromhex(file.individual_keys[each]) for each in roster.members}
    roster = msgspec.structs.replace(roster.with_keys(decryption, individual), server=part.digest)
    signed = _signed(file, roster)
    if len(signed) > MOST_ROSTER_BYTES:
        raise ConfigError(f"A roster of {len(roster.members)} clients is too large to travel.")
    place = _update_path(path, roster)
    place.mkdir(mode=0o700, exist_ok=True)
    write_folder(decryption)
    write(place / "server.update", ServerUpdate(roster=signed, server=part).to_bytes(), private=True)
    # Last: an interrupted change leaves the KDC as it was.
    kept = msgspec.structs.replace(roster, sealed={})
    committee = decryption.committee.members if decryption.committee else ()
    _save(path, msgspec.structs.replace(file, roster=kept, committee=committee))
    passphrase = path / PASSPHRASES / f"{client_name(client)}.passphrase"
    return Change(place, client, roster.serial, passphrase if passphrase.exists() else None)


def _update_path(path: Path, roster: Roster) -> Path:
    return path / f"update-{roster.serial:03d}"


def _signed(file: KdcFile, roster: Roster) -> bytes:
    small = file.settings.run.crypto.allow_insecure_small_keys
    key = keyfile.private_from_text(file.sk_kdc_sign, allow_insecure_small_keys=small)
    return SignedRoster.sign(roster, key).to_bytes()


def _check_member(file: KdcFile, client: ClientId) -> None:
    if client not in file.roster.members:
        there = ", ".join(map(str, file.roster.members))
        raise ConfigError(f"There is no client {client} in this federation: its clients are {there}.")


def _save(path: Path, file: KdcFile) -> None:
    write(path / KDC, json.dumps(msgspec.to_builtins(file)).encode() + b"\n", private=True)


def _load(path: Path) -> KdcFile:
    try:
        content = (path / KDC).read_bytes()
        head = msgspec.json.decode(content, type=_Head)
        if (head.format, head.version) != (_FORMAT, _VERSION):
            raise KeyFileError(
                f"{path / KDC} is of another version of Dap-FL (it has format {head.version}, this one reads "
                f"{_VERSION}): use the version that made it."
            )
        return msgspec.json.decode(content, type=KdcFile)
    except OSError as error:
        raise KeyFileError(
            f"{path / KDC} cannot be read: {error.strerror}. Clients are admitted and removed where "
            "'dapfl deploy init' has made the folders."
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise KeyFileError(f"{path / KDC} is damaged: restore it from a backup.") from None
