"""What a soak has done so far, in a file that a later soak goes on from."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dapfl.system.files import replacing
from dapfl.system.provenance import cpu_name, source_commit


@dataclass
class Counts:
    """Counts by part of the soak, and everything that should not have happened."""

    command: str
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)  # each time that the soak was started

    @classmethod
    def read(cls, path: Path, command: str) -> "Counts":
        """The counts of a file, to which a session is added; none at first."""
        old = json.loads(path.read_text()) if path.exists() else {}
        counts = cls(command, old.get("parts", {}), old.get("problems", []), old.get("sessions", []))
        where = {"commit": source_commit(), "machine": f"{cpu_name()}, {os.cpu_count()} cores"}
        counts.sessions.append({"command": command, **where, "start": _now()})
        return counts

    def write(self, path: Path) -> None:
        """Saves the counts."""
        times = os.times()
        self.sessions[-1] |= {"end": _now(), "cpu_seconds": round(times.user + times.system)}
        data = {"parts": self.parts, "problems": self.problems, "sessions": self.sessions}
        with replacing(path) as file:
            file.write(json.dumps(data, indent=1).encode() + b"\n")

    def batch(self, part: str) -> int:
        """The number of the next batch of a part: its seed, so that nothing is repeated."""
        return int(self.parts.get(part, {}).get("batches", 0))

    def add(self, part: str, **more: Any) -> None:
        """Adds to the counts of a part; numbers and numbers by name.

        Also to those of this session, so that what was tried with which commit can be told apart.
        """
        for parts in (self.parts, self.sessions[-1].setdefault("added", {})):
            mine = parts.setdefault(part, {})
            for name, value in {"batches": 1, **more}.items():
                if isinstance(value, Mapping):
                    inner = mine.setdefault(name, {})
                    for key in sorted(value):
                        inner[key] = inner.get(key, 0) + value[key]
                else:
                    mine[name] = mine.get(name, 0) + value

    def largest(self, part: str, **values: float) -> None:
        """Notes the largest values that were seen."""
        mine = self.parts.setdefault(part, {})
        for name, value in values.items():
            mine[name] = round(max(mine.get(name, 0.0), value), 3)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
