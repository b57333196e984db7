"""`dapfl compare`: several settings and seeds under the same conditions."""

import argparse
from dataclasses import replace
from pathlib import Path

from dapfl.commands.options import (
    CLIENTS,
    PER_ROUND,
    TASK,
    Option,
    add_options,
    changes,
)
from dapfl.errors import DapflError
from dapfl.runs.scales import SCALES, scale_of
from dapfl.system.console import err, out, progress

EXAMPLES = """\
examples:
  dapfl compare --task logistic-mnist --scale quick --out first-look
  dapfl compare --task cnn-fashion --settings dap-fl,large,small --seeds 3 --rounds 60 --out fashion
  dapfl compare --task logistic-mnist --settings all,oracle --scale standard --out logistic

Settings: any of `dapfl run`, NAME:ETA:ALPHA for the fixed rules (fixed-capped:0.1:6), NAME:ALPHA for rules
that find η themselves (delta-sgd:6), dap-fl:KAPPA for another price of work, a TOML file for a variant
(examples/ablation/no-cap.toml), `all`, and `oracle` (a grid of fixed rules, of which the best counts).
Start the same command again after a stop: it does only what is missing.
"""


_OPTIONS = (
    replace(TASK, required=True),
    Option("rounds", "rounds", "rounds of each run (default: by scale)", "N"),
    CLIENTS,
    PER_ROUND,
    Option("partition", "partition", "who has which samples, as for `dapfl run`", "P"),
    Option(
        "encryption",
        "crypto.encryption",
        "default: none, since encryption does not change a bit of the results",
    ),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `dapfl compare`."""
    add_options(parser, _OPTIONS)
    parser.add_argument("--settings", default="all", metavar="A,B|all", help="what to compare (default: all)")
    parser.add_argument(
        "--scale",
        choices=list(SCALES),
        default="standard",
        help="how many rounds and seeds (default: standard)",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: by scale)")
    parser.add_argument(
        "--first-seed", type=int, default=100, metavar="K", help="seeds K, K+1, ... (default: 100)"
    )
    parser.add_argument(
        "--workers", type=int, default=0, metavar="W", help="runs at a time (default: one per core)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the runs go")


def execute(args: argparse.Namespace) -> int:
    """Runs what is missing, then writes the report of all runs."""
    from dapfl.config import RunConfig, override
    from dapfl.runs.compare import is_finished, parse_settings, plan, run_all

    scale = scale_of(args.scale, args.task)
    usual = {"rounds": scale.rounds, "crypto.encryption": "none"}
    base = override(RunConfig(), usual | changes(args, _OPTIONS))
    seeds = range(args.first_seed, args.first_seed + (args.seeds or scale.seeds))
    jobs = plan(base, parse_settings(args.settings), seeds, args.out)
    missing = [job for job in jobs if not is_finished(job)]
    err.print(f"{len(jobs)} runs of {base.rounds} rounds, {len(jobs) - len(missing)} of them done already")
    failed: dict[str, str] = {}
    if missing:
        with progress("Rounds", base.rounds * len(missing)) as advance:
            shown = 0
            for state in run_all(missing, args.workers):
                advance(state.rounds - shown, f"{len(state.finished)} of {len(missing)} runs done")
                shown = state.rounds
                failed = {str(job.path): reason for job, reason in state.failed}
    for path, reason in failed.items():
        err.print(f"{path}: {reason}", markup=False)
    if failed:
        raise DapflError(f"{len(failed)} of {len(jobs)} runs failed; the others are complete.")
    _report(args.out)
    return 0


def _report(path: Path) -> None:
    from dapfl.reporting.report import write_report

    report = write_report([path], path / "report")
    out.print(report.text, markup=False)
    out.print(f"Report: {report.page}", markup=False)
