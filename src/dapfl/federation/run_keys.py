"""The keys of a run: made, saved and loaded as its configuration says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dapfl.config import RunConfig
from dapfl.federation.adversaries.adversary import check_names
from dapfl.federation.adversaries.insiders import INSIDERS, FalseShare
from dapfl.federation.keys import bundles, kdc
from dapfl.federation.keys.bundles import ClientBundle, ServerBundle
from dapfl.federation.keys.updates import ServerRosters
from dapfl.federation.transport import ClientId


@dataclass(frozen=True)
class Keys:
    """Every participant's bundle; None where nothing is encrypted."""

    server: ServerBundle | None
    clients: Mapping[ClientId, ClientBundle | None]
    insiders: Mapping[ClientId, ClientBundle | None]
    rosters: ServerRosters | None = None
    """In a deployment whose clients may change."""

    @property
    def members(self) -> tuple[ClientId, ...] | None:
        """The clients as of now, where they may change; None for 1 to N."""
        return self.rosters.at(self.rosters.newest).members if self.rosters else None


def make_keys(config: RunConfig, advance: Callable[[], object] = lambda: None) -> Keys:
    """Phase 0 inside one process: the KDC makes the keys of a whole run."""
    everyone = range(1, config.clients + len(_insiders(config)) + 1)
    if config.crypto.encryption == "none":
        return _split(config, None, dict.fromkeys(everyone))
    attackers = [config.clients + k for k, name in enumerate(_insiders(config), 1) if name == FalseShare.name]
    server, clients = kdc.generate(len(everyone), config.crypto, advance, seats=attackers)
    return _split(config, server, clients)


def save_keys(folder: Path, keys: Keys) -> None:
    """Writes every bundle of a run into a folder; a run without keys writes nothing."""
    if keys.server is not None:
        clients = {i: bundle for i, bundle in {**keys.clients, **keys.insiders}.items() if bundle is not None}
        bundles.save_bundles(folder, keys.server, clients)


def load_keys(config: RunConfig, folder: Path) -> Keys:
    """The bundles that `save_keys` wrote for this run."""
    crypto = config.crypto
    server, clients = bundles.load_bundles(
        folder, engine=crypto.engine, allow_insecure_small_keys=crypto.allow_insecure_small_keys
    )
    return _split(config, server, clients)


def load_server_keys(config: RunConfig, folder: Path) -> Keys:
    """The server's own bundle: all that CS has when the clients are on machines of their own."""
    path, insecure = bundles.bundle_path(folder, None), config.crypto.allow_insecure_small_keys
    bundle = bundles.load_server_bundle(path, engine=config.crypto.engine, allow_insecure_small_keys=insecure)
    rosters = ServerRosters(folder, bundle, config.crypto) if bundle.pk_kdc_sign is not None else None
    return Keys(bundle, {}, {}, rosters)


def keys_needed(config: RunConfig) -> int:
    """How often `make_keys` calls `advance`."""
    if config.crypto.encryption == "none":
        return 0
    return kdc.keys_needed(config.clients + len(_insiders(config)))


def _insiders(config: RunConfig) -> list[str]:
    check_names(config.adversaries)
    return [name for name in config.adversaries if name in INSIDERS]


def _split(
    config: RunConfig, server: ServerBundle | None, bundles: Mapping[ClientId, ClientBundle | None]
) -> Keys:
    honest = {client: bundle for client, bundle in bundles.items() if client <= config.clients}
    insiders = {client: bundle for client, bundle in bundles.items() if client > config.clients}
    return Keys(server, honest, insiders)
