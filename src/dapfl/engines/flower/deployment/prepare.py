"""Makes the folders of a deployment on real machines: one for the server and one for each client.

A folder has everything that its participant needs: keys, certificates, settings, and the exact commands as
scripts and as systemd units. docs/deployment.md is the guide.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from textwrap import dedent

from dapfl.config import PolicyConfig, RunConfig, relocated, relocated_policy
from dapfl.crypto.keys.passphrase import VARIABLE, generate
from dapfl.engines.flower.deployment import certificates, programs
from dapfl.engines.flower.deployment.folders import (
    ClientFolder,
    ClientSettings,
    Deployment,
    client_name,
    create,
    make_client_folder,
    to_toml,
    write,
)
from dapfl.errors import ConfigError, RunDirectoryError
from dapfl.federation.keys.bundles import ClientBundle, CommitteeKeys, bundle_path, save_bundle
from dapfl.federation.run_keys import make_keys
from dapfl.federation.run_terms import check_numbers
from dapfl.federation.transport import ClientId
from dapfl.learning.tasks import get_task
from dapfl.system.plugins import companions, home_of

LINK_PORT = 8000
PASSPHRASES = "passphrases"
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


def prepare(
    config: RunConfig,
    policy: PolicyConfig,
    path: Path,
    place: Place,
    advance: Callable[[], object] = lambda: None,
    *,
    passphrases: bool = False,
) -> Deployment:
    """Makes every participant's folder; `advance` is called after each of the `keys_needed` keys.

    With `passphrases` each bundle is under a passphrase of its own, which stays outside of the folders.
    """
    from dapfl.engines.flower.deployment import membership  # which makes folders by this module

    programs.require_flower()
    if path.exists() and any(path.iterdir()):
        raise RunDirectoryError(f"{path} is not empty: the folders of a deployment go into a new directory.")
    if config.adversaries:
        raise ConfigError("A deployment cannot have adversaries: they are for trials on one machine.")
    get_task(config.task)  # fails before anything is made if there is no such task
    check_numbers(config)
    files, config, policy = _portable(config, policy)
    keys = make_keys(config, advance)
    deployment = create(path, sorted(keys.clients), [place.host])

    server = deployment.server
    write(server.path / "config.toml", to_toml(config))
    if keys.server is not None:
        bundles = {client: bundle for client, bundle in keys.clients.items() if bundle is not None}
        settings = ClientSettings(client=min(bundles), run=config, policy=policy)
        able, bundles = membership.keep(path, place, settings, keys.server, bundles)
        keys = replace(keys, server=able, clients=bundles)
        if passphrases:
            (path / PASSPHRASES).mkdir(mode=0o700)
        save_bundle(bundle_path(server.path, None), able, new_passphrase(path, "server"))
        write(path / "ca.crt", server.authority.read_bytes())
        (path / "files").mkdir(mode=0o700)
        write_files(path / "files", files)
    _script(server.path / "start-superlink.sh", programs.superlink("127.0.0.1", LINK_PORT, "superlink.db"))
    _script(server.path / "start-gateway.sh", _gateway(place))
    _script(server.path / "run.sh", _run())
    _unit(server.path, "dapfl-superlink", "start-superlink.sh", place, "Dap-FL SuperLink, on loopback")
    _unit(server.path, "dapfl-gateway", "start-gateway.sh", place, "Dap-FL gateway for SuperNodes")
    for client, bundle in keys.clients.items():
        folder = deployment.client(client)
        settings = ClientSettings(client=client, run=config, policy=policy)
        passphrase = new_passphrase(path, client_name(client))
        write_client_folder(folder, settings, bundle, place, files, passphrase=passphrase)
    write_files(server.path, files)
    readme = _readme(place, sorted(keys.clients))
    if (path / PASSPHRASES).exists():
        readme += _LOCKED
    if keys.server is not None and keys.server.committee is not None:
        readme += _committee(keys.server.committee)
    write(path / "README.md", readme.encode())
    return deployment


def write_client_folder(
    folder: ClientFolder,
    settings: ClientSettings,
    bundle: ClientBundle | None,
    place: Place,
    files: Mapping[str, bytes],
    authority: bytes | None = None,
    node: certificates.KeyPair | None = None,
    passphrase: str | None = None,
) -> None:
    """What a device needs. A client that joins later also needs what `create` has made for the others."""
    if authority is not None and node is not None:
        make_client_folder(folder, authority, node)
    folder.write_settings(settings)
    if bundle is not None:
        save_bundle(bundle_path(folder.path, settings.client), bundle, passphrase)
    port = _NODE_PORT + settings.client
    _script(folder.path / "start-supernode.sh", programs.supernode(place.address, port))
    name = client_name(settings.client)
    beside = place.home / name.replace("client", "node")  # where install.sh puts what the SuperNode needs
    words = f"Dap-FL SuperNode of {name}"
    _unit(folder.path, "dapfl-supernode", "start-supernode.sh", place, words, there=beside)
    _script(folder.path / "start-worker.sh", _worker())
    words = f"Dap-FL worker of {name}, with its keys"
    _unit(folder.path, "dapfl-worker", "start-worker.sh", place, words, _WORKER_USER)
    write(folder.path / "install.sh", _install(place.home / name, beside).encode())
    (folder.path / "install.sh").chmod(0o755)
    write_files(folder.path, files)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """The user's own files that a run needs, some of them in folders."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, content)


