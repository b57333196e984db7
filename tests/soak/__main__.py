"""`scripts/soak --minutes N`: faults, hostile messages, a search for secrets, counted in a file.

A soak that is stopped, or started again, goes on from its file with other seeds.
"""

import argparse
import logging
import shlex
import sys
import time
from pathlib import Path

from dapfl.crypto.engines.base import set_threads
from tests.soak.counts import Counts
from tests.soak.parts import PARTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on")
    parser.add_argument("--out", type=Path, default=Path("soak.json"), help="the counts; continued if there")
    parser.add_argument("--only", metavar="PART,...", help=f"some of {', '.join(PARTS)}")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(PARTS)
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    logging.disable(logging.CRITICAL)  # every refusal is logged
    set_threads(1)
    counts = Counts.read(args.out, f"scripts/soak {shlex.join(sys.argv[1:])}")
    end, last = time.monotonic() + 60 * args.minutes, False
    while not last:
        for name in names:
            PARTS[name](counts)
            last = time.monotonic() >= end
            if last:
                break
        counts.write(args.out)
    print(args.out.read_text())
    return 1 if counts.problems else 0


if __name__ == "__main__":
    sys.exit(main())
