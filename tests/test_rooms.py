"""The plan of docs/architecture.md: no package is overfull, and each one is on the plan."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.parent for path in (ROOT / "src/dapfl").rglob("__init__.py"))
MOST_MODULES = 12


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_no_package_is_overfull(package: Path) -> None:
    modules = sorted(path.stem for path in package.glob("*.py") if path.stem != "__init__")
    assert len(modules) <= MOST_MODULES, f"{package.name}: which two packages are these? {modules}"


def test_the_plan_names_every_package() -> None:
    plan = (ROOT / "docs/architecture.md").read_text("utf-8").split("```")[1]
    named = plan.replace("(", " ").replace(",", " ").split()
    missing = [
        package.relative_to(ROOT / "src").as_posix()
        for package in PACKAGES[1:]
        if f"{package.name}/" not in named and package.name not in named
    ]
    assert not missing
