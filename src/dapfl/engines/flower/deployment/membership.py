"""Clients of a deployment join, leave, and get new devices, and nobody else gets a new folder.

The KDC's own file, `kdc.keys`, stays with `authority.key` in the deployment's directory. A change makes the
next `update-001/` there: the folder of the newcomer, and `server.update`, which `dapfl deploy update` applies
to the server's folder.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from dapfl.config import RunConfig
from dapfl.crypto import keyfile
from dapfl.engines.flower.deployment import certificates, prepare
from dapfl.engines.flower.deployment.folders import (
    ClientFolder,
    ClientSettings,
    ServerFolder,
    client_name,
    write,
)
from dapfl.errors import ConfigError, KeyFileError
from dapfl.federation.keys import bundles, kdc
from dapfl.federation.keys.bundles import ClientBundle, ServerBundle, bundle_path, load_bundle
from dapfl.federation.keys.roster import ROSTER, Roster, SignedRoster, admission_path
from dapfl.federation.transport import ClientId

KDC = "kdc.keys"
_FORMAT, _VERSION = "dapfl-kdc", 1


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
    next_client: ClientId


class ServerUpdate(Struct, frozen=True, kw_only=True):
    """What the server is given."""

    format: str = "dapfl-server-update"
    version: int = _VERSION
    roster: bytes
    keys: dict[ClientId, str] = {}
    nodes: dict[ClientId, bytes] = {}


@dataclass(frozen=True)
class Change:
    """What came of a change: where it is, and the client that it is about."""

    path: Path
    client: ClientId
    serial: int


def keep(
    path: Path, place: prepare.Place, settings: ClientSettings, server: ServerBundle, client: ClientBundle
) -> ServerBundle:
    """Makes the KDC's file in a new deployment; returns the server's bundle, which can verify rosters."""
    (key,) = kdc.generate_more(1, settings.run.crypto)
    members = {each: keyfile.to_text(public) for each, public in server.pk_sign.items()}
    newcomer = replace(client, pk_sign={}, share=None)
    file = KdcFile(
        sk_kdc_sign=keyfile.to_text(key),
        newcomer=bundles.to_builtins(newcomer),
        settings=settings,
        host=place.host,
        port=place.port,
        home=str(place.home),
        roster=Roster(server.federation, 0, members),
        next_client=max(server.pk_sign) + 1,
    )
    _save(path, file)
    return replace(server, pk_kdc_sign=key.public_key)


def add(path: Path) -> Change:
    """A folder for one more client."""
    file = _load(path)
    run = file.settings.run
    _refuse_committee(run)
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
    _refuse_committee(file.settings.run)
    _check_member(file, client)
    return _admit(path, file, client)


def remove(path: Path, client: ClientId) -> Change:
    """A roster without a client."""
    file = _load(path)
    _check_member(file, client)
    run = file.settings.run
    left = len(file.roster.members) - 1
    if left < run.min_cohort:
        raise ConfigError(f"{left} clients would be left, and a round needs {run.min_cohort}.")
    if run.crypto.decryption == "committee":
        size, threshold = kdc.committee_of(run.clients, run.crypto)
        members = [each for each in range(1, size + 1) if each in file.roster.members and each != client]
        if len(members) < threshold:
            raise ConfigError(
                f"Client {client} is on the committee: without it only {len(members)} members are left, and "
                f"{threshold} must decrypt together. Make a new deployment without this client."
            )
    roster = file.roster.without(client)
    update = ServerUpdate(roster=_signed(file, roster))
    return _finish(path, msgspec.structs.replace(file, roster=roster), client, update)


def apply(server: ServerFolder, update_file: Path, crypto_small: bool = False) -> Roster:
    """Brings the server's folder up to date; KeyFileError unless the KDC has signed the update."""
    try:
        update = msgspec.msgpack.decode(update_file.read_bytes(), type=ServerUpdate)
    except (OSError, msgspec.MsgspecError):
        raise KeyFileError(f"{update_file} is not an update of 'dapfl deploy'.") from None
    bundle = load_bundle(bundle_path(server.path, None), allow_insecure_small_keys=crypto_small)
    if not isinstance(bundle, ServerBundle) or bundle.pk_kdc_sign is None:
        raise KeyFileError(f"{server.path} is not the server's folder of a deployment that can change.")
    roster = SignedRoster.from_bytes(update.roster).verified(bundle.pk_kdc_sign, bundle.federation)
    current = server.path / ROSTER
    if current.exists():
        old = SignedRoster.from_bytes(current.read_bytes()).verified(bundle.pk_kdc_sign, bundle.federation)
        if roster.serial != old.serial + 1:
            raise KeyFileError(
                f"This is update {roster.serial}, and the server has {old.serial}: apply them in their order."
            )
    elif roster.serial != 1:
        raise KeyFileError(
            f"This is update {roster.serial}: apply the updates in their order, from the first."
        )
    (server.path / "admitted").mkdir(mode=0o700, exist_ok=True)
    for client, key in update.keys.items():
        write(admission_path(server.path, client), key.encode(), private=True)
    for client, public in update.nodes.items():
        write(server.node_key(client), public)
    write(current, update.roster)  # last: until it is there, the server is as it was
    for node in (server.path / "nodes").glob("client-*.pub"):
        if int(node.stem.rpartition("-")[2]) not in roster.members:
            node.unlink()  # so that the SuperLink of this folder is not asked to let it in
    return roster


