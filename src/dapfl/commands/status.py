"""`dapfl status`: how a run and its clients are doing."""

import argparse
from pathlib import Path

from dapfl.system.console import out

EXAMPLES = """\
examples:
  dapfl status runs/cnn-mnist-dap-fl-1               in the terminal
  dapfl status /var/lib/dapfl/first-run --json       for scripts: one JSON object

exits with 0; with 3 if there is something that an operator should look at
"""
_ALERT = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `dapfl status`."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a run directory")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Prints the overview."""
    import msgspec

    from dapfl.runs.monitoring.status import overview_of
    from dapfl.runs.results import read_run

    overview = overview_of(read_run(args.directory))
    if args.json:
        out.print(msgspec.json.encode(overview).decode(), markup=False, soft_wrap=True)
        return _ALERT if overview.alerts else 0
    quality = "accuracy ?" if overview.accuracy is None else f"accuracy {100 * overview.accuracy:.2f} %"
    if overview.accuracy is None and overview.loss is not None:  # a task without classes
        quality = f"loss {overview.loss:.4f}"
    planned = "?" if overview.planned is None else overview.planned
    lines = [
        f"{overview.setting} on {overview.task}: {overview.status}, round {overview.rounds} of {planned}",
        f"test {quality}; {overview.participants} contributions in the last round; "
        f"{overview.without_model} rounds without a model; {overview.rejected} messages rejected",
        *([f"the devices that train must answer by {overview.deadline}"] if overview.deadline else []),
        "",
        f"{'client':<24}{'now':<12}{'lost for':<10}{'last in':<9}{'contributions':<15}why",
    ]
    for each in overview.clients:
        last = "never" if each.last_in is None else str(each.last_in)
        lines.append(
            f"{each.name:<24}{each.presence:<12}{each.lost_for or '':<10}{last:<9}{each.contributions:<15}"
            f"{each.reason or ''}".rstrip()
        )
    if any(each.device or each.last_contact for each in overview.clients):
        lines += ["", f"{'device of':<24}{'does':<12}{'since':<27}{'last contact':<27}dapfl"]
    for each in overview.clients:
        if each.device or each.last_contact:
            doing, since = (each.device.doing, each.device.since) if each.device else ("unknown", "")
            lines.append(
                f"{each.name:<24}{doing:<12}{since:<27}{each.last_contact or 'never':<27}"
                f"{each.software or 'unknown'}"
            )
    lines += [""] + [f"ALERT: {alert}" for alert in overview.alerts] if overview.alerts else []
    lines += [""] + [f"history: {event}" for event in overview.history] if overview.history else []
    lines += ["", f"To go on: {overview.to_continue}"] if overview.to_continue else []
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
    return _ALERT if overview.alerts else 0
