"""`dapfl report`: tables, figures and one page of runs."""

import argparse
from pathlib import Path

from dapfl.errors import ConfigError
from dapfl.system.console import err, out, progress

EXAMPLES = """\
examples:
  dapfl report runs/cnn-mnist-dap-fl-1               into runs/cnn-mnist-dap-fl-1/report
  dapfl report comparison                            every run below a comparison's directory
  dapfl report ours theirs --out report              runs of several places, side by side
  dapfl report comparison --targets 0.8,0.9          what it took to reach these accuracies
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `dapfl report`."""
    parser.add_argument(
        "directories",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="a run directory, or one with run directories below it",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write (default: DIR/report; ./report for several)"
    )
    parser.add_argument(
        "--targets",
        type=_accuracies,
        metavar="A[,A]",
        help="target accuracies between 0 and 1 (default: by task)",
    )


def _accuracies(text: str) -> tuple[float, ...]:
    try:
        found = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers such as 0.8,0.9") from None
    if not all(0 < each <= 1 for each in found):
        raise argparse.ArgumentTypeError("a target accuracy is more than 0 and at most 1")
    return found


def execute(args: argparse.Namespace) -> int:
    """Writes the report, prints its tables and says where the page is."""
    from dapfl.reporting.report import write_report

    single = len(args.directories) == 1
    place = args.out or (args.directories[0] / "report" if single else Path("report"))
    if place.is_file():
        raise ConfigError(
            f"The report cannot be written to {place}: it is a file. Give a directory by --out."
        )
    with progress("report", None) as advance:
        report = write_report(args.directories, place, args.targets, notice=lambda name: advance(note=name))
    out.print(report.text, markup=False, end="", soft_wrap=True)
    err.print(f"\nThe page: {report.page}\nTables, curves and figures beside it.", markup=False)
    return 0
