"""docs/configuration.md, the reference of every key."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "configuration"
GENERATOR = runpy.run_path(str(SCRIPT))


def test_the_reference_is_what_the_schema_says() -> None:
    assert GENERATOR["PAGE"].read_text("utf-8") == GENERATOR["page"](), f"run {SCRIPT} --write"


def test_every_key_has_a_meaning() -> None:
    rows = [line for line in GENERATOR["page"]().splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if row.endswith("|  |")] == []
