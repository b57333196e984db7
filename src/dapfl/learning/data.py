"""MNIST and Fashion-MNIST: the true files, verified, cached outside any project, memory-mapped.

The cache folder is the user's own (`DAPFL_DATA` overrides it) and holds plain IDX files, one
folder a data set. A file is only ever replaced as a whole, and every process that opens one
verifies the bytes it is about to use: a half-written, truncated or altered file is never learned
from, and any number of processes may fetch at the same time.
"""

import gzip
import hashlib
import mmap
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import platformdirs
from numpy.typing import NDArray

from dapfl import console
from dapfl.errors import DataError
from dapfl.learning.sources import FASHION_SOURCES, MNIST_SOURCES, Source


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with their class labels, 0 to `classes` - 1.

    Inputs are arrays with one sample a row, of any shape: bytes (uint8) reach the model as
    float32 in [0, 1], floats as float32, whole numbers (such as tokens) as they are.
    """

    train_images: NDArray[Any]
    train_labels: NDArray[np.integer[Any]]
    test_images: NDArray[Any]
    test_labels: NDArray[np.integer[Any]]
    classes: int


@dataclass(frozen=True)
class DataFile:
    """One IDX file as it must be, uncompressed."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Collection:
    """A data set that can be fetched: four files (training images and labels, then test's) and sources."""

    name: str
    files: tuple[DataFile, DataFile, DataFile, DataFile]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class FileStatus:
    """What the cache holds of one file."""

    path: Path
    size: int
    state: Literal["verified", "missing", "corrupt"]


def _collection(name: str, hashes: Sequence[str], sources: tuple[Source, ...]) -> Collection:
    shapes = (
        ("train-images-idx3-ubyte", 47_040_016),
        ("train-labels-idx1-ubyte", 60_008),
        ("t10k-images-idx3-ubyte", 7_840_016),
        ("t10k-labels-idx1-ubyte", 10_008),
    )
    a, b, c, d = (DataFile(n, size, digest) for (n, size), digest in zip(shapes, hashes, strict=True))
    return Collection(name, (a, b, c, d), sources)


COLLECTIONS = {
    "mnist": _collection(
        "mnist",
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        MNIST_SOURCES,
    ),
    "fashion": _collection(
        "fashion",
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        FASHION_SOURCES,
    ),
}


def cache_folder() -> Path:
    """Where the data sets live: `DAPFL_DATA`, or the user's cache folder."""
    chosen = os.environ.get("DAPFL_DATA")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("dapfl") / "data"


def load(name: str) -> Dataset:
    """The data set `name`, memory-mapped; what is absent or damaged is fetched first."""
    return _load(collection_named(name), cache_folder() / name)


def fetch(name: str) -> Path:
    """Makes the files of the data set `name` present and verified; the folder that holds them."""
    folder = cache_folder() / name
    _verified_files(collection_named(name), folder)
    return folder


def status(name: str) -> list[FileStatus]:
    """What the cache holds of the data set `name`, every file verified."""
    folder = cache_folder() / name
    found = []
    for file in collection_named(name).files:
        path = folder / file.name
        state: Literal["verified", "missing", "corrupt"] = "missing"
        if path.exists():
            state = "corrupt" if isinstance(_open_verified(file, path), str) else "verified"
        found.append(FileStatus(path, file.size, state))
    return found


def collection_named(name: str) -> Collection:
    """The data set `name`, or a DataError that names those there are."""
    if name not in COLLECTIONS:
        raise DataError(f"There is no data set '{name}': the data sets are {', '.join(COLLECTIONS)}.")
    return COLLECTIONS[name]


@cache
def _load(collection: Collection, folder: Path) -> Dataset:
    train_images, train_labels, test_images, test_labels = map(
        _idx_array, _verified_files(collection, folder)
    )
    classes = int(train_labels.max()) + 1
    return Dataset(train_images, train_labels, test_images, test_labels, classes)


