"""What each participant of a Flower deployment keeps on its disk.

    DEPLOYMENT/
      authority.key          signs certificates; not needed while the federation runs
      server/                ca.crt superlink.crt superlink.key superexec.secret nodes/client-001.pub ...
                             server.keys (the KDC's bundle)
      client-001/            ca.crt node.key node.pub node.secret node.toml state/
                             client-001.keys client.toml

A run on one machine has the same folders inside its run directory. Programs are started in a participant's
folder and refer to its files by relative paths, so the folder can be moved to another machine.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dapfl.config import Natural, PolicyConfig, RunConfig, relocated, relocated_policy
from dapfl.engines.flower.deployment import certificates
from dapfl.errors import ConfigError, RunDirectoryError
from dapfl.federation.transport import ClientId
from dapfl.system.files import replacing

_FORMAT = 1


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client knows about the federation.

    It is read from the client's own disk, so a server cannot weaken it. `threads` is the number of cores that
    its cryptography may use, 0 for all.
    """

    format: int = _FORMAT
    client: ClientId
    threads: Natural = 0
    run: RunConfig
    policy: PolicyConfig


@dataclass(frozen=True)
class ServerFolder:
    """The server's folder."""

    path: Path

    @property
    def authority(self) -> Path:
        """The certificate of the authority that signed the SuperLink's."""
        return self.path / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The SuperLink's certificate."""
        return self.path / "superlink.crt"

    @property
    def key(self) -> Path:
        """The SuperLink's private TLS key."""
        return self.path / "superlink.key"

    @property
    def secret(self) -> Path:
        """The secret by which the SuperLink knows the program that starts its ServerApps."""
        return self.path / "superexec.secret"

    @property
    def bridge(self) -> Path:
        """Tells the ServerApp where `dapfl run` listens."""
        return self.path / "bridge.json"

    @property
    def home(self) -> Path:
        """Flower's own files (FLWR_HOME)."""
        return self.path / ".flower"

    def node_key(self, client: ClientId) -> Path:
        """A client's public node key."""
        return self.path / "nodes" / f"{client_name(client)}.pub"

    def node_keys(self) -> dict[bytes, ClientId]:
        """Which client each node key belongs to; the keys are in the form in which Flower lists them."""
        found = {
            certificates.node_fingerprint(path.read_bytes()): int(path.stem.rpartition("-")[2])
            for path in sorted((self.path / "nodes").glob("client-*.pub"))
        }
        if not found:
            raise RunDirectoryError(
                f"{self.path} has no node keys in it: it is not the server's folder. Give the one that "
                "'dapfl deploy init' has made."
            )
        return found


class NodeKeys:
    """The node keys in the server's folder as they are now: `dapfl deploy update` changes them."""

    def __init__(self, folder: ServerFolder) -> None:
        self._folder = folder
        self._changed = -1
        self._keys: dict[bytes, ClientId] = {}

    def __call__(self) -> dict[bytes, ClientId]:
        """Which client each node key belongs to; the files are read again only if one has changed."""
        changed = (self._folder.path / "nodes").stat().st_mtime_ns  # every file in it is replaced, not edited
        if changed != self._changed:
            self._keys, self._changed = self._folder.node_keys(), changed
        return self._keys