def new_passphrase(path: Path, participant: str) -> str | None:
    """A passphrase for a participant's bundle, kept in the deployment's directory; None if it uses none."""
    folder = path / PASSPHRASES
    if not folder.exists():
        return None
    made = generate()
    write(folder / f"{participant}.passphrase", made.encode() + b"\n", private=True)
    return made


def _portable(config: RunConfig, policy: PolicyConfig) -> tuple[dict[str, bytes], RunConfig, PolicyConfig]:
    """The files that a run names, and the run with these files in a participant's folder."""
    found: dict[str, Path] = {}

    def beside(file: Path) -> Path:
        home = home_of(file) if file.suffix == ".py" else file.resolve().parent
        for each in sorted(companions(file)) if file.suffix == ".py" and file.is_file() else [file.resolve()]:
            name = str(each.relative_to(home))
            if found.setdefault(name, each) != each:
                raise ConfigError(
                    f"{found[name]} and {each} would get the same name in a folder: rename one."
                )
        return file.resolve().relative_to(home)

    try:
        config, policy = relocated(config, beside), relocated_policy(policy, beside)
        return {name: file.read_bytes() for name, file in found.items()}, config, policy
    except OSError as error:
        raise ConfigError(f"The file {error.filename} cannot be read: {error.strerror}.") from None


def _gateway(place: Place) -> list[str]:
    listen = f"0.0.0.0:{place.port}"
    return ["dapfl", "deploy", "gateway", ".", "--listen", listen, "--superlink", f"127.0.0.1:{LINK_PORT}"]


def _run() -> list[str]:
    address = f"127.0.0.1:{LINK_PORT}"
    return ["dapfl", "run", "--config", "config.toml", "--superlink", address, "--deployment", "."]


def _script(path: Path, command: list[str]) -> None:
    """A script that runs a command in its own folder. Arguments of the script go to the command."""
    exports = "\n".join(f"export {name}={value}" for name, value in programs.OFFLINE.items())
    # The environment beside the folder, as the guide installs it; otherwise the programs on the path.
    find = 'if [ -d ../venv/bin ]; then export PATH="$PWD/../venv/bin:$PATH"; fi\n'
    find += 'if [ -d ../data ]; then export DAPFL_DATA="${DAPFL_DATA:-$PWD/../data}"; fi'
    text = (
        f'#!/bin/sh\nset -eu\ncd "$(dirname "$0")"\n{find}\n{exports}\nexport FLWR_HOME="$PWD/.flower"\n'
        f'exec {shlex.join(command)} "$@"\n'
    )
    write(path, text.encode())
    path.chmod(0o755)


def _worker() -> list[str]:
    """The worker as a service under a user of its own (see docs/deployment.md)."""
    return ["python", "-m", "dapfl.engines.flower.apps.worker_service", ".", "/run/dapfl-worker/socket"]


def _install(folder: PurePosixPath, node: PurePosixPath) -> str:
    """Makes two services of a device: a SuperNode, and a worker whose keys and data it cannot read."""
    return dedent(f"""\
        #!/bin/sh
        # Run as root, once, in {folder}. Afterwards the SuperNode runs as the user dapfl, out of {node},
        # and the worker with keys, data and agent as dapfl-worker, out of this folder.
        set -eu
        cd "$(dirname "$0")"
        units=${{DAPFL_UNITS:-/etc/systemd/system}}
        id dapfl >/dev/null 2>&1 || useradd --system --user-group dapfl
        id dapfl-worker >/dev/null 2>&1 || useradd --system --gid dapfl dapfl-worker
        mkdir -m 700 {node}
        mv ca.crt node.key node.pub node.secret start-supernode.sh .flower {node}/
        echo 'worker-socket = "/run/dapfl-worker/socket"' > {node}/node.toml
        rm node.toml
        chmod 711 {folder.parent}
        chmod 700 .
        chown -R dapfl: {node}
        chown -R dapfl-worker: .
        mv dapfl-worker.service dapfl-supernode.service "$units"/
        systemctl daemon-reload
        systemctl enable --now dapfl-worker dapfl-supernode
        """)


