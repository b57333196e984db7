"""Makes the folders of a deployment on real machines: one for the server and one for each client.

A folder has everything that its participant needs: keys, certificates, settings, and the exact commands as
scripts and as systemd units. docs/deployment.md is the guide.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dapfl.config import PolicyConfig, RunConfig, relocated, relocated_policy
from dapfl.crypto.keys.passphrase import generate
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
from dapfl.engines.flower.deployment.readme import PASSPHRASES, readme
from dapfl.engines.flower.deployment.scripts import Place, write_client_scripts, write_server_scripts
from dapfl.errors import ConfigError, RunDirectoryError
from dapfl.federation.keys.bundles import ClientBundle, bundle_path, save_bundle
from dapfl.federation.run_keys import make_keys
from dapfl.federation.run_terms import check_numbers
from dapfl.learning.tasks import get_task
from dapfl.system.plugins import companions, home_of


def prepare(
    config: RunConfig,
    policy: PolicyConfig,
    path: Path,
    place: Place,
    advance: Callable[[], object] = lambda: None,
    *,
    passphrases: bool = False,
    wheel: Path | None = None,
) -> Deployment:
    """Makes every participant's folder; `advance` is called after each of the `keys_needed` keys.

    With `passphrases` each bundle is under a passphrase of its own, which stays outside of the folders. A
    `wheel` of Dap-FL goes into every folder, also of clients that join later.
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
    if wheel is not None:
        files[wheel.name] = _read_wheel(wheel)
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
    write_server_scripts(server.path, place)
    for client, bundle in keys.clients.items():
        folder = deployment.client(client)
        settings = ClientSettings(client=client, run=config, policy=policy)
        passphrase = new_passphrase(path, client_name(client))
        write_client_folder(folder, settings, bundle, place, files, passphrase=passphrase)
    write_files(server.path, files)
    locked = (path / PASSPHRASES).exists()
    committee = keys.server.committee if keys.server is not None else None
    installed = wheel.name if wheel is not None else None
    text = readme(place, sorted(keys.clients), passphrases=locked, committee=committee, wheel=installed)
    write(path / "README.md", text.encode())
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
    write_client_scripts(folder.path, settings.client, place)
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


def _read_wheel(path: Path) -> bytes:
    if path.suffix != ".whl":
        raise ConfigError(
            f"{path} is no wheel: 'pip wheel --no-deps --wheel-dir . .' in a checkout of Dap-FL makes one."
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"The wheel {path} cannot be read: {error.strerror}.") from None


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
