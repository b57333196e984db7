"""`dapfl data`: fetch and inspect the data sets."""

import argparse

EXAMPLES = """examples:
  dapfl data fetch             fetch the data of the paper's tasks (mnist, fashion)
  dapfl data fetch hapt adult  fetch these
  dapfl data fetch all         fetch everything: about 240 MB
  dapfl data show              what is there, where, whether it is intact, and under which licence

A run fetches what it needs by itself. The files are in your cache folder; set DAPFL_DATA to keep
them elsewhere."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    actions = parser.add_subparsers(dest="action", metavar="fetch|show", required=True)
    fetch = actions.add_parser("fetch", help="make data sets present and verified", epilog=EXAMPLES)
    fetch.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="mnist, fashion, cifar10, hapt, shakespeare, adult, or all; mnist and fashion by default",
    )
    show = actions.add_parser("show", help="list the data sets and their files, verified", epilog=EXAMPLES)
    for action in (fetch, show):
        action.formatter_class = argparse.RawDescriptionHelpFormatter
        action.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def execute(args: argparse.Namespace) -> int:
    """Fetches or shows; 1 if `show` finds a data set incomplete that should not be."""
    return _fetch(args.names) if args.action == "fetch" else _show()


def _fetch(names: list[str]) -> int:
    from dapfl.learning import datasets
    from dapfl.system import console

    if names == ["all"]:
        names = list(datasets.COLLECTIONS)
    for name in names:
        datasets.collection_named(name)  # a misspelt name fails before anything is fetched
    for name in names or [each.name for each in datasets.COLLECTIONS.values() if each.by_default]:
        console.out.print(f"{name}: verified, in {datasets.fetch(name)}", markup=False)
    return 0


def _show() -> int:
    from dapfl.learning import datasets
    from dapfl.system import console

    complete = True
    for name, collection in datasets.COLLECTIONS.items():
        about, files = collection.about, datasets.status(name)
        console.out.print(f"{name}: {about.title}", markup=False)
        console.out.print(f"  licence: {about.licence}", markup=False)
        console.out.print(f"  cite: {about.citation}", markup=False)
        console.out.print(f"  in {datasets.cache_folder() / name}", markup=False)
        for file in files:
            console.out.print(f"    {file.path.name:<24} {file.size:>11,} bytes  {file.state}", markup=False)
        states = {file.state for file in files}
        # A data set that nobody has asked for may be absent as a whole, not in part.
        complete &= states == {"verified"} or (states == {"missing"} and not collection.by_default)
    if not complete:
        console.err.print(
            "Run 'dapfl data fetch', with the name of the data set, to complete them.", markup=False
        )
    return 0 if complete else 1
