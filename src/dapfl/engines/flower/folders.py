"""What each participant of a Flower deployment keeps on its disk.

    DEPLOYMENT/
      authority.key          signs certificates; needed by nobody while running
      server/                ca.crt superlink.crt superlink.key superexec.secret nodes/client-001.pub ...
                             server.keys (the KDC's bundle)
      client-001/            ca.crt node.key node.pub node.toml state/
                             client-001.keys client.toml

A run on one machine has the same folders inside its run directory. Programs are started from within a
participant's folder and name its files relatively, so that a folder can be moved to its machine.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dapfl.config import Natural, PolicyConfig, RunConfig
from dapfl.engines.flower import certificates
from dapfl.errors import ConfigError, RunDirectoryError
from dapfl.federation.transport import ClientId
from dapfl.files import replacing


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client knows of the federation; from its own disk, so that no server can talk it into less.

    `threads` is how many cores its cryptography may use, 0 for all.
    """

    client: ClientId
    threads: Natural = 0
    run: RunConfig
    policy: PolicyConfig


@dataclass(frozen=True)
class ServerFolder:
    """The folder of whoever runs the SuperLink."""

    path: Path

    @property
    def authority(self) -> Path:
        """The certificate that vouches for the SuperLink."""
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
        """Shared by the SuperLink and whoever may start ServerApps for it."""
        return self.path / "superexec.secret"

    @property
    def bridge(self) -> Path:
        """Where the ServerApp finds the run that it serves."""
        return self.path / "bridge.json"

    @property
    def home(self) -> Path:
        """Flower's home."""
        return self.path / ".flower"

    def node_key(self, client: ClientId) -> Path:
        """A client's public node key."""
        return self.path / "nodes" / f"{client_name(client)}.pub"

    def node_keys(self) -> dict[bytes, ClientId]:
        """Whose node key is whose, keys in the form that Flower lists them in."""
        found = {
            certificates.node_fingerprint(path.read_bytes()): int(path.stem.rpartition("-")[2])
            for path in sorted((self.path / "nodes").glob("client-*.pub"))
        }
        if not found:
            raise RunDirectoryError(f"{self.path} holds no node keys: it is not the server's folder.")
        return found


@dataclass(frozen=True)
class ClientFolder:
    """The folder of one client."""

    path: Path

    @property
    def authority(self) -> Path:
        """The certificate that vouches for the SuperLink."""
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
    def node_config(self) -> Path:
        """What Flower tells the ClientApp about its node."""
        return self.path / "node.toml"

    @property
    def home(self) -> Path:
        """Flower's home."""
        return self.path / ".flower"

    @property
    def settings_path(self) -> Path:
        """What the client knows of the federation."""
        return self.path / "client.toml"

    def settings(self) -> ClientSettings:
        """What the client knows of the federation; a task file is looked for in the folder."""
        try:
            settings = msgspec.toml.decode(self.settings_path.read_bytes(), type=ClientSettings)
        except OSError as error:
            raise ConfigError(f"{self.settings_path} cannot be read: {error.strerror}.") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.settings_path} cannot be used: {error}.") from None
        file, colon, name = settings.run.task.rpartition(":")
        if not colon:
            return settings
        task = f"{self.path.resolve() / file}:{name}"  # an absolute path stays as it is
        return msgspec.structs.replace(settings, run=msgspec.structs.replace(settings.run, task=task))

    def write_settings(self, settings: ClientSettings) -> None:
        """Writes what the client knows of the federation."""
        write(self.settings_path, to_toml(settings))

    @property
    def state(self) -> Path:
        """The client's memory: agent, replay buffer, measurements, last answer."""
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
    """Makes every participant's folder with the keys that Flower needs (not those of the protocol)."""
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
        own = deployment.client(client)
        for folder in (own.path, own.state, own.home):
            folder.mkdir(exist_ok=True, mode=0o700)
        write(own.authority, authority.public)
        write(own.node_key, node.private, private=True)
        write(own.node_public_key, node.public)
        write(own.node_config, b'state-dir = "."\n')
        write(server.node_key(client), node.public)
    return deployment


def to_toml(settings: msgspec.Struct) -> bytes:
    """Settings as TOML, which has no way to say None: what is None is left out, as it is by default."""
    return msgspec.toml.encode(_without_none(msgspec.to_builtins(settings)))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value


def write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Writes a file whole; a private one is readable by its owner only."""
    with replacing(path, mode=0o600 if private else 0o644) as file:
        file.write(content)
