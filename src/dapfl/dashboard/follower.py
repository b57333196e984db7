"""Follows a run directory as it is written, from before it exists until after its run has ended."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from msgspec import Struct

from dapfl.dashboard.views import (
    ClientView,
    Facts,
    Palette,
    RoundView,
    client_views,
    facts_of,
    palette_of,
    round_view,
)
from dapfl.errors import RunDirectoryError
from dapfl.federation.records import RoundRecord
from dapfl.reporting.measures import capability_of
from dapfl.runs.directory import RunDirectory
from dapfl.runs.monitoring.devices import Fleet, fleet_path, read_fleet
from dapfl.runs.monitoring.reasons import EXPLANATIONS
from dapfl.runs.results import RoundsReader, in_order


class Update(Struct, frozen=True):
    """What a page is sent: everything at first (`fresh`), then what is new.

    `meanings` are the reasons of refusals and losses in words; they are sent at first only.
    """

    fresh: bool
    problem: str | None
    facts: Facts | None
    palette: Palette
    meanings: dict[str, str]
    rounds: tuple[RoundView, ...]
    clients: tuple[ClientView, ...]
    deadline: str | None = None  # until when devices must answer

    def to_json(self) -> bytes:
        """The update as one line of JSON."""
        return msgspec.json.encode(self)


@dataclass(frozen=True)
class FollowedRun:
    """What is known of a run directory.

    `version` goes up with every change. `generation` goes up when the rounds sent so far no longer hold,
    because the directory was replaced or its run was set back.
    """

    version: int = 0
    generation: int = 0
    problem: str | None = None
    facts: Facts | None = None
    capabilities: dict[int, float] = field(default_factory=dict)
    rounds: tuple[RoundView, ...] = ()
    last: RoundRecord | None = None
    fleet: Fleet | None = None

    def update(self, after: int = 0) -> Update:
        """The rounds from number `after` on, with the clients after the last one; everything when 0."""
        running = self.facts is not None and self.facts.status == "running"
        return Update(
            fresh=after == 0,
            problem=self.problem,
            facts=self.facts,
            palette=palette_of(self.capabilities),
            meanings={reason: each.meaning for reason, each in EXPLANATIONS.items()} if after == 0 else {},
            rounds=self.rounds[after:],
            clients=tuple(client_views(self.last, self.capabilities, self.fleet, running))
            if self.last
            else (),
            deadline=self.fleet.deadline if self.fleet and running else None,
        )


class Follower:
    """Keeps `run` up to date with a run directory.

    `refresh` may be called in another thread than the readers of `run`: it replaces the whole value.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run = FollowedRun()
        self._files = RunDirectory(directory)
        self._reader = RoundsReader(self._files.rounds_path)
        self._restarts = 0
        self._seen: object = None

    def refresh(self) -> None:
        """Reads what has changed on the disk since the last look; never raises for what it finds there."""
        files = self._files
        # A run that is killed changes no file, but it no longer holds the lock.
        stamps = map(_stamp, (files.manifest_path, files.rounds_path, fleet_path(self.directory)))
        seen = (*stamps, files.abandoned)
        if seen == self._seen:
            return
        self._seen = seen
        run = replace(self.run, version=self.run.version + 1, problem=None)
        try:
            run = replace(run, facts=facts_of(self.directory, files.read_manifest()))
            run = replace(run, fleet=read_fleet(self.directory))
            run = self._with(run, self._reader.read_new())
        except RunDirectoryError as error:
            run = replace(run, problem=self._explain(str(error)))
        except (ValueError, ArithmeticError, LookupError, TypeError) as error:  # numbers that cannot be shown
            where = f"{files.rounds_path} cannot be shown ({type(error).__name__}: {error})"
            run = replace(run, problem=f"{where}. It was not written by this version, or is damaged.")
        self.run = run

    def _with(self, run: FollowedRun, records: list[RoundRecord]) -> FollowedRun:
        records = in_order(records)
        first = records[0].round if records else math.inf
        if self._reader.restarts > self._restarts:
            self._restarts = self._reader.restarts
            first = -1
        kept = tuple(view for view in run.rounds if view.round < first)
        set_back = len(kept) < len(run.rounds)
        capabilities = run.capabilities | capability_of(records)
        return replace(
            run,
            generation=run.generation + set_back,
            capabilities=capabilities,
            rounds=kept + tuple(round_view(record, capabilities) for record in records),
            last=records[-1] if records else run.last,
        )

    def _explain(self, error: str) -> str:
        if not self.directory.exists():
            return f"Waiting for {self.directory}: there is no such directory yet."
        if not self._files.begun:
            return f"Waiting for {self._files.manifest_path}: no run has been started in this directory yet."
        return error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file does."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
