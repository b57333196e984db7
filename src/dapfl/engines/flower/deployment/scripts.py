"""The exact commands of a deployment, in its folders: scripts, systemd units, and what installs a device."""

import shlex
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from textwrap import dedent

from dapfl.crypto.keys.passphrase import VARIABLE
from dapfl.engines.flower.deployment import programs
from dapfl.engines.flower.deployment.folders import client_name, write
from dapfl.federation.transport import ClientId
from dapfl.system.console import COMMAND

LINK_PORT = 8000
_HOME = PurePosixPath("/opt/dapfl")
# Its socket is for the group of the SuperNode's user; nothing else of it is.
_WORKER_USER = """User=dapfl-worker
        Group=dapfl
        RuntimeDirectory=dapfl-worker
        RuntimeDirectoryMode=0750
        LimitCORE=0"""
_NODE_PORT = 9100  # plus the client's number, so that several nodes can share a machine


@dataclass(frozen=True)
class Place:
    """Where nodes reach the server of a deployment, and where its folders go on their machines."""

    host: str
    port: int = 9092
    home: PurePosixPath = _HOME

    @property
    def address(self) -> str:
        """What nodes connect to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def write_server_scripts(folder: Path, place: Place) -> None:
    """The SuperLink, the gateway, a run, and any other command of `dapfl`."""
    link = f"127.0.0.1:{LINK_PORT}"
    gateway = ["deploy", "gateway", ".", "--listen", f"0.0.0.0:{place.port}", "--superlink", link]
    run = ["run", "--config", "config.toml", "--superlink", link, "--deployment", "."]
    _script(folder / "start-superlink.sh", programs.superlink("127.0.0.1", LINK_PORT, "superlink.db"))
    _script(folder / "start-gateway.sh", ["dapfl", *gateway])
    _script(folder / "run.sh", ["dapfl", *run])
    _script(folder / "dapfl.sh", ["dapfl"])
    _unit(folder, "dapfl-superlink", "start-superlink.sh", place, "Dap-FL SuperLink, on loopback")
    _unit(folder, "dapfl-gateway", "start-gateway.sh", place, "Dap-FL gateway for SuperNodes")


def write_client_scripts(folder: Path, client: ClientId, place: Place) -> None:
    """The SuperNode, the worker, and what makes two services of them."""
    name = client_name(client)
    beside = place.home / name.replace("client", "node")  # where install.sh puts what the SuperNode needs
    _script(folder / "start-supernode.sh", programs.supernode(place.address, _NODE_PORT + client))
    words = f"Dap-FL SuperNode of {name}"
    _unit(folder, "dapfl-supernode", "start-supernode.sh", place, words, there=beside)
    worker = ["python", "-m", "dapfl.engines.flower.apps.worker_service", ".", "/run/dapfl-worker/socket"]
    _script(folder / "start-worker.sh", worker)
    words = f"Dap-FL worker of {name}, with its keys"
    _unit(folder, "dapfl-worker", "start-worker.sh", place, words, _WORKER_USER, data=True)
    write(folder / "install.sh", _install(place.home / name, beside).encode())
    (folder / "install.sh").chmod(0o755)


def _script(path: Path, command: list[str]) -> None:
    """A script that runs a command in its own folder. Arguments of the script go to the command.

    What it finds beside the folder, where the guide puts it, it uses: the environment, otherwise the programs
    on the path; the data; the passphrase. A command that `dapfl` prints is one that works here.
    """
    exports = "\n".join(f"export {name}={value}" for name, value in programs.OFFLINE.items())
    text = f"""\
        #!/bin/sh
        set -eu
        cd "$(dirname "$0")"
        if [ -d ../venv/bin ]; then export PATH="$PWD/../venv/bin:$PATH"; fi
        if [ -d ../data ]; then export DAPFL_DATA="${{DAPFL_DATA:-$PWD/../data}}"; fi
        if [ -f "$PWD.passphrase" ]; then export {VARIABLE}="${{{VARIABLE}:-$PWD.passphrase}}"; fi
        if [ -f dapfl.sh ]; then export {COMMAND}="${{SUDO_USER:+sudo -u $(id -un) }}$PWD/dapfl.sh"; fi
        """
    text = f'{dedent(text)}{exports}\nexport FLWR_HOME="$PWD/.flower"\nexec {shlex.join(command)} "$@"\n'
    write(path, text.encode())
    path.chmod(0o755)


def _install(folder: PurePosixPath, node: PurePosixPath) -> str:
    """Makes two services of a device: a SuperNode, and a worker whose keys and data it cannot read."""
    return dedent(f"""\
        #!/bin/sh
        # Run as root in {folder}; again, if it was interrupted. Afterwards the SuperNode runs as the user
        # dapfl, out of {node}, and the worker with keys, data and agent as dapfl-worker, out of this folder.
        set -eu
        cd "$(dirname "$0")"
        if ! [ . -ef {folder} ]; then
            echo "install.sh: this folder belongs at {folder} ('deploy init --home' names another place)." >&2
            exit 1
        fi
        units=${{DAPFL_UNITS:-/etc/systemd/system}}
        id dapfl >/dev/null 2>&1 || useradd --system --user-group dapfl
        id dapfl-worker >/dev/null 2>&1 || useradd --system --gid dapfl dapfl-worker
        mkdir -p -m 700 {node} {node}/.flower
        for file in ca.crt node.key node.pub node.secret start-supernode.sh; do
            if [ -e $file ]; then mv $file {node}/; fi
        done
        echo 'worker-socket = "/run/dapfl-worker/socket"' > {node}/node.toml
        rm -rf node.toml .flower
        # Whoever owns the folder above could put another one in the worker's place.
        chown root: {folder.parent}
        chmod 711 {folder.parent}
        chmod 700 .
        chown -R dapfl: {node}
        chown -R dapfl-worker: .
        if [ -d ../data ]; then chown -R dapfl-worker: ../data; chmod 700 ../data; fi
        if [ -f {folder}.passphrase ]; then
            chown dapfl-worker: {folder}.passphrase
            chmod 400 {folder}.passphrase
        fi
        for unit in dapfl-worker.service dapfl-supernode.service; do
            if [ -e $unit ]; then mv $unit "$units"/; fi
        done
        systemctl daemon-reload
        systemctl enable dapfl-worker dapfl-supernode
        systemctl restart dapfl-worker dapfl-supernode
        """)


def _unit(
    folder: Path,
    name: str,
    script: str,
    place: Place,
    description: str,
    user: str = "User=dapfl",
    there: PurePosixPath | None = None,
    *,
    data: bool = False,
) -> None:
    """A systemd unit for a folder in the deployment's home."""
    there = there or place.home / folder.name
    # Keys, state and logs are in the folder. Data sets are fetched into the other, if it is there.
    writable = f"{there} -{place.home}/data" if data else str(there)
    variables = f"\n        Environment=DAPFL_DATA={place.home}/data" if data else ""
    text = f"""\
        [Unit]
        Description={description}
        Wants=network-online.target time-sync.target
        After=network-online.target time-sync.target

        [Service]
        {user}
        WorkingDirectory={there}
        Environment=PATH={place.home}/venv/bin:/usr/local/bin:/usr/bin:/bin{variables}
        ExecStart={there}/{script}
        # For up to a minute a SuperLink refuses a node that was killed, as if it were still connected.
        Restart=always
        RestartSec=15
        UMask=0077
        NoNewPrivileges=yes
        PrivateTmp=yes
        ProtectSystem=strict
        ProtectHome=yes
        ReadWritePaths={writable}

        [Install]
        WantedBy=multi-user.target
        """
    write(folder / f"{name}.service", dedent(text).encode())
