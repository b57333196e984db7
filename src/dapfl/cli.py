"""The `dapfl` command: one module of `dapfl.commands` for each subcommand."""

import argparse
import os
import sys
from importlib import import_module
from typing import NoReturn

from dapfl import __version__
from dapfl.errors import DapflError, UserError
from dapfl.system.console import err, printable
from dapfl.system.parts import absent

COMMANDS = {
    "run": "one federated run: Dap-FL or any other setting",
    "compare": "several settings and seeds under the same conditions",
    "report": "tables, figures and one HTML page of finished runs",
    "watch": "a live page of a run",
    "status": "how a run and its clients are doing",
    "pretrain": "make the warm-start weights of the agent",
    "keys": "make and inspect the keys of a federation",
    "deploy": "prepare the folders of a deployment on real machines",
    "data": "fetch and inspect the data sets",
    "bench": "measure Dap-FL, beside other libraries",
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence instead of printing the whole usage."""

    def error(self, message: str) -> NoReturn:
        sentence = message[0].upper() + message[1:].rstrip(".")
        self.exit(2, f"{self.prog}: {sentence}. See '{self.prog} --help'.\n")


def parser() -> argparse.ArgumentParser:
    """The parser of every subcommand; each command module adds its own arguments."""
    top = _Parser(prog="dapfl", description="Adaptive, private federated learning.")
    top.add_argument("--version", action="version", version=f"dapfl {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, summary in COMMANDS.items():
        module = import_module(f"dapfl.commands.{name}")
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # `compare --seed 10` must not mean ten seeds
        )
        sub.add_argument("--debug", action="store_true", help="show the traceback of a failure")
        module.configure(sub)
        sub.set_defaults(execute=module.execute, parser=sub)
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs a command: 0 when it did what was asked, 2 for a user's mistake, 1 for a failure."""
    args, unknown = parser().parse_known_args(argv)
    if unknown:  # argparse itself would point to the help of `dapfl`, which does not list a command's options
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return int(args.execute(args))
    except KeyboardInterrupt:
        err.print("Stopped.")
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (`dapfl ... | head`): nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if args.debug:
            raise
        if isinstance(error, ModuleNotFoundError):
            error = absent(error) or error
        if isinstance(error, DapflError):
            err.print(f"dapfl {args.command}: {printable(str(error))}", markup=False)
            return 2 if isinstance(error, UserError) else 1
        what = f"unexpected {type(error).__name__}: {printable(str(error))}"
        err.print(f"dapfl {args.command}: {what}. Run again with --debug for the traceback.", markup=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
