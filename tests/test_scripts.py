"""The scripts that set the project up, and the lists that point into it."""

import hashlib
import os
import re
import shutil
import stat
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NATIVE = sorted(path.relative_to(ROOT) for path in ROOT.glob("src/**/native/*.[ch]"))

FIRST_OF_EACH_FOLDER = sorted({str(path.parent): str(path) for path in reversed(NATIVE)}.values())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What `scripts/setup` looks at, and a Python that only notes that it was called."""
    for name in (
        "scripts/setup",
        "setup.py",
        "pyproject.toml",
        "requirements.lock",
        "requirements-torch.lock",
        *NATIVE,
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "$@" >> calls\n'
        'case "$*" in *download*) mkdir -p .venv/torch; printf fetched >.venv/torch/torch.whl ;; esac\n'
    )
    with (tmp_path / "requirements-torch.lock").open("a") as lock:
        lock.write(f"    --hash=sha256:{hashlib.sha256(b'fetched').hexdigest()}\n")
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


@pytest.mark.parametrize(
    "changed", ["setup.py", "requirements.lock", "requirements-torch.lock", *FIRST_OF_EACH_FOLDER]
)
def test_setup_notices_a_change_of(project: Path, changed: str) -> None:
    installs(project)
    with (project / changed).open("a") as file:
        file.write("\n")
    assert installs(project)


def test_what_is_installed_is_checked_by_its_hash(project: Path) -> None:
    installs(project)
    locked, fetched, torch, own = (project / "calls").read_text().splitlines()
    assert "--require-hashes" in locked and "--no-deps" in locked
    assert "download" in fetched and fetched.endswith("torch==" + version("torch").partition("+")[0])
    assert torch.endswith(".venv/torch/torch.whl")
    assert "--no-deps" in own and "--no-build-isolation" in own


def test_a_pytorch_that_the_lock_does_not_list_is_not_installed(project: Path) -> None:
    shutil.copy(ROOT / "requirements-torch.lock", project / "requirements-torch.lock")
    said = subprocess.run(["sh", "scripts/setup"], cwd=project, capture_output=True, text=True, check=False)
    assert said.returncode == 1 and "torch.whl is not one of the files" in said.stderr
    assert not any(call.endswith("torch.whl") for call in (project / "calls").read_text().splitlines())


@pytest.mark.parametrize("lock", sorted(path.name for path in ROOT.glob("requirements*.lock")))
def test_every_line_of_a_lock_has_a_version_and_hashes(lock: str) -> None:
    text = (ROOT / lock).read_text().replace(" \\\n", "").splitlines()
    for line in text[1:]:
        assert re.fullmatch(r"[a-z0-9-]+==[^ ]+(    --hash=sha256:[0-9a-f]{64})+", line), line


def test_the_readme_of_the_examples_lists_every_one() -> None:
    text = (ROOT / "examples" / "README.md").read_text()
    names = {path.name for path in (ROOT / "examples").iterdir()} - {"README.md", "__pycache__"}
    assert {name for name in names if f"]({name}" not in text} == set()