@dataclass(frozen=True)
class ClientFolder:
    """The folder of one client."""

    path: Path

    @property
    def authority(self) -> Path:
        """The certificate of the authority that signed the SuperLink's."""
        return self.path / "ca.crt"

    @property
    def node_key(self) -> Path:
        """The private key by which the SuperLink knows this node."""
        return self.path / "node.key"

    @property
    def node_public_key(self) -> Path:
        """The public half, for registration."""
        return self.path / "node.pub"

    @property
    def node_secret(self) -> Path:
        """The secret by which the SuperNode knows the program that starts its ClientApps."""
        return self.path / "node.secret"

    @property
    def node_config(self) -> Path:
        """The node config, which Flower passes to the ClientApp."""
        return self.path / "node.toml"

    @property
    def home(self) -> Path:
        """Flower's own files (FLWR_HOME)."""
        return self.path / ".flower"

    @property
    def settings_path(self) -> Path:
        """The file with the `ClientSettings`."""
        return self.path / "client.toml"

    def settings(self) -> ClientSettings:
        """Reads the `ClientSettings`; the files that they name are in the folder."""
        try:
            data = msgspec.toml.decode(self.settings_path.read_bytes())
            if (found := data.get("format", _FORMAT)) != _FORMAT:
                raise ConfigError(
                    f"{self.settings_path} is of another version of Dap-FL (it has format {found}, this one "
                    f"reads {_FORMAT}): install the version that made the folder."
                )
            policy = _replaced(data.get("policy", {}), "none", None)
            settings = msgspec.convert(data | {"policy": policy}, ClientSettings)
        except OSError as error:
            raise ConfigError(f"{self.settings_path} cannot be read: {error.strerror}.") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.settings_path} cannot be used: {error}.") from None
        place = self.path.resolve().__truediv__  # an absolute path stays as it is
        return msgspec.structs.replace(
            settings, run=relocated(settings.run, place), policy=relocated_policy(settings.policy, place)
        )

    def write_settings(self, settings: ClientSettings) -> None:
        """Writes the `ClientSettings`."""
        data = msgspec.to_builtins(settings)
        # A policy without a value where the default has one says so, as in a configuration file.
        data["policy"] = _replaced(data["policy"], None, "none")
        write(self.settings_path, to_toml(data))

    @property
    def state(self) -> Path:
        """The folder of the client's saved state: agent, replay buffer, measurements, last answer."""
        return self.path / "state"


@dataclass(frozen=True)
class Deployment:
    """The folders of all participants."""

    path: Path

    @property
    def server(self) -> ServerFolder:
        """The server's folder."""
        return ServerFolder(self.path / "server")

    def client(self, client: ClientId) -> ClientFolder:
        """A client's folder."""
        return ClientFolder(self.path / client_name(client))


def client_name(client: ClientId) -> str:
    """The name of a client's folder and files.

    >>> client_name(7)
    'client-007'
    """
    return f"client-{client:03d}"


def create(path: Path, clients: Sequence[ClientId], hosts: Sequence[str]) -> Deployment:
    """Makes every participant's folder, with the keys that Flower needs but not those of the protocol."""
    deployment = Deployment(path)
    authority = certificates.make_authority("Dap-FL deployment")
    link = certificates.make_server_certificate(authority, hosts)
    server = deployment.server
    for folder in (path, server.path, server.path / "nodes", server.home):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write(path / "authority.key", authority.private, private=True)
    write(server.authority, authority.public)
    write(server.certificate, link.public)
    write(server.key, link.private, private=True)
    write(server.secret, secrets.token_bytes(32), private=True)
    for client in clients:
        node = certificates.make_node_key(client_name(client))
        make_client_folder(deployment.client(client), authority.public, node)
        write(server.node_key(client), node.public)
    return deployment


def make_client_folder(own: ClientFolder, authority: bytes, node: certificates.KeyPair) -> None:
    """A client's folder with what Flower needs: the authority's certificate, and the node's own key."""
    for folder in (own.path, own.state, own.home):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write(own.authority, authority)
    write(own.node_key, node.private, private=True)
    write(own.node_public_key, node.public)
    write(own.node_secret, secrets.token_bytes(32), private=True)
    write(own.node_config, b'state-dir = "."\n')


def to_toml(settings: msgspec.Struct | dict[str, Any]) -> bytes:
    """Settings as TOML. TOML has no None, so such fields are left out; None is their default."""
    return msgspec.toml.encode(_without_none(msgspec.to_builtins(settings)))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value


def _replaced(value: Any, old: str | None, new: str | None) -> Any:
    """A nested value with `new` wherever it has `old`."""
    if isinstance(value, dict):
        return {name: _replaced(inner, old, new) for name, inner in value.items()}
    return new if value == old else value


def write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Writes a file atomically; only its owner can read a private one."""
    with replacing(path, mode=0o600 if private else 0o644) as file:
        file.write(content)
