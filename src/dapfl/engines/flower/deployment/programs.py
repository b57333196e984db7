"""The command lines of Flower's programs, for runs on this machine and for the scripts of a deployment.

Every command is to be run in a participant's folder.
"""

import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping

from dapfl.engines.flower.deployment.folders import ClientFolder, ServerFolder
from dapfl.errors import ConfigError

# Without these settings Flower reports usage, looks for updates and installs packages at every run.
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def require_flower() -> None:
    """ConfigError unless Flower is installed."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(
            "The engine 'flower' needs Flower, which is not installed: pip install '.[flower]' in a checkout "
            "of Dap-FL, or pip install 'dapfl-....whl[flower]' with its wheel."
        )


def environment(folder: ServerFolder | ClientFolder, extra: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment of a Flower program that we start ourselves."""
    scripts = os.path.dirname(sys.executable)  # Flower starts its own programs by name  # noqa: PTH120
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    home = str(folder.home.resolve())
    return {**os.environ, **OFFLINE, **unproxied(), "PATH": path, "FLWR_HOME": home, **extra}


def unproxied() -> dict[str, str]:
    """Settings that keep connections to this machine away from an HTTP proxy."""
    already = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    hosts = ",".join(filter(None, [already, "127.0.0.1", "localhost"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def polling(nodes: int) -> dict[str, str]:
    """How often a SuperNode's executor asks for work. Each request takes a few milliseconds of a core."""
    return {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": f"{min(1.0, 0.1 * nodes):.1f}"}


def superlink(host: str, port: int, database: str | None = None) -> list[str]:
    """The SuperLink. It accepts only registered nodes, over TLS; `superexec` starts its ServerApp."""
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
    """The program that starts the ServerApp, on the machine of `dapfl run`, wherever the SuperLink is."""
    return [
        "flower-superexec",
        *("--runtime-api-address", address),
        *("--root-certificates", "ca.crt"),
        *("--superexec-auth-secret-file", "superexec.secret"),
        *("--parent-pid", str(parent)),
    ]


def supernode(address: str, port: int) -> list[str]:
    """A SuperNode, and the program that starts its ClientApps, which reaches it at `port` on loopback (or at
    another, named by DAPFL_NODE_PORT).

    A SuperNode that starts this program by itself gives work to any local user who asks. As two processes
    they share a secret, and nobody else is given any.
    """
    secret = ("--superexec-auth-secret-file", "node.secret")
    executor = shlex.join(["flower-superexec", "--insecure", *secret])
    node = [
        "flower-supernode",
        *("--superlink", address),
        *("--root-certificates", "ca.crt"),
        *("--auth-supernode-private-key", "node.key"),
        *("--host", "127.0.0.1"),
        *("--node-config", "node.toml"),
        *("--isolation", "process", *secret),
    ]
    # `exec` keeps the process id, so that the executor ends with the SuperNode.
    both = (
        f"port=${{DAPFL_NODE_PORT:-{port}}}; "
        f'{executor} --runtime-api-address "127.0.0.1:$port" --parent-pid $$ & '
        f'exec {shlex.join(node)} --port "$port" "$@"'
    )
    return ["sh", "-c", both, "supernode"]
