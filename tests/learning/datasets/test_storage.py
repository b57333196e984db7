import gzip
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dapfl.errors import DataError
from dapfl.learning import datasets as data
from dapfl.learning.datasets.sources import Source

from .idx_files import BROKEN, CONTENTS, FakeSource, arrays, small_collection


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAPFL_DATA", str(tmp_path))
    return tmp_path / "small"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., None]:
    def sources(*sources: Source) -> None:
        monkeypatch.setitem(data.COLLECTIONS, "small", small_collection(*sources))

    return sources


def states() -> list[str]:
    return [file.state for file in data.status("small")]


@pytest.mark.parametrize("gzipped", [False, True])
def test_a_data_set_is_fetched_on_first_need_and_never_again(use, folder: Path, gzipped: bool) -> None:
    source = FakeSource(gzipped=gzipped)
    use(source)
    assert states() == ["missing"] * 4
    loaded = data.load("small")
    parts = [loaded.train_images, loaded.train_labels, loaded.test_images, loaded.test_labels]
    assert all(np.array_equal(part, truth) for part, truth in zip(parts, arrays(), strict=True))
    assert loaded.classes == 3
    assert not any(part.flags.writeable for part in parts)
    assert data.fetch("small") == folder
    assert len(source.asked) == 1
    assert states() == ["verified"] * 4
    assert sorted(path.name for path in folder.iterdir()) == sorted(CONTENTS)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        CONTENTS["train-images"][:-1],
        CONTENTS["train-images"][:-1] + b"\0",
        CONTENTS["train-images"] + b"!",
    ],
    ids=["empty", "truncated", "altered", "longer"],
)
def test_a_damaged_file_is_named_and_fetched_again(use, folder: Path, damaged: bytes, capsys) -> None:
    source = FakeSource()
    use(source)
    data.fetch("small")
    (folder / "train-images").write_bytes(damaged)
    assert states() == ["corrupt", "verified", "verified", "verified"]
    data.fetch("small")
    assert source.asked[1:] == [["train-images"]]
    assert str(folder / "train-images") in capsys.readouterr().err.replace("\n", "")
    assert states() == ["verified"] * 4


def test_sources_are_tried_in_order_until_every_file_is_there(use, folder: Path) -> None:
    wrong = FakeSource("wrong", lambda name: b"<html>Sign in to this network</html>")
    half = FakeSource("half", lambda name: CONTENTS[name] if name.startswith("train") else None)
    rest, unused = FakeSource("rest"), FakeSource("unused")
    use(BROKEN, wrong, half, rest, unused)
    data.fetch("small")
    assert rest.asked == [["test-images", "test-labels"]]
    assert unused.asked == []
    assert states() == ["verified"] * 4


def test_with_no_source_the_error_lists_what_was_tried_and_where_to_put_the_files(
    use, folder: Path, capsys
) -> None:
    wrong = FakeSource("wrong", lambda name: CONTENTS[name] + b"?", gzipped=True)
    use(BROKEN, wrong)
    with pytest.raises(DataError) as caught:
        data.load("small")
    message = str(caught.value)
    assert "broken (out of order)" in message
    assert "wrong (train-images.gz is" in message
    assert all(name in message for name in CONTENTS)
    assert str(folder) in message
    assert states() == ["missing"] * 4
    assert list(folder.iterdir()) == []
    said = capsys.readouterr().err
    assert "Fetching small from broken\n  failed: out of order\nFetching small from wrong\n" in said


def test_files_placed_by_hand_are_taken_plain_or_gzipped(use, folder: Path) -> None:
    use(BROKEN)
    folder.mkdir()
    for number, (name, content) in enumerate(CONTENTS.items()):
        if number % 2:
            (folder / name).write_bytes(content)
        else:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    assert data.load("small").classes == 3


@pytest.mark.parametrize(
    "content",
    [b"not gzip", gzip.compress(b"another file"), gzip.compress(b"x" * 99)[:-9]],
    ids=["not gzip", "another file", "cut short"],
)
def test_a_wrong_file_placed_by_hand_is_named(use, folder: Path, content: bytes) -> None:
    use(BROKEN)
    folder.mkdir()
    (folder / "test-labels.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"\(test-labels.gz (is|cannot)"):
        data.fetch("small")


def test_an_interrupted_fetch_leaves_nothing_behind(use, folder: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    use(FakeSource(afterwards=interrupt))
    with pytest.raises(KeyboardInterrupt):
        data.fetch("small")
    assert list(folder.iterdir()) == []
    use(FakeSource())
    data.fetch("small")
    assert states() == ["verified"] * 4


def test_remains_of_a_killed_fetch_are_swept_up_a_day_later(use, folder: Path) -> None:
    use(FakeSource())
    (folder / ".fetch-old").mkdir(parents=True)
    (folder / ".fetch-older").touch()
    (folder / ".fetch-running").mkdir()
    for name in (".fetch-old", ".fetch-older"):
        os.utime(folder / name, (0, 0))
    data.fetch("small")
    assert [path.name for path in folder.glob(".fetch-*")] == [".fetch-running"]


def test_fetches_at_the_same_time_do_not_hurt_each_other(use, folder: Path) -> None:
    barrier = threading.Barrier(4)
    use(FakeSource(afterwards=lambda: barrier.wait(30) and None))
    errors: list[Exception] = []

    def fetch() -> None:
        try:
            data.fetch("small")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert states() == ["verified"] * 4


def test_a_loaded_data_set_keeps_the_bytes_that_were_verified(use, folder: Path) -> None:
    use(FakeSource())
    loaded = data.load("small")
    before = loaded.train_images.copy()
    (folder / "new").write_bytes(bytes(len(CONTENTS["train-images"])))
    (folder / "new").replace(folder / "train-images")
    assert np.array_equal(loaded.train_images, before)


def test_a_folder_that_cannot_be_used_is_named(use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(FakeSource())
    (tmp_path / "file").touch()
    monkeypatch.setenv("DAPFL_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match="set DAPFL_DATA to another one"):
        data.fetch("small")


def test_a_data_set_that_does_not_exist_is_named() -> None:
    with pytest.raises(DataError, match="no data set 'mnits': the data sets are mnist, fashion"):
        data.load("mnits")


def test_the_cache_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAPFL_DATA", raising=False)
    assert data.cache_folder().name == "data"
    assert "dapfl" in data.cache_folder().parts
    monkeypatch.setenv("DAPFL_DATA", "~/sets")
    assert data.cache_folder() == Path.home() / "sets"
