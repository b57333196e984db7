"""`dapfl run`: one federated run."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapfl.console import err, out, progress
from dapfl.errors import ConfigError

if TYPE_CHECKING:
    from dapfl.config import RunConfig
    from dapfl.experiments.runner import Deployed

EXAMPLES = """\
examples:
  dapfl run                                          Dap-FL on cnn-mnist, 20 clients, encrypted
  dapfl run --task logistic-mnist --setting large --rounds 5 --encryption none --out large
  dapfl run --setting fixed-capped --eta 0.1 --alpha 6 --partition dirichlet:0.3
  dapfl run --adversary replay,tamper                a live attacker on the wire
  dapfl run --resume runs/cnn-mnist-dap-fl-1         continue after a stop
"""

# flag → the configuration value that it sets
_FLAGS: dict[str, tuple[str, dict[str, Any]]] = {
    "task": (
        "task",
        {"metavar": "T", "help": "logistic-mnist, cnn-mnist, cnn-fashion, resnet18-mnist or FILE.py:NAME"},
    ),
    "setting": ("setting", {"metavar": "S", "help": "dap-fl, large, small, ... (docs/tuning.md lists them)"}),
    "rounds": ("rounds", {"type": int, "metavar": "N"}),
    "clients": ("clients", {"type": int, "metavar": "N"}),
    "seed": ("seed", {"type": int, "metavar": "K"}),
    "engine": ("engine", {"choices": ["local", "flower"], "help": "where the clients live"}),
    "workers": ("workers", {"type": int, "metavar": "W", "help": "worker processes (default: one a core)"}),
    "partition": ("partition", {"metavar": "P", "help": "iid, dirichlet:A or resampled"}),
    "eta": ("eta", {"type": float, "metavar": "X", "help": "learning rate of the fixed settings"}),
    "alpha": ("alpha", {"type": int, "metavar": "N", "help": "local epochs of the fixed settings"}),
    "price": (
        "price",
        {"type": float, "metavar": "K", "help": "what an epoch of work costs the dap-fl agent"},
    ),
    "min-cohort": ("min_cohort", {"type": int, "metavar": "N", "help": "fewest clients that are aggregated"}),
    "encryption": ("crypto.encryption", {"choices": ["paillier", "none"]}),
    "envelope": ("crypto.envelope", {"choices": ["paillier", "hybrid"], "help": "how uploads are sealed"}),
    "key-bits": ("crypto.key_bits", {"type": int, "metavar": "B"}),
    "codec": ("crypto.codec", {"choices": ["exact", "compact"], "help": "how models become integers"}),
}
_LISTS = {
    "adversary": ("adversaries", "live attackers: see docs/security.md"),
    "log": ("log", "also write tensorboard or mlflow logs"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `dapfl run`."""
    for flag, (_, options) in _FLAGS.items():
        parser.add_argument(f"--{flag}", default=None, **options)
    for flag, (_, text) in _LISTS.items():
        parser.add_argument(f"--{flag}", default=None, metavar="NAME[,NAME]", help=text)
    parser.add_argument(
        "--allow-insecure-small-keys",
        action="store_true",
        help="accept keys under 2048 bits (for trials only)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="a configuration; flags override it")
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--out", type=Path, metavar="DIR", help="the run directory (default: a new one in runs/)"
    )
    place.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in DIR")
    parser.add_argument("--superlink", metavar="ADDRESS", help="the running Flower SuperLink of a deployment")
    parser.add_argument(
        "--deployment", type=Path, metavar="DIR", help="the server's folder of that deployment"
    )


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    """The configuration values that flags set."""
    changes: dict[str, Any] = {}
    for flag, (name, _) in _FLAGS.items():
        value = getattr(args, flag.replace("-", "_"))
        if value is not None:
            changes[name] = value
    for flag, (name, _) in _LISTS.items():
        value = getattr(args, flag)
        if value is not None:
            changes[name] = [part.strip() for part in value.split(",")]
    if args.allow_insecure_small_keys:
        changes["crypto.allow_insecure_small_keys"] = True
    return changes


