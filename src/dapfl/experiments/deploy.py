"""The folders of a deployment on real machines: one for the server, one for each client.

Everything that a participant needs is in its folder: keys, certificates, settings, and the exact commands as
scripts and as systemd units. docs/deployment.md walks through it.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from textwrap import dedent

from dapfl.config import RunConfig, override
from dapfl.engines.flower import programs
from dapfl.engines.flower.folders import ClientSettings, Deployment, client_name, create, to_toml, write
from dapfl.errors import ConfigError, RunDirectoryError
from dapfl.experiments.settings import resolve
from dapfl.federation.assembly import make_keys
from dapfl.federation.kdc import bundle_path, save_bundle
from dapfl.federation.transport import ClientId
from dapfl.learning.tasks import get_task

LINK_PORT = 8000
_HOME = PurePosixPath("/opt/dapfl")
_NODE_PORT = 9100  # plus the client's number, so that several nodes can share a machine


@dataclass(frozen=True)
class Place:
    """Where a deployment lives: under which name nodes reach it, and where its folders are put."""

    host: str
    port: int = 9092
    home: PurePosixPath = _HOME

    @property
    def address(self) -> str:
        """What nodes connect to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def prepare(
    config: RunConfig, path: Path, place: Place, advance: Callable[[], object] = lambda: None
) -> Deployment:
    """Makes every participant's folder; `advance` is called for every key made (`keys_needed`)."""
    programs.require_flower()
    if path.exists() and any(path.iterdir()):
        raise RunDirectoryError(f"{path} is not empty: the folders of a deployment go into a new directory.")
    if config.adversaries:
        raise ConfigError("Attackers are for trials on one machine: a deployment has none.")
    policy = resolve(config).policy
    get_task(config.task)  # a task that does not exist is found out before anything is made
    keys = make_keys(config, advance)
    deployment = create(path, sorted(keys.clients), [place.host])
    task_file, config = _portable(config)

    server = deployment.server
    write(server.path / "config.toml", to_toml(config))
    if keys.server is not None:
        save_bundle(bundle_path(server.path, None), keys.server)
    _script(server.path / "start-superlink.sh", programs.superlink("127.0.0.1", LINK_PORT, "superlink.db"))
    _script(server.path / "start-gateway.sh", _gateway(place))
    _script(server.path / "run.sh", _run())
    _unit(server.path, "dapfl-superlink", "start-superlink.sh", place, "Dap-FL SuperLink, on loopback")
    _unit(server.path, "dapfl-gateway", "start-gateway.sh", place, "Dap-FL gateway for SuperNodes")
    for client, bundle in keys.clients.items():
        folder = deployment.client(client)
        folder.write_settings(ClientSettings(client=client, run=config, policy=policy))
        if bundle is not None:
            save_bundle(bundle_path(folder.path, client), bundle)
        _script(folder.path / "start-supernode.sh", programs.supernode(place.address, _NODE_PORT + client))
        _unit(folder.path, "dapfl-supernode", "start-supernode.sh", place, f"Dap-FL {client_name(client)}")
    if task_file is not None:
        for folder_path in (server.path, *(deployment.client(client).path for client in keys.clients)):
            write(folder_path / task_file.name, task_file.read_bytes())
    write(path / "README.md", _readme(place, sorted(keys.clients)).encode())
    return deployment


def _portable(config: RunConfig) -> tuple[Path | None, RunConfig]:
    """The configuration with a task file that lies beside it; the file itself goes along."""
    file, colon, name = config.task.rpartition(":")
    if not colon:
        return None, config
    path = Path(file).resolve()
    return path, override(config, {"task": f"{path.name}:{name}"})


def _gateway(place: Place) -> list[str]:
    listen = f"0.0.0.0:{place.port}"
    return ["dapfl", "deploy", "gateway", ".", "--listen", listen, "--superlink", f"127.0.0.1:{LINK_PORT}"]


def _run() -> list[str]:
    address = f"127.0.0.1:{LINK_PORT}"
    return ["dapfl", "run", "--config", "config.toml", "--superlink", address, "--deployment", "."]


def _script(path: Path, command: list[str]) -> None:
    """A command that finds its folder by itself; more arguments may follow the script's name."""
    exports = "\n".join(f"export {name}={value}" for name, value in programs.OFFLINE.items())
    text = (
        f'#!/bin/sh\nset -eu\ncd "$(dirname "$0")"\n{exports}\nexport FLWR_HOME="$PWD/.flower"\n'
        f'exec {shlex.join(command)} "$@"\n'
    )
    write(path, text.encode())
    path.chmod(0o755)


def _unit(folder: Path, name: str, script: str, place: Place, description: str) -> None:
    """A systemd unit for a folder that has been put under the deployment's home."""
    there = place.home / folder.name
    text = f"""\
        [Unit]
        Description={description}
        Wants=network-online.target time-sync.target
        After=network-online.target time-sync.target

        [Service]
        User=dapfl
        WorkingDirectory={there}
        Environment=PATH={place.home}/venv/bin:/usr/local/bin:/usr/bin:/bin
        Environment=DAPFL_DATA={place.home}/data
        ExecStart={there}/{script}
        # A SuperLink takes a killed node for alive for another minute and sends it away that long.
        Restart=always
        RestartSec=15
        UMask=0077
        NoNewPrivileges=yes
        PrivateTmp=yes
        ProtectSystem=strict
        ProtectHome=yes
        ReadWritePaths={there}

        [Install]
        WantedBy=multi-user.target
        """
    write(folder / f"{name}.service", dedent(text).encode())


def _readme(place: Place, clients: list[ClientId]) -> str:
    names = f"{client_name(clients[0])} ... {client_name(clients[-1])}"
    return dedent(f"""\
        # A Dap-FL deployment

        | folder | goes to | holds |
        |---|---|---|
        | server | {place.host} | the server's keys, the SuperLink's certificate, every node's public key |
        | {names} | one device each | that client's keys, its node key, its settings |
        | authority.key | nowhere | signs certificates: keep it offline, or delete it |

        Whoever holds all folders can read and forge everything: hand each to its owner over a channel that
        you trust, then delete the copies here.

        On every machine: `pip install 'dapfl[flower]'` (here: in {place.home}/venv), and put the folder under
        {place.home}.

            server:  ./start-superlink.sh      on 127.0.0.1:{LINK_PORT} only: its control has no password
                     ./start-gateway.sh        lets SuperNodes in, on port {place.port}, and nobody else
            client:  ./start-supernode.sh
            server:  ./run.sh --out first-run

        Each script has a systemd unit beside it. The guide: docs/deployment.md in Dap-FL's documentation.
        """)