def _idx_array(content: mmap.mmap) -> NDArray[np.uint8]:
    """The array in an IDX file: two zero bytes, type 8 (bytes), rank, big-endian lengths, elements."""
    rank = content[3]
    shape = np.frombuffer(content, ">u4", count=rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(tuple(map(int, shape)))


def _verified_files(collection: Collection, folder: Path) -> list[mmap.mmap]:
    """The mapped contents of all files, fetched where they are not there or not as they must be."""
    opened = {file: _open_verified(file, folder / file.name) for file in collection.files}
    wanted = [file for file, content in opened.items() if isinstance(content, str)]
    if wanted:
        for file in wanted:
            if (folder / file.name).exists():
                console.err.print(f"{folder / file.name} {opened[file]}: fetching it again.", markup=False)
        _fetch(collection, folder, wanted)
        opened |= {file: _open_verified(file, folder / file.name) for file in wanted}
    contents = []
    for file, content in opened.items():
        if isinstance(content, str):
            raise DataError(
                f"{folder / file.name} {content}, although it has just been written: check the disk."
            )
        contents.append(content)
    return contents


def _open_verified(file: DataFile, path: Path) -> mmap.mmap | str:
    """The mapped content of a file, or what is wrong with it.

    The very bytes that were verified are the ones used: replacing the file cannot change them.
    """
    try:
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != file.size:
                return f"is {size:,} bytes long instead of {file.size:,}"
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if hashlib.sha256(content).hexdigest() != file.sha256:
        return "does not have the sha256 it must have"
    return content


def _fetch(collection: Collection, folder: Path, wanted: Iterable[DataFile]) -> None:
    """Installs the wanted files: from .gz files placed by hand, then from each source in order."""
    tried: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        missing, problems = _install(folder.glob("*.gz"), folder, wanted)
        tried += [f"{folder} ({problem})" for problem in problems]
        for source in collection.sources:
            if not missing:
                return
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as name:
                arrivals = Path(name)
                complaints = _try(source, missing, arrivals, f"Fetching {collection.name}")
                missing, problems = _install(arrivals.rglob("*"), folder, missing)
            tried.append(f"{source.name} ({', '.join([*complaints, *problems]) or 'not all files there'})")
    except OSError as error:
        raise DataError(
            f"The data folder {folder} cannot be used ({error.strerror}): set DAPFL_DATA to another one."
        ) from None
    if missing:
        names = ", ".join(file.name for file in missing)
        raise DataError(
            f"The data set {collection.name} cannot be fetched: {names} missing. Tried: {'; '.join(tried)}. "
            f"Put the files, as they are or as .gz, into {folder} by hand, and try again."
        )


def _try(source: Source, wanted: Sequence[DataFile], arrivals: Path, title: str) -> list[str]:
    """Lets a source deliver into the folder; what it complains of."""
    try:
        with console.progress(title, len(wanted)) as tracker:
            source.fetch([file.name for file in wanted], arrivals, tracker)
    except DataError as error:
        return [str(error)]
    return []


def _install(
    arrived: Iterable[Path], folder: Path, wanted: Iterable[DataFile]
) -> tuple[list[DataFile], list[str]]:
    """Puts the wanted files that have arrived, plain or gzipped, into the folder.

    Gives those still missing, and what is wrong with those that could not be used.
    """
    candidates = sorted(arrived)
    missing, problems = [], []
    for file in wanted:
        for candidate in candidates:
            if candidate.name not in (file.name, f"{file.name}.gz"):
                continue
            problem = _install_file(candidate, file, folder)
            if problem is None:
                break
            problems.append(f"{candidate.name} {problem}")
        else:
            missing.append(file)
    return missing, problems


def _install_file(candidate: Path, file: DataFile, folder: Path) -> str | None:
    """Copies one file into place if it is the right one; otherwise what is wrong with it."""
    descriptor, name = tempfile.mkstemp(prefix=".fetch-", dir=folder)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as target:
            opener = gzip.open if candidate.suffix == ".gz" else open
            with opener(candidate, "rb") as source:
                content = source.read(file.size + 1)
            target.write(content)
        verified = _open_verified(file, partial)
        if isinstance(verified, str):
            return verified
        verified.close()
        partial.chmod(0o644)
        partial.replace(folder / file.name)
    except (OSError, EOFError, zlib.error) as error:
        return f"cannot be unpacked ({error})"
    finally:
        partial.unlink(missing_ok=True)
    return None


def _sweep(folder: Path) -> None:
    """Removes what fetches that were killed more than a day ago have left."""
    for left in folder.glob(".fetch-*"):
        if time.time() - left.stat().st_mtime > 86_400:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
