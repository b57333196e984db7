"""The parts of a soak. Each does one batch, adds to the counts, and notes what should not have happened."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.soak.counts import Counts
from tests.soak.decoders import DECODERS, fuzz
from tests.soak.faults import FaultTally, run_with_faults
from tests.soak.hostile import Tally, attack, megabytes
from tests.soak.left_behind import ENDS, search
from tests.soak.processes import Plan, plan, plan_on_flower, plan_on_local
from tests.soak.processes import run_with_faults as run_processes
from tests.soak.scenes import FULL_BITS, KEY_BITS
from tests.soak.secrets import leaks

_MESSAGES, _FEW_MESSAGES = 2000, 500  # small keys, and keys of full size
_FILES = 500


def messages(counts: Counts, part: str = "messages", count: int = _MESSAGES, bits: int = KEY_BITS) -> None:
    """Hostile messages, to CS and to clients."""
    tally, number, before = Tally(), counts.batch(part), megabytes()
    attack(tally, number, count, bits)
    forgeries = sum("forgery" in problem for problem in tally.problems)
    counts.add(
        part,
        messages=tally.messages,
        forgeries_taken=forgeries,
        outcomes=tally.outcomes,
        kinds=tally.kinds,
    )
    after = megabytes()
    counts.largest(
        part,
        slowest_cpu_seconds=tally.slowest,
        memory_megabytes=after,
        memory_growth_megabytes=after - before if number else 0.0,
    )
    counts.problems += tally.problems


def faults(counts: Counts) -> None:
    """Faults in runs that live in this process."""
    tally, number = FaultTally(), counts.batch("faults")
    decryption: Any = "committee" if number % 4 == 3 else "shared"
    for each in range(2):
        run_with_faults(
            tally,
            2 * number + each,
            codec="compact" if number % 5 == 4 else "exact",
            decryption=decryption,
            one_exchange_per_round=bool(each),
        )
    _add_faults(counts, "faults", tally)
    counts.largest("faults", memory_megabytes=megabytes())


def processes(counts: Counts, part: str = "processes", plan: Callable[[int], Plan] = plan) -> None:
    """Faults of real processes."""
    tally, number = FaultTally(), counts.batch(part)
    run_processes(tally, number, plan(number))
    _add_faults(counts, part, tally)


def _add_faults(counts: Counts, part: str, tally: FaultTally) -> None:
    """What was done to the runs of a part, and what came of it."""
    counts.add(
        part,
        faults=sum(tally.faults.values()),
        kinds=tally.faults,
        runs=tally.runs,
        rounds=tally.rounds,
        lost_rounds=tally.lost_rounds,
        named=tally.rejections,
    )
    counts.problems += tally.problems


def secrets(counts: Counts) -> None:
    """Searches for private values in all that a run leaves behind."""
    found = leaks("committee" if counts.batch("secrets") % 2 else "shared")
    counts.add("secrets", searches=1, found=len(found))
    counts.problems += [f"found outside: {name}" for name in found]


def files(counts: Counts) -> None:
    """Searches all files of whole runs, which finish, are killed or crash, on both engines."""
    number = counts.batch("files")
    found = search(
        "flower" if number % 4 == 3 else "local",
        ENDS[number % len(ENDS)],
        decryption="committee" if number % 2 else "shared",
        codec="compact" if number % 5 > 2 else "exact",
    )
    counts.add(
        "files",
        searches=1,
        found=len(found.found),
        searched={"files": found.files, "bytes": found.bytes, "private values": found.values},
        models_and_plaintexts=found.plaintexts,
    )
    counts.problems += found.found


def decoders(counts: Counts) -> None:
    """Damaged and made-up files of every kind; what is new goes into the corpus."""
    number = counts.batch("decoders")
    tried = {kind: fuzz(kind, number, _FILES) for kind in DECODERS}
    counts.add(
        "decoders",
        files={kind: each.inputs for kind, each in tried.items()},
        new={kind: each.new for kind, each in tried.items()},
    )
    counts.problems += [problem for each in tried.values() for problem in each.problems]


PARTS: dict[str, Callable[[Counts], None]] = {
    "messages": messages,
    "messages-2048": partial(messages, part="messages-2048", count=_FEW_MESSAGES, bits=FULL_BITS),
    "faults": faults,
    "processes": processes,
    "processes-local": partial(processes, part="processes-local", plan=plan_on_local),
    "processes-flower": partial(processes, part="processes-flower", plan=plan_on_flower),
    "secrets": secrets,
    "files": files,
    "decoders": decoders,
}
