"""`dapfl data`: fetch and inspect the data sets."""

import argparse

EXAMPLES = """examples:
  dapfl data fetch             fetch every data set that is not there yet
  dapfl data fetch mnist       fetch one
  dapfl data show              what is there, where, and whether it is intact

The files live in your cache folder; set DAPFL_DATA to keep them elsewhere."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    actions = parser.add_subparsers(dest="action", metavar="fetch|show", required=True)
    fetch = actions.add_parser("fetch", help="make data sets present and verified", epilog=EXAMPLES)
    fetch.add_argument("names", nargs="*", metavar="NAME", help="mnist, fashion; all of them by default")
    show = actions.add_parser("show", help="list the files, verified", epilog=EXAMPLES)
    for action in (fetch, show):
        action.formatter_class = argparse.RawDescriptionHelpFormatter
        action.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def execute(args: argparse.Namespace) -> int:
    """Fetches or shows; 1 if `show` finds a data set incomplete."""
    return _fetch(args.names) if args.action == "fetch" else _show()


def _fetch(names: list[str]) -> int:
    from dapfl import console
    from dapfl.learning import data

    for name in names:
        data.collection_named(name)  # a misspelt name fails before anything is fetched
    for name in names or data.COLLECTIONS:
        console.out.print(f"{name}: verified, in {data.fetch(name)}", markup=False)
    return 0


def _show() -> int:
    from dapfl import console
    from dapfl.learning import data

    complete = True
    for name in data.COLLECTIONS:
        console.out.print(f"{name}, in {data.cache_folder() / name}", markup=False)
        for file in data.status(name):
            console.out.print(f"  {file.path.name:<24} {file.size:>10,} bytes  {file.state}", markup=False)
            complete &= file.state == "verified"
    if not complete:
        console.err.print("Run 'dapfl data fetch' to complete them.", markup=False)
    return 0 if complete else 1