def _fresh_directory(config: "RunConfig") -> Path:
    """A name in runs/ that is not taken."""
    names = (Path(name.rpartition(":")[0] or name).stem for name in (config.task, config.setting))
    stem = "-".join(names)
    number = 1
    while (Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return Path("runs") / f"{stem}-{number}"


def _deployed(args: argparse.Namespace) -> "Deployed | None":
    """Where the clients of a deployment are reached, if that is what was asked for."""
    from dapfl.experiments.runner import Deployed

    if bool(args.superlink) != bool(args.deployment):
        raise ConfigError("--superlink and --deployment belong together: see docs/deployment.md.")
    return Deployed(args.superlink, str(args.deployment.resolve())) if args.superlink else None


def execute(args: argparse.Namespace) -> int:
    """Runs, shows how it goes, and says where the results are."""
    from dapfl.config import RunConfig, load, override
    from dapfl.experiments.runner import resume, start

    changes = _changes(args)
    began = time.monotonic()
    if args.resume:
        if unusable := sorted(set(changes) - {"workers"}) or (["config"] if args.config else []):
            raise ConfigError(
                f"--resume continues a run as it was configured: {', '.join(unusable)} cannot be changed."
            )
        session = resume(args.resume, workers=changes.get("workers"))
    else:
        deployed = _deployed(args)
        if deployed:
            changes["engine"] = "flower"
        config = override(load(args.config) if args.config else RunConfig(), changes)
        session = start(config, args.out or _fresh_directory(config), deployed=deployed)
    config = session.config
    how = (
        f"encrypted with {config.crypto.key_bits}-bit keys" if config.crypto.encryption != "none" else "open"
    )
    err.print(f"{config.setting} on {config.task}: {config.clients} clients, {config.rounds} rounds, {how}")
    with session, progress("Rounds", config.rounds) as advance:
        advance(session.rounds_done)
        for record in session:
            accuracy = "?" if record.accuracy is None else f"{record.accuracy:.4f}"
            advance(1, f"accuracy {accuracy}  clients {record.participants}/{config.clients}")
        attacks = session.attacks()
    _show(session.path, config.clients, attacks, time.monotonic() - began)
    return 0


def _show(path: Path, clients: int, attacks: tuple[str, ...], seconds: float) -> None:
    """The closing table and what to do next."""
    from rich.table import Table

    from dapfl.experiments.results import read_run

    rounds = read_run(path).rounds
    last = rounds[-1]
    best = max((each.accuracy for each in rounds if each.accuracy is not None), default=None)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("test accuracy", _share(last.accuracy), f"best {_share(best)}")
    table.add_row(
        "test loss", "?" if last.loss is None else f"{last.loss:.4f}", f"macro-F1 {_share(last.f1)}"
    )
    table.add_row(
        "contributions",
        f"{sum(each.participants for each in rounds)} of {clients * len(rounds)}",
        f"{sum(each.violations for each in rounds)} over budget, "
        f"{sum(each.rejected for each in rounds)} messages rejected",
    )
    table.add_row(
        "local epochs",
        f"{sum(each.epochs for each in rounds)}",
        f"{sum(each.wasted_epochs for each in rounds)} of them wasted",
    )
    table.add_row(
        "traffic",
        f"{sum(each.bytes_up for each in rounds) / 1e6:.1f} MB up",
        f"{sum(each.bytes_down for each in rounds) / 1e6:.1f} MB down",
    )
    table.add_row("time", f"{seconds:.0f} s", f"{last.seconds.get('total', 0.0):.1f} s for the last round")
    out.print(table)
    for line in attacks:
        out.print(line, markup=False)
    out.print(f"\nRun directory: {path}", markup=False)
    out.print(f"Next: dapfl report {path}   or   dapfl watch {path}", markup=False)


def _share(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.2f} %"
