"""Flower's own programs: how they are started, here and in the scripts that `dapfl deploy` writes.

Every command is run from within a participant's folder.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping

from dapfl.engines.flower.folders import ClientFolder, ServerFolder
from dapfl.errors import ConfigError

# Without these Flower reports usage, asks for updates and installs packages at every run.
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def require_flower() -> None:
    """ConfigError unless Flower is installed."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("The engine 'flower' needs Flower: pip install 'dapfl[flower]'.")


def environment(folder: ServerFolder | ClientFolder, extra: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment of a Flower program that we start ourselves."""
    scripts = os.path.dirname(sys.executable)  # Flower starts its own programs by name  # noqa: PTH120
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    home = str(folder.home.resolve())
    return {**os.environ, **OFFLINE, **unproxied(), "PATH": path, "FLWR_HOME": home, **extra}


def unproxied() -> dict[str, str]:
    """Keeps what goes to this machine from a proxy for the outside."""
    already = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    hosts = ",".join(filter(None, [already, "127.0.0.1", "localhost"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def polling(nodes: int) -> dict[str, str]:
    """How often a SuperNode's executor asks for work: each question costs a few milliseconds of a core."""
    return {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": f"{min(1.0, 0.1 * nodes):.1f}"}


def superlink(host: str, port: int, database: str | None = None) -> list[str]:
    """The SuperLink: takes only registered nodes, over TLS; leaves the ServerApp to `superexec`."""
    return [
        "flower-superlink",
        *("--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", "ca.crt"),
        *("--ssl-certfile", "superlink.crt"),
        *("--ssl-keyfile", "superlink.key"),
        "--enable-supernode-auth",
        *(("--database", database) if database else ()),
        *("--isolation", "process", "--superexec-auth-secret-file", "superexec.secret"),
        "--disable-runtime-dependency-installation",
    ]


def superexec(address: str, parent: int) -> list[str]:
    """Starts the ServerApp beside the run that it belongs to, wherever the SuperLink is."""
    return [
        "flower-superexec",
        *("--runtime-api-address", address),
        *("--root-certificates", "ca.crt"),
        *("--superexec-auth-secret-file", "superexec.secret"),
        *("--parent-pid", str(parent)),
    ]


def supernode(address: str, port: int) -> list[str]:
    """A SuperNode; `port` is where its own ClientApps reach it, on loopback."""
    return [
        "flower-supernode",
        *("--superlink", address),
        *("--root-certificates", "ca.crt"),
        *("--auth-supernode-private-key", "node.key"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", "node.toml"),
    ]
