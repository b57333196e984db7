"""`scripts/soak --minutes N`: faults, hostile messages and a search for secrets, counted in a file."""

import argparse
import json
import logging
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.soak.faults import FaultTally, run_with_faults
from tests.soak.hostile import Tally, attack, peak_megabytes
from tests.soak.secrets import leaks

_BATCH = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on")
    parser.add_argument("--out", type=Path, default=Path("soak.json"), help="the counts; continued if there")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)  # every refusal is logged
    counts: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end or not counts.get("batches"):
        _batch(counts, int(counts.get("batches", 0)))
        counts |= {"machine": f"{platform.machine()} {platform.python_version()}"}
        counts["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        args.out.write_text(json.dumps(counts, indent=1))
    print(json.dumps(counts, indent=1))
    return 1 if counts["problems"] else 0


def _batch(counts: dict[str, Any], number: int) -> None:
    """Some of everything; the seed is the number of the batch, so a soak that goes on repeats nothing."""
    decryption: Any = "committee" if number % 4 == 3 else "shared"
    hostile, faults = Tally(), FaultTally()
    attack(hostile, number, _BATCH, decryption)
    for each in range(2):
        run_with_faults(
            faults,
            2 * number + each,
            codec="compact" if number % 5 == 4 else "exact",
            decryption=decryption,
            one_exchange_per_round=bool(each),
        )
    found = leaks(decryption) if number % 10 == 0 else []
    _add(counts, "hostile messages", hostile.messages)
    _add(counts, "outcomes", dict(hostile.outcomes))
    _add(counts, "kinds", dict(hostile.kinds))
    _add(counts, "runs with faults", faults.runs)
    _add(counts, "rounds with faults", faults.rounds)
    _add(counts, "faults", sum(faults.faults.values()))
    _add(counts, "faults by kind", dict(faults.faults))
    _add(counts, "lost rounds", faults.lost_rounds)
    _add(counts, "searches for secrets", int(number % 10 == 0))
    counts["slowest message, seconds"] = round(
        max(counts.get("slowest message, seconds", 0.0), hostile.slowest), 3
    )
    counts["peak memory, MB"] = round(peak_megabytes())
    problems = [*hostile.problems, *faults.problems, *(f"found outside: {name}" for name in found)]
    counts["problems"] = [*counts.get("problems", []), *problems]
    _add(counts, "batches", 1)


def _add(counts: dict[str, Any], name: str, more: Any) -> None:
    if isinstance(more, dict):
        inner = counts.setdefault(name, {})
        for key, value in more.items():
            inner[key] = inner.get(key, 0) + value
    else:
        counts[name] = counts.get(name, 0) + more


if __name__ == "__main__":
    sys.exit(main())
