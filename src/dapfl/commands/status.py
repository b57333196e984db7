"""`dapfl status`: how a run and its clients are doing."""

import argparse
from pathlib import Path

from dapfl.console import out

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
    """Prints the state."""
    import msgspec

    from dapfl.runs.results import read_run
    from dapfl.runs.status import state_of

    state = state_of(read_run(args.directory))
    if args.json:
        out.print(msgspec.json.encode(state).decode(), markup=False, soft_wrap=True)
        return _ALERT if state.alerts else 0
    accuracy = "?" if state.accuracy is None else f"{100 * state.accuracy:.2f} %"
    planned = "?" if state.planned is None else state.planned
    lines = [
        f"{state.setting} on {state.task}: {state.status}, round {state.rounds} of {planned}",
        f"test accuracy {accuracy}; {state.participants} contributions in the last round; "
        f"{state.without_model} rounds without a model; {state.rejected} messages rejected",
        "",
        f"{'client':<24}{'state':<12}{'lost for':<10}{'last in':<9}{'contributions':<15}why",
    ]
    for each in state.clients:
        last = "never" if each.last_in is None else str(each.last_in)
        lines.append(
            f"{each.name:<24}{each.state:<12}{each.lost_for or '':<10}{last:<9}{each.contributions:<15}"
            f"{each.reason or ''}".rstrip()
        )
    lines += [""] + [f"ALERT: {alert}" for alert in state.alerts] if state.alerts else []
    lines += [""] + [f"history: {event}" for event in state.history] if state.history else []
    lines += ["", f"To go on: {state.to_continue}"] if state.to_continue else []
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
    return _ALERT if state.alerts else 0
