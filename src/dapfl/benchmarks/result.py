"""What a benchmark returns: one object, all of it measured in one run on one machine."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import cast

import msgspec
from rich.table import Table

from dapfl import __version__
from dapfl.benchmarks.timing import cores
from dapfl.crypto.engines.base import available_engines
from dapfl.system.provenance import cpu_name, source_commit

Figures = Mapping[str, object]


@dataclass(frozen=True)
class BenchResult:
    """`work`: what was done and where; `ours` and `peers`: what it took; `ratios`: how they compare.

    A peer that is not installed has the two figures `absent` (why) and `install` (how to get it).
    """

    work: Figures
    ours: Figures
    peers: Mapping[str, Figures] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)

    def with_warnings(self, *warnings: str) -> "BenchResult":
        """The same result with reasons to distrust it, beside those that it has."""
        if not warnings:
            return self
        return replace(self, work={**self.work, "warnings": [*self.warnings, *warnings]})

    @property
    def warnings(self) -> Sequence[str]:
        """Reasons to distrust the figures."""
        return cast(Sequence[str], self.work.get("warnings", ()))

    def json(self) -> str:
        """The whole result as one JSON object on one line."""
        return msgspec.json.encode(self).decode()

    def tables(self) -> Iterator[Table]:
        """The result for people: one table for each part that is not empty."""
        for title, figures in (("work", self.work), ("ours", self.ours), *self.peers.items()):
            if figures:
                yield _table(title, figures)
        if self.ratios:
            yield _table("ratios", self.ratios)


def absent(reason: str, install: str) -> Figures:
    """The figures of a peer that could not be measured."""
    return {"absent": reason, "install": install}


def host() -> Figures:
    """The machine a result was measured on, when, and by what."""
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "arithmetic_engine": available_engines()[0],
        "python": platform.python_version(),
        "dapfl": __version__,
        "commit": source_commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _table(title: str, figures: Mapping[str, object]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in _flat(figures):
        table.add_row(name, value)
    return table


def _flat(figures: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name} ")
        elif isinstance(value, float):
            yield f"{prefix}{name}", f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{prefix}{name}", f"{value:,}"
        else:
            yield f"{prefix}{name}", str(value)