# Parts -----------------------------------------------------------------------------------------


def _admit(path: Path, file: KdcFile, client: ClientId) -> Change:
    crypto = file.settings.run.crypto
    enc, sign = kdc.generate_more(2, crypto)
    roster = file.roster.with_client(client, sign.public_key)
    common = bundles.from_builtins(file.newcomer, crypto)
    assert isinstance(common, ClientBundle)
    members = {
        each: keyfile.public_from_text(
            text, engine="auto", allow_insecure_small_keys=crypto.allow_insecure_small_keys
        )
        for each, text in roster.members.items()
    }
    bundle = replace(common, client=client, pk_i_enc=enc.public_key, sk_i_sign=sign, pk_sign=members)
    folder = ClientFolder(_update_path(path, roster) / client_name(client))
    node = certificates.make_node_key(client_name(client))
    place = prepare.Place(file.host, file.port, PurePosixPath(file.home))
    authority = (path / "ca.crt").read_bytes()
    settings = msgspec.structs.replace(file.settings, client=client)
    kept = path / "files"
    files = {str(each.relative_to(kept)): each.read_bytes() for each in kept.rglob("*") if each.is_file()}
    prepare.write_client_folder(folder, settings, bundle, place, files, authority, node)
    update = ServerUpdate(
        roster=_signed(file, roster), keys={client: keyfile.to_text(enc)}, nodes={client: node.public}
    )
    return _finish(path, msgspec.structs.replace(file, roster=roster), client, update)


def _finish(path: Path, file: KdcFile, client: ClientId, update: ServerUpdate) -> Change:
    place = _update_path(path, file.roster)
    place.mkdir(mode=0o700, exist_ok=True)
    write(place / "server.update", msgspec.msgpack.encode(update), private=True)
    _save(path, file)  # last: an interrupted change leaves the KDC as it was
    return Change(place, client, file.roster.serial)


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


def _refuse_committee(run: RunConfig) -> None:
    if run.crypto.decryption == "committee":
        raise ConfigError(
            "With decryption by a committee, members check contributions by the keys in their own folders, "
            "and would not know a newcomer's: make a new deployment (dapfl deploy init)."
        )


def _save(path: Path, file: KdcFile) -> None:
    write(path / KDC, json.dumps(msgspec.to_builtins(file)).encode() + b"\n", private=True)


def _load(path: Path) -> KdcFile:
    try:
        file = msgspec.json.decode((path / KDC).read_bytes(), type=KdcFile)
    except OSError as error:
        raise KeyFileError(
            f"{path / KDC} cannot be read: {error.strerror}. Clients are admitted and removed where "
            "'dapfl deploy init' has made the folders."
        ) from None
    except msgspec.MsgspecError:
        raise KeyFileError(f"{path / KDC} is damaged: restore it from a backup.") from None
    if (file.format, file.version) != (_FORMAT, _VERSION):
        raise KeyFileError(f"{path / KDC} is of another version of Dap-FL: use that version.")
    return file
