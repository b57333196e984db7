"""`dapfl run`: one federated run."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapfl.commands.options import (
    CLIENTS,
    DECRYPTION,
    ENCRYPTION,
    KEY_BITS,
    MIN_COHORT,
    PER_ROUND,
    ROUNDS,
    SEED,
    SETTING,
    SMALL_KEYS,
    TASK,
    Option,
    add_options,
    changes,
)
from dapfl.errors import ConfigError, NothingLearned, RunDirectoryError
from dapfl.system.console import err, out, progress

if TYPE_CHECKING:
    from dapfl.config import RunConfig
    from dapfl.engines.base import Deployed
    from dapfl.federation.records import RoundRecord
    from dapfl.runs.session import Session

EXAMPLES = """\
examples:
  dapfl run                                          Dap-FL on cnn-mnist, 20 clients, encrypted
  dapfl run --task logistic-mnist --setting large --rounds 5 --encryption none --out large
  dapfl run --setting fixed-capped --eta 0.1 --alpha 6 --partition dirichlet:0.3
  dapfl run --adversary replay,tamper                live attackers on the network
  dapfl run --resume runs/cnn-mnist-dap-fl-1         continue after a stop
  dapfl run --resume runs/cnn-mnist-dap-fl-1 --rounds 40       extend a run to 40 rounds
"""

_OPTIONS = (
    TASK,
    SETTING,
    ROUNDS,
    CLIENTS,
    PER_ROUND,
    SEED,
    Option("engine", "engine", "where the clients run"),
    Option("device", "device", "where models train and are scored"),
    Option("workers", "workers", "worker processes (default: one per core)", "W"),
    Option(
        "partition",
        "partition",
        "who has which samples: iid, dirichlet:A, natural (the people or roles of the data) or resampled",
        "P",
    ),
    Option("eta", "eta", "learning rate of the fixed settings", "X"),
    Option("alpha", "alpha", "local epochs of the fixed settings", "N"),
    Option("price", "price", "what an epoch of work costs the dap-fl agent", "K"),
    MIN_COHORT,
    Option("wait", "wait", "how long a round of a deployment waits for enough clients", "SECONDS"),
    ENCRYPTION,
    DECRYPTION,
    Option("envelope", "crypto.envelope", "how uploads are sealed"),
    KEY_BITS,
    Option("codec", "crypto.codec", "how models become integers: 16-bit changes, or whole weights"),
    Option("adversary", "adversaries", "live attackers (docs/security.md lists them)", "NAME[,NAME]"),
    Option("log", "log", "also write logs for tensorboard or mlflow", "NAME[,NAME]"),
    SMALL_KEYS,
)


_CHANGEABLE = {"rounds", "workers", "wait"}  # of a run that is resumed


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `dapfl run`."""
    add_options(parser, _OPTIONS)
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="a configuration; flags override it")
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--out", type=Path, metavar="DIR", help="the run directory (default: a new one in runs/)"
    )
    place.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in DIR")
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="with --resume: go on although the data, files or configuration of the run have changed",
    )
    parser.add_argument("--superlink", metavar="ADDRESS", help="the running Flower SuperLink of a deployment")
    parser.add_argument(
        "--deployment", type=Path, metavar="DIR", help="the server's folder of that deployment"
    )


def _deployed(args: argparse.Namespace) -> "Deployed | None":
    """Where the clients of a deployment are reached, if that is what was asked for."""
    from dapfl.engines.base import Deployed

    if bool(args.superlink) != bool(args.deployment):
        raise ConfigError("--superlink and --deployment belong together: see docs/deployment.md.")
    return Deployed(args.superlink, str(args.deployment.resolve())) if args.superlink else None


def execute(args: argparse.Namespace) -> int:
    """Runs, shows how it goes, and says where the results are."""
    from dapfl.runs.monitoring.lost_work import called_in
    from dapfl.runs.results import resume_command

    changed = changes(args, _OPTIONS)
    began = time.monotonic()
    session = _resumed(args, changed) if args.resume else _started(args, changed)
    config = session.config
    attacks: tuple[str, ...] = ()
    try:
        _introduce(config)
        with session, progress("Rounds", config.rounds) as advance:
            advance(session.rounds_done)
            for record in session:
                called = len(called_in(record, session.last_client))
                advance(1, f"{_how_good(record)}  clients {record.participants}/{called}")
                attacks = session.attacks()
    except NothingLearned:
        _show(session.path, attacks, time.monotonic() - began)
        raise
    except RunDirectoryError:
        raise  # it cannot go on as it is
    except BaseException:
        if session.can_resume:
            err.print(f"\nTo go on: {resume_command(session.path)}", markup=False)
        raise
    _show(session.path, attacks, time.monotonic() - began)
    out.print(f"Next: dapfl report {session.path}   or   dapfl watch {session.path}", markup=False)
    return 0


