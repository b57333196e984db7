"""The scripts that set the project up, and the lists that point into it."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NATIVE = sorted(path.relative_to(ROOT) for path in ROOT.glob("src/**/native/*.[ch]"))

FIRST_OF_EACH_FOLDER = sorted({str(path.parent): str(path) for path in reversed(NATIVE)}.values())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What `scripts/setup` looks at, and a Python that only notes that it was called."""
    for name in ("scripts/setup", "setup.py", "pyproject.toml", "requirements.lock", *NATIVE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >> calls\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def installs(project: Path) -> bool:
    """Whether `scripts/setup` has something to install."""
    calls = project / "calls"
    calls.unlink(missing_ok=True)
    subprocess.run(["sh", "scripts/setup"], cwd=project, check=True, capture_output=True, env=os.environ)
    return calls.exists()


def test_setup_does_nothing_when_nothing_has_changed(project: Path) -> None:
    assert installs(project)
    assert not installs(project)


@pytest.mark.parametrize("changed", ["setup.py", "requirements.lock", *FIRST_OF_EACH_FOLDER])
def test_setup_notices_a_change_of(project: Path, changed: str) -> None:
    installs(project)
    with (project / changed).open("a") as file:
        file.write("\n")
    assert installs(project)


def test_the_readme_of_the_examples_lists_every_one() -> None:
    text = (ROOT / "examples" / "README.md").read_text()
    names = {path.name for path in (ROOT / "examples").iterdir()} - {"README.md", "__pycache__"}
    assert {name for name in names if f"]({name}" not in text} == set()
