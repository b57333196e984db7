"""Where a node of a Flower app has its keys."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from flwr.app import Context

from dapfl.errors import KeyFileError, ProtocolError
from dapfl.federation.keys.bundles import (
    ClientBundle,
    ServerBundle,
    bundle_path,
    load_client_bundle,
    load_server_bundle,
    save_bundles,
)
from dapfl.federation.transport import ClientId

ENVIRONMENT = "DAPFL_KEYS"
_HOW = "Make keys with `dapfl keys generate --clients N --out keys`"


def client_number(context: Context) -> ClientId | None:
    """Which client a node is by its `partition-id`, if it has one."""
    partition = context.node_config.get("partition-id")
    return None if partition is None else int(partition) + 1


def load_client_keys(
    folder: str | Path | None, context: Context, *, allow_insecure_small_keys: bool
) -> ClientBundle:
    """The keys of this node: from the folder or file given, the one that `keys` in its node config or in the
    run config names, the one in the environment, or, in a simulation, the ones that the strategy has made."""
    place = Path(str(_named(folder, context) or _of_simulation(context.run_id)))
    return _load(_bundle_file(place, context), allow_insecure_small_keys)


def check_state_folder(folder: str | Path | None, context: Context, bundle: ClientBundle) -> None:
    """ProtocolError if a member of the committee would forget what it has decrypted when its node restarts.

    In a simulation nothing outlives the run, and all keys are on one machine.
    """
    if bundle.share is not None and _named(folder, context) and not context.node_config.get("state-dir"):
        raise ProtocolError(
            "no-state-dir",
            "this node is on the committee, and must keep on its disk what it has decrypted: start its "
            "SuperNode with --node-config \"state-dir='/a/folder/of/its/own'\"",
        )


def _named(folder: str | Path | None, context: Context) -> str:
    named = folder or context.node_config.get("keys") or context.run_config.get("keys")
    return str(named or os.environ.get(ENVIRONMENT) or "")


def _bundle_file(place: Path, context: Context) -> Path:
    if place.is_file():
        return place
    if place == _simulation_folder(context.run_id) and not place.is_dir():
        raise KeyFileError(
            f"This node has no keys. {_HOW}, give each node its own file, and start its SuperNode with "
            "--node-config \"keys='/path/to/the/folder'\"."
        )
    number = client_number(context)
    found = sorted(place.glob("client-*.keys"))
    if len(found) == 1:
        return found[0]
    if number is None:
        raise KeyFileError(
            f"{place} holds the keys of {len(found)} clients, and this node has no partition-id: "
            "leave only its own there."
        )
    return bundle_path(place, number)


@lru_cache(maxsize=256)
def _load(path: Path, allow_insecure_small_keys: bool) -> ClientBundle:
    return load_client_bundle(path, allow_insecure_small_keys=allow_insecure_small_keys)


def load_server_keys(place: Path, *, allow_insecure_small_keys: bool) -> ServerBundle:
    """The server's keys, from a folder or a file."""
    path = place if place.is_file() else bundle_path(place, None)
    return load_server_bundle(path, allow_insecure_small_keys=allow_insecure_small_keys)


# Simulations -----------------------------------------------------------------------------------


def _simulation_folder(run: int) -> Path:
    """The same in all processes of a run of Flower on one machine, and in no other's."""
    return Path(tempfile.gettempdir()) / f"dapfl-keys-{os.getuid()}-{run}"


def _of_simulation(run: int) -> Path:
    """The folder, if it is there; only its owner may be able to write into it."""
    folder = _simulation_folder(run)
    if folder.is_dir():
        facts = folder.lstat()
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise KeyFileError(
                f"The keys in {folder} are not this user's own: remove the folder, and start again."
            )
    return folder


@contextmanager
def simulation_keys(run: int, server: ServerBundle, clients: dict[ClientId, ClientBundle]) -> Iterator[None]:
    """Puts keys where the nodes of a simulation look for them, and removes them in the end."""
    folder = _simulation_folder(run)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise KeyFileError(f"The folder {folder} cannot be made: {error.strerror}.") from None
    try:
        save_bundles(folder, server, clients)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
