"""`dapfl bench`: measures Dap-FL, beside other libraries."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from dapfl.commands.options import choices_of
from dapfl.errors import ConfigError
from dapfl.system.console import err, out

if TYPE_CHECKING:
    from dapfl.benchmarks.result import BenchResult

EXAMPLES = """\
examples:
  dapfl bench crypto                        Paillier operations per second on one core
  dapfl bench aggregation --json            one secure aggregation, as one JSON object
  dapfl bench aggregation --sizes 7850,21840
  dapfl bench round --peer-python peers/bin/python
  dapfl bench scale --clients 20,200
  dapfl bench target --peer-python peers/bin/python

Other libraries are measured where they are installed: pip install '.[bench]' for the cryptographic
ones. Flower's simulation and pfl bring many packages: give them an environment of their own that also has
dapfl, and name its interpreter by --peer-python.
"""


_BUSY = 0.15  # cores that other processes may use


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `dapfl bench`."""
    parser.add_argument("what", choices=list(_BENCHES), help="what to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument(
        "--quick", action="store_true", help="a first impression: smaller work, fewer repeats"
    )
    parser.add_argument(
        "--sizes", type=_numbers, metavar="N[,N]", help="aggregation: the vector sizes of the growth lines"
    )
    parser.add_argument(
        "--codec",
        choices=choices_of("crypto.codec"),
        default="compact",
        help="aggregation, round: how models become integers",
    )
    parser.add_argument(
        "--clients", type=_numbers, metavar="N[,N]", help="scale: the sizes of the federations"
    )
    parser.add_argument(
        "--tasks",
        metavar="T[,T]",
        help="round, target: the tasks; round '': encrypted rounds only; scale: of encrypted federations",
    )
    parser.add_argument(
        "--encryptions",
        metavar="E[,E]",
        help="round: which encrypted rounds, of hybrid, paillier and committee (default: all)",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="round: how many rounds (default: 12)")
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="FILE",
        help="round, target: the interpreter that has Flower's simulation and pfl (default: this one)",
    )


def execute(args: argparse.Namespace) -> int:
    """Runs one benchmark and prints what it found."""
    from dapfl.benchmarks.timing import others_load, results_only_on_stdout

    err.print(f"Measuring {args.what}; nothing else should run on this machine.")
    before = others_load()
    with results_only_on_stdout():
        result = _BENCHES[args.what](args)
    for when, load in (("before", before), ("after", others_load())):
        if load > _BUSY:
            result = result.with_warnings(
                f"The machine was busy {when} the measurement: other processes used {load:.1f} cores."
            )
    for warning in result.warnings:
        err.print(f"Warning: {warning}")
    if args.json:
        print(result.json())
        return 0
    for table in result.tables():
        out.print(table)
        out.print()
    return 0


def _crypto(args: argparse.Namespace) -> "BenchResult":
    from dapfl.benchmarks import crypto

    return crypto.run(seconds=0.1, repeats=3) if args.quick else crypto.run()


def _aggregation(args: argparse.Namespace) -> "BenchResult":
    from dapfl.benchmarks import aggregation

    sizes = args.sizes or (aggregation.SIZES[:2] if args.quick else aggregation.SIZES)
    return aggregation.run(sizes=sizes, codec=args.codec, repeats=1 if args.quick else 3)


def _round(args: argparse.Namespace) -> "BenchResult":
    from dapfl.benchmarks import round as round_

    tasks = round_.TASKS if args.tasks is None else tuple(filter(None, args.tasks.split(",")))
    encryptions = tuple(args.encryptions.split(",")) if args.encryptions else tuple(round_.ENCRYPTIONS)
    unknown = [name for name in encryptions if name not in round_.ENCRYPTIONS]
    if unknown:
        raise ConfigError(f"No rounds are encrypted by '{unknown[0]}': choose hybrid, paillier or committee.")
    rounds = args.rounds or (3 if args.quick else 12)
    if rounds < 2:
        raise ConfigError("The first round is not counted: there must be at least 2.")
    return round_.run(
        tasks=tasks,
        rounds=rounds,
        encrypted_rounds=rounds,
        codec=args.codec,
        encryptions=encryptions,
        peer_python=args.peer_python,
    )


def _target(args: argparse.Namespace) -> "BenchResult":
    from dapfl.benchmarks import target

    targets = target.QUICK if args.quick else target.TARGETS
    if args.tasks:
        known = {**target.QUICK, **target.TARGETS}
        unknown = [task for task in args.tasks.split(",") if task not in known]
        if unknown:
            raise ConfigError(f"There is no target for {unknown[0]}: choose among {', '.join(known)}.")
        targets = {task: known[task] for task in args.tasks.split(",")}
    grid = target.GRID[:1] if args.quick else target.GRID
    return target.run(targets=targets, grid=grid, peer_python=args.peer_python)


def _scale(args: argparse.Namespace) -> "BenchResult":
    from dapfl.benchmarks import scale

    clients = args.clients or (scale.CLIENTS[:2] if args.quick else scale.CLIENTS)
    encrypted = scale.ENCRYPTED
    if args.tasks is not None:
        known = {each[0] for each in encrypted}
        unknown = [task for task in args.tasks.split(",") if task not in known]
        if unknown:
            raise ConfigError(
                f"There is no encrypted federation of {unknown[0]} to measure: "
                f"choose among {', '.join(sorted(known))}."
            )
        encrypted = tuple(each for each in encrypted if each[0] in args.tasks.split(","))
    elif args.quick or args.clients:
        encrypted = encrypted[:1]
    return scale.run(clients=clients, encrypted=encrypted, rounds=2 if args.quick else 3)


_BENCHES: dict[str, Callable[[argparse.Namespace], "BenchResult"]] = {
    "crypto": _crypto,
    "aggregation": _aggregation,
    "round": _round,
    "scale": _scale,
    "target": _target,
}


def _numbers(text: str) -> tuple[int, ...]:
    """Positive whole numbers separated by commas."""
    try:
        numbers = tuple(int(part) for part in text.replace("_", "").split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers such as 20,200") from None
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' holds a number below 1")
    return numbers