def _started(args: argparse.Namespace, changed: dict[str, Any]) -> "Session":
    """A new run."""
    from dapfl.config import RunConfig, load, override
    from dapfl.runs.directory import fresh_directory

    deployed = _deployed(args)
    if deployed:
        changed["engine"] = "flower"
    config = override(load(args.config) if args.config else RunConfig(), changed)

    from dapfl.runs.session import start  # takes seconds: a mistake in the configuration is told before

    return start(config, args.out or fresh_directory(config), deployed=deployed)


def _resumed(args: argparse.Namespace, changed: dict[str, Any]) -> "Session":
    """The run that is to go on; whoever stops it before it does is told how to do so."""
    from dapfl.runs.results import resume_command

    if unusable := sorted(set(changed) - _CHANGEABLE) or (["config"] if args.config else []):
        raise ConfigError(
            f"--resume continues a run as it was configured: {', '.join(unusable)} cannot be changed."
        )
    try:
        from dapfl.runs.session import resume  # takes seconds, in which a user may press Ctrl-C

        session = resume(args.resume, **changed, accept_changes=args.accept_changes)
    except KeyboardInterrupt:
        flags = "".join(f" --{name} {value}" for name, value in changed.items())
        flags += " --accept-changes" if args.accept_changes else ""
        err.print(f"\nTo go on: {resume_command(args.resume)}{flags}", markup=False)
        raise
    for note in session.notes:
        err.print(f"{args.resume}: {note}.", markup=False)
    return session


def _introduce(config: "RunConfig") -> None:
    """What is about to run, and what is worth knowing about it."""
    from dapfl.learning.tasks import get_task

    how = (
        f"encrypted with {config.crypto.key_bits}-bit keys"
        if config.crypto.encryption != "none"
        else "not encrypted"
    )
    clients = f"{config.clients} clients" + (f", {config.per_round} per round" if config.per_round else "")
    rounds = f"{config.rounds} round" + "s" * (config.rounds > 1)
    err.print(
        f"{config.setting} on {get_task(config.task).name}: {clients}, {rounds}, {how}",
        markup=False,
    )
    _tell_of_unused_data(config)
    _tell_of_slow_code(config)


def _tell_of_unused_data(config: "RunConfig") -> None:
    """Of a task of the user's own; the built-in tasks have the sizes of the paper."""
    from dapfl.federation.run_terms import samples_used
    from dapfl.learning.runtime import rows_without_meaning, task_runtime
    from dapfl.learning.tasks import TASKS, get_task

    if config.task in TASKS or config.partition == "own":
        return
    samples = task_runtime(get_task(config.task)).data.train_images
    if len(bad := rows_without_meaning(samples)):
        err.print(
            f"NaN or infinity in {len(bad):,} of the {len(samples):,} training samples, the first in row "
            f"{bad[0]}: clients that hold one of them cannot take part."
        )
    if config.mean_samples is None:
        return
    used, there = samples_used(config)
    if used < there:
        err.print(
            f"The clients have {used:,} of the {there:,} training samples: about {config.mean_samples:g} "
            "each, as mean_samples says. Without it all would be shared out."
        )


def _tell_of_slow_code(config: "RunConfig") -> None:
    """Of what this installation was built without."""
    from importlib.util import find_spec

    if config.crypto.encryption != "none" and find_spec("dapfl.crypto.engines._native") is None:
        err.print(
            "This installation has no native code, since it was built without a C compiler: encryption is "
            "about five times slower, and the paper's small models train about three times slower."
        )


def _how_good(record: "RoundRecord") -> str:
    """The model of a round in a word. Without classes there is a loss alone; without a model, neither."""
    if record.accuracy is None and record.loss is not None:
        return f"loss {record.loss:.4f}"
    return "accuracy ?" if record.accuracy is None else f"accuracy {record.accuracy:.4f}"


def _show(path: Path, attacks: tuple[str, ...], seconds: float) -> None:
    """The closing table."""
    from rich.markup import escape
    from rich.table import Table

    from dapfl.reporting.closing import closing_rows
    from dapfl.runs.results import read_run

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in closing_rows(read_run(path), seconds):
        table.add_row(*map(escape, row))  # names of clients and measures are users' words
    out.print(table)
    for line in attacks:
        out.print(line, markup=False)
    out.print(f"\nRun directory: {path}", markup=False)
