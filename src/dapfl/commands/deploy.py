"""`dapfl deploy`: the folders of a deployment on real machines, and the gateway before its SuperLink."""

import argparse
from pathlib import Path, PurePosixPath

from dapfl.commands.options import (
    CLIENTS,
    DECRYPTION,
    ENCRYPTION,
    KEY_BITS,
    MIN_COHORT,
    ROUNDS,
    SEED,
    SETTING,
    SMALL_KEYS,
    Option,
    add_options,
    changes,
)
from dapfl.errors import ConfigError
from dapfl.system.console import err, out, progress

EXAMPLES = """\
examples:
  dapfl deploy init --clients 5 --host fl.example.org --out deployment
  dapfl deploy init --clients 5 --host 10.0.0.7 --task wards.py:TASK --own-data 5000 --out deployment
  dapfl deploy add deployment              one more client; also: replace deployment 3, remove deployment 3
  dapfl deploy update server update-001/server.update
  dapfl deploy gateway server --listen 0.0.0.0:9092 --superlink 127.0.0.1:8000
"""

_OPTIONS = (
    CLIENTS,
    Option("task", "task", "a built-in task, or FILE.py:NAME (the file goes into every folder)", "T"),
    SETTING,
    ROUNDS,
    Option("room", "room", "the most clients there may ever be (default: twice as many as now)", "N"),
    SEED,
    Option("deadline", "resources.deadline_seconds", "how long a round may take a device", "SECONDS"),
    ENCRYPTION,
    DECRYPTION,
    KEY_BITS,
    MIN_COHORT,
    SMALL_KEYS,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds `init` and `gateway`."""
    actions = parser.add_subparsers(
        dest="action", metavar="init|add|replace|remove|update|gateway", required=True
    )
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
    init.add_argument(
        "--passphrases",
        action="store_true",
        help="put every participant's keys under a passphrase of its own, for another channel",
    )
    init.add_argument(
        "--wheel",
        type=Path,
        metavar="FILE.whl",
        help="put this wheel of Dap-FL into every folder ('pip wheel --no-deps .' in a checkout makes one)",
    )
    add_options(init, _OPTIONS)
    door = actions.add_parser(
        "gateway", help="let SuperNodes reach a SuperLink, and nobody else", epilog=EXAMPLES
    )
    door.add_argument("folder", type=Path, metavar="FOLDER", help="the server's folder")
    door.add_argument("--listen", default="0.0.0.0:9092", metavar="HOST:PORT")
    door.add_argument("--superlink", default="127.0.0.1:8000", metavar="HOST:PORT")
    change = {
        name: actions.add_parser(name, help=words, epilog=EXAMPLES)
        for name, words in (
            ("add", "a folder for one more client"),
            ("replace", "a folder with new keys for a client whose device is lost"),
            ("remove", "take a client out of the federation"),
        )
    }
    for name, action in change.items():
        action.add_argument("deployment", type=Path, metavar="DIR", help="what 'deploy init' has made")
        if name != "add":
            action.add_argument("client", type=int, metavar="CLIENT", help="the client's number")
    update = actions.add_parser(
        "update", help="apply a server.update to the server's folder", epilog=EXAMPLES
    )
    update.add_argument("folder", type=Path, metavar="FOLDER", help="the server's folder")
    update.add_argument("file", type=Path, metavar="FILE", help="server.update")
    for action in (init, door, update, *change.values()):
        action.formatter_class = argparse.RawDescriptionHelpFormatter
        action.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def execute(args: argparse.Namespace) -> int:
    """Runs the action."""
    actions = {"init": _init, "gateway": _gateway, "update": _update}
    return actions.get(args.action, _change)(args)


def _change(args: argparse.Namespace) -> int:
    from dapfl.engines.flower.deployment import membership

    if args.action == "add":
        change = membership.add(args.deployment)
    elif args.action == "replace":
        change = membership.replace_client(args.deployment, args.client)
    else:
        change = membership.remove(args.deployment, args.client)
    file = change.path / "server.update"
    if args.action != "remove":
        out.print(
            f"The folder of client {change.client} is in {change.path}: give it to its owner.", markup=False
        )
        if change.passphrase is not None:
            out.print(f"Its passphrase is in {change.passphrase}: tell the owner.", markup=False)
    out.print(f"On the server: dapfl deploy update FOLDER {file}", markup=False)
    out.print("The other clients need nothing: they get the new roster with the next round.", markup=False)
    return 0


def _update(args: argparse.Namespace) -> int:
    from dapfl.config import load
    from dapfl.engines.flower.deployment import membership
    from dapfl.engines.flower.deployment.folders import ServerFolder

    config = load(args.folder / "config.toml")
    enrolment = membership.apply(ServerFolder(args.folder), args.file, config.crypto)
    clients = ", ".join(map(str, enrolment.members))
    out.print(f"Update {enrolment.serial} is applied. The clients are now {clients}.", markup=False)
    out.print(
        "It is in force from the next round on, in a run that is going on and in every other.", markup=False
    )
    return 0


def _init(args: argparse.Namespace) -> int:
    from dapfl.config import RunConfig, load, override
    from dapfl.engines.flower.deployment.prepare import prepare
    from dapfl.engines.flower.deployment.scripts import Place
    from dapfl.federation.run_keys import keys_needed
    from dapfl.runs.settings import resolve

    # A device measures itself; nothing about it is simulated.
    changed = changes(args, _OPTIONS) | {"engine": "flower", "resources.source": "measured"}
    if args.deadline is not None:
        changed["round_timeout"] = 2 * args.deadline + 60  # nobody's work is thrown away over a slow network
    if args.own_data is not None:
        changed |= {"partition": "own", "mean_samples": args.own_data, "std_samples": 0.0}
    config = override(load(args.config) if args.config else RunConfig(), changed)
    if config.room is None and config.per_round is None:
        config = override(config, {"room": 2 * config.clients})
    place = Place(args.host, args.port, args.home)
    with progress("Keys", keys_needed(config)) as advance:
        policy = resolve(config).policy
        deployment = prepare(
            config, policy, args.out, place, advance, passphrases=args.passphrases, wheel=args.wheel
        )
    out.print(f"{config.clients} client folders and the server's are in {deployment.path}.", markup=False)
    if args.passphrases:
        place_of = deployment.path / "passphrases"
        out.print(f"Their passphrases are in {place_of}: tell each owner theirs.", markup=False)
    out.print(f"Read {deployment.path / 'README.md'} next. It says which folder goes where.", markup=False)
    return 0


def _gateway(args: argparse.Namespace) -> int:
    from dapfl.engines.flower.deployment.programs import require_flower

    require_flower()
    from dapfl.engines.flower.deployment.folders import ServerFolder
    from dapfl.engines.flower.deployment.gateway import serve
    from dapfl.engines.flower.host.control import connect
    from dapfl.engines.flower.host.processes import accepts_connections, wait_until

    folder = ServerFolder(args.folder)
    nodes = folder.node_keys()
    host, _, port = args.listen.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--listen takes HOST:PORT, not '{args.listen}'.")
    wait_until(lambda: accepts_connections(args.superlink), f"a SuperLink at {args.superlink}", timeout=120)
    with connect(args.superlink, folder) as control:
        control.register(nodes)
    err.print(f"SuperNodes may come in at {args.listen}; the SuperLink is {args.superlink}.", markup=False)
    serve(folder, args.superlink, host.strip("[]"), int(port))
    return 0
