"""The parts of an installation: the core works without the others, and says what is missing."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dapfl.system.parts import PACKAGES

ROOT = Path(__file__).parents[2]
BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)
sys.meta_path.insert(0, Absent())
"""


RINGS = f"{ROOT / 'examples' / 'own_task.py'}:rings"


def without(packages: set[str], code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(packages=packages) + code],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_core_needs_no_optional_package() -> None:
    code = """
import dapfl, dapfl.cli, dapfl.tuning, dapfl.runs.monitoring.status
import dapfl.federation.client, dapfl.federation.round
import numpy as np
from dapfl.crypto import VectorCipher, generate_keypair
key = generate_keypair(512, allow_insecure_small_keys=True)
cipher = VectorCipher(key.public_key, max_terms=2)
assert cipher.decrypt(cipher.encrypt(np.array([1.5])), key) == [1.5]
assert dapfl.cli.main(["status", "nowhere"]) == 2
"""
    done = without(set(PACKAGES), code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "package", "part"),
    [
        (["run", "--rounds", "1"], "torch", "train"),
        (["report", "nowhere"], "matplotlib", "report"),
        (["watch", "nowhere"], "uvicorn", "report"),
        (["run", "--engine", "flower", "--task", RINGS, "--rounds", "1"], "flwr", "flower"),
    ],
)
def test_a_command_says_which_part_it_needs(command: list[str], package: str, part: str) -> None:
    done = without({package}, f"from dapfl.cli import main; sys.exit(main({command}))")
    assert done.returncode == 2, done.stderr
    assert f"{package} is not installed here" in done.stderr and f".[{part}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Keys" not in done.stderr  # it is said before any work is done


def test_a_name_of_the_front_door_says_which_part_it_needs() -> None:
    code = "import dapfl\ntry:\n    dapfl.run\nexcept dapfl.DapflError as error:\n    print(error)"
    assert "torch is not installed here" in without({"torch"}, code).stdout
    code = (
        "import dapfl.flower\ntry:\n    dapfl.flower.mod\nexcept dapfl.DapflError as error:\n    print(error)"
    )
    assert "flwr is not installed here" in without({"flwr"}, code).stdout


def test_every_optional_package_is_in_the_extra_that_messages_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {"PIL": "pillow"}
    for package, part in PACKAGES.items():
        needed = project["optional-dependencies"][part.extra]
        assert any(need.startswith(names.get(package, package)) for need in needed)
        assert not any(need.startswith(names.get(package, package)) for need in project["dependencies"])
