"""`dapfl watch`: a live page of a run."""

import argparse
import errno
import socket
from pathlib import Path

from dapfl.errors import ConfigError, RunDirectoryError
from dapfl.system.console import err, out

EXAMPLES = """\
examples:
  dapfl watch runs/cnn-mnist-dap-fl-1                at http://127.0.0.1:8200/
  dapfl watch runs/next --port 9000                  waits for a run that has not started yet
"""
_PORT = 8200


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `dapfl watch`."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="a run directory; the run may not have started yet"
    )
    parser.add_argument(
        "--port",
        type=_port,
        metavar="P",
        help=f"where to listen (default: {_PORT}, or the next that is free)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen on (default: this machine only; there is no password)",
    )

    parser.add_argument(
        "--metrics", action="store_true", help="also serve the state of the run for Prometheus, at /metrics"
    )


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 65536:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: give a number from 0 to 65535")
    return int(text)


def execute(args: argparse.Namespace) -> int:
    """Serves the page until Ctrl-C."""
    from dapfl.dashboard.server import serve

    _check(args.directory)
    listener = _listen(args.host, args.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    out.print(f"http://{shown}:{port}/", markup=False)
    err.print("Open this page in a browser; Ctrl-C ends it. The run does not need it.")
    if not args.directory.exists():
        err.print(
            f"{args.directory} does not exist yet: the page waits for a run to begin there.", markup=False
        )
    if host not in ("127.0.0.1", "::1"):
        err.print(f"Anyone who reaches {host} can see this page: it has no password.")
    serve(args.directory, listener, metrics=args.metrics)
    return 0


def _check(directory: Path) -> None:
    """Refuses what can never become a run directory; an absent or empty folder may still become one."""
    from dapfl.runs.directory import RunDirectory
    from dapfl.runs.results import run_directories

    if not directory.exists() or RunDirectory(directory).begun:
        return
    if not directory.is_dir():
        raise RunDirectoryError(f"{directory} is a file: give the directory that 'dapfl run --out' writes.")
    below = run_directories(directory)
    if below:
        raise RunDirectoryError(
            f"{directory} holds {len(below)} run directories: watch one of them, such as {below[0]}."
        )
    if any(directory.iterdir()):
        raise RunDirectoryError(
            f"{directory} is not a run directory: it has no manifest.json, and it is not empty either."
        )


def _listen(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [_PORT + offset for offset in range(20)] if port is None else [port]:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(64)
            return listener
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE and port is None:
                continue
            raise ConfigError(f"Cannot listen on {host}, port {candidate}: {error.strerror}.") from None
    raise ConfigError(f"All ports from {_PORT} to {_PORT + 19} are in use: choose another one by --port.")
