"""Faults over encrypted runs: participants die, come back, are late, lose their memory; disks are full.

Everything lives in one process, so that a thousand faults take minutes: a participant dies by being thrown
away, and comes back from what it had saved. After each run, a run without faults in which the same clients
took part must have made the same model, bit for bit.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np

from dapfl.federation.records import RoundRecord, Status
from dapfl.federation.server_state.state_file import StateFile
from dapfl.federation.transport import ClientId, Exchange, Transport
from tests.federation.small import Small

ROUNDS = 4


@dataclass
class Clock:
    """The clock of the machine, which jumps."""

    offset: float = 0.0

    def time(self) -> float:
        return time.monotonic() + self.offset


CLOCK = Clock()


class Killed(Exception):
    """CS dies at this point."""


@dataclass
class FaultTally:
    """What was done to runs, and what came of it."""

    runs: int = 0
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    lost_rounds: int = 0
    problems: list[str] = field(default_factory=list)


class Faulty:
    """A transport on which things go wrong, and from which clients are killed."""

    def __init__(
        self, small: Small, inner: Transport, disk: "FullDisk", rng: np.random.Generator, tally: FaultTally
    ) -> None:
        self.small, self.inner, self.disk, self.rng, self.tally = small, inner, disk, rng, tally
        self.late: dict[ClientId, bytes] = {}
        self.older: dict[ClientId, bytes] = {}  # the states before the last exchange

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float, *more: Any) -> Exchange:
        small, rng = self.small, self.rng
        for client, reply in self.late.items():  # of an exchange before this one: too late
            small.server.receive(client, reply)
        self.late = {}
        fault = str(rng.choice(_FAULTS))
        client = int(rng.choice(list(messages)))
        self.tally.faults[fault] += 1
        if fault == "cs-killed-before-sending":
            raise Killed
        if fault == "disk-full":
            self.disk.full = True
        if fault == "clock-jump":
            CLOCK.offset = float(rng.integers(-(10**6), 10**6))
        if fault == "client-killed":
            self._restart(client, small.parts[client].saved_state())
        if fault == "client-lost-its-memory":
            self._restart(client, None)
        if fault == "client-newest-state-damaged":  # it goes on from the state before it
            self._restart(client, self.older.get(client))
        self.older = {each: part.saved_state() for each, part in small.parts.items()}
        if fault == "client-gone":
            messages = {c: data for c, data in messages.items() if c != client}
        replies, failures = self.inner.exchange(messages, timeout)
        replies = dict(replies)
        if fault == "client-gone":
            failures = {**failures, client: "offline"}
        if fault == "client-late":
            self.late = {client: replies.pop(client)}
            failures = {**failures, client: "late"}
        if fault == "reply-twice":
            small.server.receive(client, replies[client])
        if fault == "reply-damaged":
            broken = bytearray(replies[client])
            broken[int(rng.integers(len(broken)))] ^= 1 << int(rng.integers(8))
            replies[client] = bytes(broken)
        if fault == "cs-killed-after-the-exchange":
            raise Killed
        return Exchange(replies, failures)

    def _restart(self, client: ClientId, state: bytes | None) -> None:
        again = self.small.client(client)
        if state is not None:
            again.restore(state)
        self.small.parts[client] = again
        transport: Any = self.inner
        transport.clients[client] = again


_FAULTS = [
    "client-gone",
    "client-late",
    "client-killed",
    "client-lost-its-memory",
    "client-newest-state-damaged",
    "reply-twice",
    "reply-damaged",
    "cs-killed-before-sending",
    "cs-killed-after-the-exchange",
    "disk-full",
    "clock-jump",
]


class FullDisk(StateFile):
    """A state file whose disk is full for one write, when told so."""

    full = False

    def write(self, state: bytes) -> None:
        if self.full:
            self.full = False
            raise OSError(28, "No space left on device")
        super().write(state)


def run_with_faults(
    tally: FaultTally,
    seed: int,
    *,
    codec: str = "exact",
    decryption: Literal["shared", "committee"] = "shared",
    one_exchange_per_round: bool = True,
) -> None:
    """One run of a few rounds; every exchange has a fault."""
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {
        "clients": 6,
        "codec": codec,
        "decryption": decryption,
        "one_exchange_per_round": one_exchange_per_round,
        "standalone": True,
    }
    records: dict[int, RoundRecord] = {}
    with tempfile.TemporaryDirectory() as folder:
        disk = FullDisk(Path(folder) / "federation.state")

        def wrap(small: Small, transport: Transport) -> Transport:
            return Faulty(small, transport, disk, rng, tally)

        small = Small(**options, state_file=disk, wrap=wrap)
        for _ in range(200):
            try:
                with mock.patch.object(time, "time", CLOCK.time):
                    for record in small.federation.rounds(ROUNDS):
                        records[record.round] = record  # after a crash a record may come again
                break
            except (Killed, OSError):
                small = _restarted(small, options, disk, wrap)
    tally.runs += 1
    tally.rounds += len(records)
    _check(tally, seed, small, records, options)


def _restarted(old: Small, options: Mapping[str, Any], disk: FullDisk, wrap: Any) -> Small:
    """CS comes back from its disk; the clients have gone on living."""
    again = Small(**options, state_file=disk, wrap=wrap)
    again.parts.update(old.parts)
    again.local.clients.update(old.parts)
    if (state := disk.read()) is not None:
        again.federation.restore(state)
    return again


def _check(
    tally: FaultTally, seed: int, small: Small, records: Mapping[int, RoundRecord], options: Mapping[str, Any]
) -> None:
    where = f"seed {seed}, {options}"
    if sorted(records) != list(range(ROUNDS)):
        tally.lost_rounds += ROUNDS - len(records)
        tally.problems.append(f"rounds {sorted(records)} instead of {ROUNDS}: {where}")
        return
    for record in records.values():
        tally.rejections.update(rejection.reason for rejection in record.rejections)
        taken = tuple(c.id for c in record.clients if c.status is Status.ACCEPTED)
        if record.cohort and taken != record.cohort:
            tally.problems.append(f"round {record.round} took {taken} and counts {record.cohort}: {where}")
        if any(rejection.reason == "internal-error" for rejection in record.rejections):
            tally.problems.append(f"internal-error in round {record.round}: {where}")
    cohorts = [records[t].cohort for t in range(ROUNDS)]
    calm, expected = _undisturbed(cohorts, options)
    last = max((t for t in range(ROUNDS) if records[t].accuracy is not None and cohorts[t]), default=None)
    if last is None or options["codec"] == "compact":  # whose clients carry over what was not taken
        return
    if records[last].loss != expected[last].loss:
        tally.problems.append(f"after round {last} the loss is not that of a run without faults: {where}")
    if last == ROUNDS - 1 and not np.array_equal(small.federation.weights, calm.federation.weights):
        tally.problems.append(f"the model is not that of a run without faults: {where}")


def _undisturbed(
    cohorts: list[tuple[ClientId, ...]], options: Mapping[str, Any]
) -> tuple[Small, list[RoundRecord]]:
    """A run without faults in which these clients take part, and its records."""

    class Chosen:
        def select(self, t: int, clients: Any) -> tuple[ClientId, ...]:
            return cohorts[t] or tuple(clients)[:1]

        def observe(self, reports: Any) -> None: ...

        def state(self) -> bytes:
            return b""

        def restore(self, state: bytes) -> None: ...

    calm = {**options, "one_exchange_per_round": False, "options": {"selector": Chosen()}}
    made = Small(**calm)
    return made, made.play(ROUNDS)