def _unit(
    folder: Path,
    name: str,
    script: str,
    place: Place,
    description: str,
    user: str = "User=dapfl",
    there: PurePosixPath | None = None,
) -> None:
    """A systemd unit for a folder in the deployment's home."""
    there = there or place.home / folder.name
    text = f"""\
        [Unit]
        Description={description}
        Wants=network-online.target time-sync.target
        After=network-online.target time-sync.target

        [Service]
        {user}
        WorkingDirectory={there}
        Environment=PATH={place.home}/venv/bin:/usr/local/bin:/usr/bin:/bin
        Environment=DAPFL_DATA={place.home}/data
        ExecStart={there}/{script}
        # For up to a minute a SuperLink refuses a node that was killed, as if it were still connected.
        Restart=always
        RestartSec=15
        UMask=0077
        NoNewPrivileges=yes
        PrivateTmp=yes
        ProtectSystem=strict
        ProtectHome=yes
        # Keys, state and logs are in the folder. Data sets are fetched into the other, if it is there.
        ReadWritePaths={there} -{place.home}/data

        [Install]
        WantedBy=multi-user.target
        """
    write(folder / f"{name}.service", dedent(text).encode())


def _readme(place: Place, clients: list[ClientId]) -> str:
    names = f"{client_name(clients[0])} ... {client_name(clients[-1])}"
    return dedent(f"""\
        # A Dap-FL deployment

        | folder | goes to | contains |
        |---|---|---|
        | server | {place.host} | the server's keys, the SuperLink's certificate, every node's public key |
        | {names} | one device each | that client's keys, its node key, its settings |
        | authority.key, kdc.keys, ... | nowhere | sign certificates and rosters: keep them offline |

        Anyone who has all the folders can read and forge everything. Give each one to its owner over a
        channel that you trust, and delete the copies here.

        On every machine, put the folder into {place.home} and install Dap-FL with Flower there:
        `{place.home}/venv/bin/pip install "$(echo dapfl-*.whl)[train,flower]"`. The wheel is made in a
        checkout of Dap-FL by `pip wheel --no-deps .`.

            server:  ./start-superlink.sh      on 127.0.0.1:{LINK_PORT} only, since it has no password
                     ./start-gateway.sh        on port {place.port}: lets SuperNodes in, and nobody else
            client:  sudo ./install.sh         a SuperNode, and a worker whose keys it cannot read
            server:  ./run.sh --out first-run

        When clients come and go (each makes update-001/, ... here):

            dapfl deploy add .                one more client: a folder for it, server.update for the server
            dapfl deploy replace . CLIENT     a lost device: a folder with new keys, server.update
            dapfl deploy remove . CLIENT      server.update only
            server:  dapfl deploy update FOLDER server.update; the others get the roster with the next round

        To try it without systemd: ./start-supernode.sh, as the one user that owns the folder.
        There is a systemd unit for each program that keeps running. The full guide is docs/deployment.md in
        Dap-FL's documentation.
        """)


_LOCKED = f"""
## Passphrases

Every bundle of keys is under a passphrase of its own, in {PASSPHRASES}/. Tell each owner theirs over another
channel than the one that the folder takes, and delete the copies here. The owner puts it into a file that
only the programs' user can read, not in the folder, and names that file before starting them:
`export {VARIABLE}=FILE` (in a systemd unit: `Environment={VARIABLE}=FILE`).
"""


def _committee(keys: CommitteeKeys) -> str:
    names = ", ".join(map(client_name, sorted(keys.members)))
    needed, off = keys.committee.threshold, keys.committee.members - keys.committee.threshold
    return dedent(f"""
        ## The committee

        {names} decrypt together: any {needed} of them. At most {off} may be off in a round; with fewer than
        {needed} the round is lost and the model stays. Put these folders on devices that are always on, and
        under different owners. A device that is replaced takes over its folder, with the folder `state` in
        it: there it has noted what it has decrypted. docs/threshold.md says what to do if a folder is lost
        or stolen.
        """)
