from dataclasses import replace
from pathlib import Path

import pytest

from dapfl.cli import main
from dapfl.learning import datasets as data
from dapfl.learning.datasets import ADULT, CIFAR10, FASHION, HAPT, MNIST, SHAKESPEARE

from ..learning.datasets.idx_files import BROKEN, CONTENTS, FakeSource, small_collection


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


def test_only_the_data_of_the_paper_are_fetched_unless_all_are_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    large = replace(small_collection(FakeSource()), name="large", by_default=False)
    monkeypatch.setitem(data.COLLECTIONS, "large", large)
    main(["data", "fetch"])
    assert not (folder.parent / "large").exists()
    assert main(["data", "show"]) == 0  # nobody has asked for the other
    (folder.parent / "large").mkdir()
    (folder.parent / "large" / "test-labels").write_bytes(CONTENTS["test-labels"])
    assert main(["data", "show"]) == 1  # a part of it is worse than nothing
    capsys.readouterr()
    assert main(["data", "fetch", "all"]) == 0
    assert capsys.readouterr().out.count("verified") == 2
    assert main(["data", "show"]) == 0


def test_show_names_licence_and_citation(capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "show"])
    printed = capsys.readouterr().out
    assert "small: Small: fifty made-up images" in printed
    assert "licence: anybody's" in printed
    assert "cite: Nobody, never" in printed


def test_every_data_set_says_where_it_comes_from() -> None:
    for collection in (MNIST, FASHION, CIFAR10, HAPT, SHAKESPEARE, ADULT):
        assert all([collection.about.title, collection.about.licence, collection.about.citation])
        assert collection.sources
        assert all(len(file.sha256) == 64 and file.size for file in collection.files)
