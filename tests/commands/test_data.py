from pathlib import Path

import pytest

from dapfl.cli import main
from dapfl.learning import data

from ..learning.idx_files import BROKEN, CONTENTS, FakeSource, small_collection


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAPFL_DATA", str(tmp_path))
    monkeypatch.setattr(data, "COLLECTIONS", {"small": small_collection(FakeSource())})
    return tmp_path / "small"


def test_fetch_makes_every_data_set_present(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "fetch"]) == 0
    assert capsys.readouterr().out == f"small: verified, in {folder}\n"
    assert sorted(path.name for path in folder.iterdir()) == sorted(CONTENTS)


def test_fetch_refuses_a_misspelt_name_before_it_fetches(folder: Path, capsys) -> None:
    assert main(["data", "fetch", "small", "smal"]) == 2
    assert "no data set 'smal': the data sets are small" in capsys.readouterr().err
    assert not folder.exists()


def test_a_fetch_that_fails_says_so_in_one_sentence_and_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "COLLECTIONS", {"small": small_collection(BROKEN)})
    assert main(["data", "fetch"]) == 2
    assert "dapfl data: The data set small cannot be fetched" in capsys.readouterr().err


def test_show_tells_what_is_there_and_what_is_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show"]) == 1
    printed = capsys.readouterr()
    assert printed.out.count("missing") == 4
    assert "dapfl data fetch" in printed.err
    main(["data", "fetch"])
    (folder / "test-labels").write_bytes(b"")
    assert main(["data", "show"]) == 1
    printed = capsys.readouterr()
    assert printed.out.count("verified") == 4  # the line of fetch, and three files
    assert printed.out.count("corrupt") == 1
    main(["data", "fetch", "small"])
    capsys.readouterr()
    assert main(["data", "show"]) == 0
    assert str(folder) in capsys.readouterr().out
