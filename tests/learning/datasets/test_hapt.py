import gzip
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dapfl.learning.datasets.hapt import RECORD, STRIDE, WINDOW, from_pickle, from_text, read_windows

from .pickled_frames import frame, pickled

LENGTH = 3_000
PARTS = {1: [(1, 0, 1599), (7, 1600, 1649), (2, 1650, 2999)], 2: [(1, 10, 2989)]}  # label, first, last
PEOPLE = {1: 1, 2: 3}  # recording → person


def signals(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(6, LENGTH)).round(6)


def labels(number: int) -> np.ndarray:
    found = np.full(LENGTH, -1)
    for label, first, last in PARTS[number]:
        found[first : last + 1] = label
    return found


def as_text(arrivals: Path) -> None:
    lines = []
    for number, person in PEOPLE.items():
        for sensor, rows in (("acc", slice(0, 3)), ("gyro", slice(3, 6))):
            path = arrivals / f"{sensor}_exp{number:02}_user{person:02}.txt"
            np.savetxt(path, signals(number)[rows].T, fmt="%.17g")
        lines += [f"{number} {person} {label} {first} {last}\n" for label, first, last in PARTS[number]]
    (arrivals / "labels.txt").write_text("".join(lines))


def as_pickle(arrivals: Path) -> None:
    names = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
    people = {
        person: [frame(dict(zip(names, signals(number), strict=True)) | {"label": labels(number)})]
        for number, person in PEOPLE.items()
    }
    (arrivals / "HAPT.pkl.gz").write_bytes(gzip.compress(pickled(people)))


def converted(
    write: Callable[[Path], None], convert: Callable[[Path, Path], None], folder: Path
) -> list[bytes]:
    arrivals = folder / convert.__name__
    arrivals.mkdir()
    write(arrivals)
    convert(arrivals, folder)
    return [(folder / name).read_bytes() for name in ("train.bin", "test.bin")]


@pytest.fixture
def contents(tmp_path: Path) -> list[bytes]:
    return converted(as_text, from_text, tmp_path)


def test_text_and_pickle_give_the_same_files(contents: list[bytes], tmp_path: Path) -> None:
    assert converted(as_pickle, from_pickle, tmp_path) == contents


def starts(records: np.ndarray, number: int) -> list[int]:
    """Where in the recording the windows of its person begin."""
    first = signals(number)[0].astype(np.float32)
    mine = records[records["person"] == PEOPLE[number] - 1]
    return [int(np.flatnonzero(first == window[0, 0])[0]) for window in mine["signals"]]


def test_every_person_keeps_the_last_fifth_of_each_activity_for_testing(contents: list[bytes]) -> None:
    train, test = (np.frombuffer(content, RECORD) for content in contents)
    assert sorted(set(test["person"])) == [0, 2]
    for number in PEOPLE:
        assert max(starts(train[train["activity"] == 0], number)) < min(
            starts(test[test["activity"] == 0], number)
        )
    walks = len(range(0, 1600 - WINDOW + 1, STRIDE))
    mine = [part[(part["person"] == 0) & (part["activity"] == 0)] for part in (train, test)]
    assert [len(part) for part in mine] == [walks - walks // 5 - 1, walks // 5]  # one would have overlapped


def test_no_training_window_shares_a_measurement_with_a_test_window(contents: list[bytes]) -> None:
    train, test = (np.frombuffer(content, RECORD) for content in contents)
    for number in PEOPLE:
        gaps = np.subtract.outer(starts(train, number), starts(test, number))
        assert np.abs(gaps).min() >= WINDOW


def test_windows_are_one_activity_from_end_to_end(contents: list[bytes]) -> None:
    for content in contents:
        records = np.frombuffer(content, RECORD)
        for number in PEOPLE:
            mine = records[records["person"] == PEOPLE[number] - 1]
            for start, record in zip(starts(records, number), mine, strict=True):
                assert (labels(number)[start : start + WINDOW] == record["activity"] + 1).all()
                assert np.array_equal(
                    record["signals"], signals(number)[:, start : start + WINDOW].astype("f4")
                )


def test_the_files_are_read_as_samples_of_people(contents: list[bytes]) -> None:
    mapped = []
    for content in contents:
        anonymous = mmap.mmap(-1, len(content))
        anonymous.write(content)
        mapped.append(anonymous)
    data = read_windows(mapped)
    assert data.train_images.shape[1:] == (6, 128)
    assert data.classes == 6
    assert data.natural is not None
    assert data.natural.names[2] == "person 3"
    assert set(data.natural.train.tolist()) == {0, 2}
    assert data.train_labels.max() == 1
