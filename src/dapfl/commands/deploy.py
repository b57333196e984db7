"""`dapfl deploy`: the folders of a deployment on real machines, and the gateway before its SuperLink."""

import argparse
from pathlib import Path, PurePosixPath
from typing import Any

from dapfl.console import err, out, progress
from dapfl.errors import ConfigError

EXAMPLES = """\
examples:
  dapfl deploy init --clients 5 --host fl.example.org --out deployment
  dapfl deploy init --clients 5 --host 10.0.0.7 --task wards.py:TASK --own-data 5000 --out deployment
  dapfl deploy gateway server --listen 0.0.0.0:9092 --superlink 127.0.0.1:8000
"""


# flag → the configuration value that it sets, and how it is shown
_FLAGS: dict[str, tuple[str, dict[str, Any]]] = {
    "clients": ("clients", {"type": int, "metavar": "N", "help": "how many devices take part"}),
    "task": ("task", {"metavar": "T", "help": "a task, or FILE.py:NAME (the file goes into every folder)"}),
    "setting": ("setting", {"metavar": "S", "help": "dap-fl, large, ... (docs/tuning.md lists them)"}),
    "rounds": ("rounds", {"type": int, "metavar": "N"}),
    "seed": ("seed", {"type": int, "metavar": "K"}),
    "deadline": (
        "resources.deadline_seconds",
        {"type": float, "metavar": "SECONDS", "help": "what a round may take a device"},
    ),
    "encryption": ("crypto.encryption", {"choices": ["paillier", "none"]}),
    "key-bits": ("crypto.key_bits", {"type": int, "metavar": "B"}),
    "min-cohort": ("min_cohort", {"type": int, "metavar": "N", "help": "fewest clients that are aggregated"}),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds `init` and `gateway`."""
    actions = parser.add_subparsers(dest="action", metavar="init|gateway", required=True)
    init = actions.add_parser("init", help="make one folder per participant", epilog=EXAMPLES)
    init.add_argument("--out", type=Path, metavar="DIR", required=True, help="a new directory")
    init.add_argument(
        "--host", default="localhost", help="the name or address that nodes reach the server under"
    )
    init.add_argument("--port", type=int, default=9092, help="the port that they reach it on (9092)")
    init.add_argument(
        "--home",
        type=PurePosixPath,
        default=PurePosixPath("/opt/dapfl"),
        metavar="PATH",
        help="where folders are put on their machines, for the systemd units (/opt/dapfl)",
    )
    init.add_argument("--config", type=Path, metavar="FILE.toml", help="a configuration; flags override it")
    init.add_argument(
        "--own-data",
        type=int,
        metavar="MAX",
        help="a device trains on all training data that the task finds there, at most MAX samples "
        "(default: on its share of a common data set)",
    )
    for flag, (_, options) in _FLAGS.items():
        init.add_argument(f"--{flag}", default=None, **options)
    init.add_argument(
        "--allow-insecure-small-keys",
        action="store_true",
        help="accept keys under 2048 bits (for trials only)",
    )
    door = actions.add_parser(
        "gateway", help="let SuperNodes reach a SuperLink, and nobody else", epilog=EXAMPLES
    )
    door.add_argument("folder", type=Path, metavar="FOLDER", help="the server's folder")
    door.add_argument("--listen", default="0.0.0.0:9092", metavar="HOST:PORT")
    door.add_argument("--superlink", default="127.0.0.1:8000", metavar="HOST:PORT")
    for action in (init, door):
        action.formatter_class = argparse.RawDescriptionHelpFormatter
        action.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def execute(args: argparse.Namespace) -> int:
    """Runs the action."""
    return _init(args) if args.action == "init" else _gateway(args)


def _init(args: argparse.Namespace) -> int:
    from dapfl.config import RunConfig, load, override
    from dapfl.experiments.deploy import Place, prepare
    from dapfl.federation.assembly import keys_needed

    given = {name: getattr(args, flag.replace("-", "_")) for flag, (name, _) in _FLAGS.items()}
    changes = {name: value for name, value in given.items() if value is not None}
    # A device measures itself; it is no simulation of one.
    changes |= {"engine": "flower", "resources.source": "measured"}
    if args.deadline is not None:
        changes["round_timeout"] = 2 * args.deadline + 60  # nobody's work is thrown away over a slow network
    if args.allow_insecure_small_keys:
        changes["crypto.allow_insecure_small_keys"] = True
    if args.own_data is not None:
        changes |= {"partition": "own", "mean_samples": args.own_data, "std_samples": 0.0}
    config = override(load(args.config) if args.config else RunConfig(), changes)
    with progress("Keys", keys_needed(config)) as advance:
        deployment = prepare(config, args.out, Place(args.host, args.port, args.home), advance)
    out.print(f"{config.clients} client folders and the server's are in {deployment.path}.", markup=False)
    out.print(f"Read {deployment.path / 'README.md'} next. It says which folder goes where.", markup=False)
    return 0


def _gateway(args: argparse.Namespace) -> int:
    from dapfl.engines.flower.control import connect
    from dapfl.engines.flower.folders import ServerFolder
    from dapfl.engines.flower.gateway import serve
    from dapfl.engines.flower.processes import accepts_connections, wait_until

    folder = ServerFolder(args.folder)
    nodes = folder.node_keys()
    host, _, port = args.listen.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--listen takes HOST:PORT, not '{args.listen}'.")
    wait_until(lambda: accepts_connections(args.superlink), f"A SuperLink at {args.superlink}", timeout=120)
    with connect(args.superlink, folder) as control:
        control.register(nodes)
    err.print(f"SuperNodes may come in at {args.listen}; the SuperLink is {args.superlink}.", markup=False)
    serve(folder, args.superlink, host.strip("[]"), int(port))
    return 0
