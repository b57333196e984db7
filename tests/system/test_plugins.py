"""Objects in a user's own files are found, run once and complained about clearly."""

import pickle
import sys
from pathlib import Path

import pytest

from dapfl.errors import ConfigError
from dapfl.system.plugins import Plugin, companions, relocated


def plugin(folder: Path, text: str, name: str = "mine") -> Plugin:
    (folder / "own.py").write_text(text)
    return Plugin(folder / "own.py", name)


@pytest.mark.parametrize("text", ["", "cnn-mnist", "fixed:0.1:6", "own.py:", ":mine", "own.txt:mine"])
def test_only_a_python_file_and_a_name_are_a_plugin(text: str) -> None:
    assert Plugin.parse(text) is None
    assert relocated(text, Path.resolve) == text


def test_a_file_without_a_name_in_it_is_said() -> None:
    with pytest.raises(ConfigError, match=r"below/own\.py:NAME"):
        Plugin.parse("below/own.py")


def test_a_colon_in_a_folder_is_part_of_the_path() -> None:
    assert Plugin.parse("a:b/own.py:mine") == Plugin(Path("a:b/own.py"), "mine")


def test_a_reference_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert relocated("below/own.py:mine", Path.resolve) == f"{tmp_path.resolve()}/below/own.py:mine"


def test_a_file_runs_once_whatever_path_it_is_named_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plugin(tmp_path, "mine = object()").load()
    monkeypatch.chdir(tmp_path)
    assert Plugin(Path("own.py"), "mine").load() is found


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert plugin(tmp_path, "mine = 1").load() == 1
    assert plugin(tmp_path / "other", "mine = 2").load() == 2


def test_a_dataclass_in_a_users_file_works_and_can_be_pickled(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\n"
        "from dataclasses import KW_ONLY, dataclass\n"
        "@dataclass(frozen=True)\n"
        "class mine:\n    _: KW_ONLY\n    value: int = 3\n"
    )
    found = plugin(tmp_path, text).load()
    assert isinstance(found, type) and pickle.loads(pickle.dumps(found())) == found()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("other = 3", "own.py does not define 'mine'"),
        ("import no_such_module", "own.py fails: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def mine(:", "own.py fails: SyntaxError"),
        ("raise SystemExit(1)", "own.py fails: SystemExit"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        plugin(tmp_path, text).load()


def test_a_file_that_failed_can_be_mended(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fails"):
        plugin(tmp_path, "1 / 0").load()
    assert plugin(tmp_path, "mine = 'mended now'").load() == "mended now"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.py does not exist"):
        Plugin(tmp_path / "absent.py", "mine").load()


# Neighbours ------------------------------------------------------------------------------------


@pytest.fixture
def unchanged_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))


def test_a_file_may_import_its_neighbour(tmp_path: Path, unchanged_path: None) -> None:
    (tmp_path / "wards_of_this_test.py").write_text("VALUE = 5")
    text = (
        "import wards_of_this_test\ndef mine():\n    from wards_of_this_test import VALUE\n    return VALUE"
    )
    found = plugin(tmp_path, text).load()
    assert callable(found) and found() == 5


def test_a_file_in_a_package_may_import_relatively(tmp_path: Path, unchanged_path: None) -> None:
    package = tmp_path / "hospital_of_this_test"
    (package / "tasks").mkdir(parents=True)
    for folder in (package, package / "tasks"):
        (folder / "__init__.py").touch()
    (package / "data.py").write_text("VALUE = 7")
    (package / "names.json").write_text("[]")
    (package / "tasks" / "first.py").write_text("from ..data import VALUE as mine")
    file = package / "tasks" / "first.py"
    assert Plugin(file, "mine").load() == 7
    assert {str(each.relative_to(tmp_path)) for each in companions(file)} == {
        "hospital_of_this_test/__init__.py",
        "hospital_of_this_test/data.py",
        "hospital_of_this_test/names.json",
        "hospital_of_this_test/tasks/__init__.py",
        "hospital_of_this_test/tasks/first.py",
    }


def test_what_a_file_imports_from_beside_it_belongs_to_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import numpy, near\nfrom kit.part import x")
    (tmp_path / "near.py").write_text("def later():\n    import far")
    (tmp_path / "far.py").touch()
    (tmp_path / "unused.py").touch()
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "__init__.py").touch()
    (tmp_path / "kit" / "part.py").write_text("x = 1")
    names = {str(each.relative_to(tmp_path)) for each in companions(tmp_path / "own.py")}
    assert names == {"own.py", "near.py", "far.py", "kit/__init__.py", "kit/part.py"}


def test_other_installed_packages_are_no_neighbours_of_a_file_in_one(tmp_path: Path) -> None:
    home = tmp_path / "site-packages"
    for package in ("tasks_of_this_test", "arrays_of_this_test"):
        (home / package).mkdir(parents=True)
        (home / package / "__init__.py").touch()
    file = home / "tasks_of_this_test" / "first.py"
    file.write_text("import arrays_of_this_test")
    names = {str(each.relative_to(home)) for each in companions(file)}
    assert names == {"tasks_of_this_test/__init__.py", "tasks_of_this_test/first.py"}
