"""The data sets by name: verified files in the user's cache folder, as samples in memory-mapped arrays.

mnist, fashion             the tasks of the paper
cifar10                    colour images
hapt, shakespeare, adult   data whose clients are real: people, speaking roles, groups of workers
"""

import os
from functools import cache
from pathlib import Path

import platformdirs

from dapfl.errors import DataError
from dapfl.learning.data import Dataset
from dapfl.learning.datasets.adult import ADULT
from dapfl.learning.datasets.cifar10 import CIFAR10
from dapfl.learning.datasets.collection import Collection
from dapfl.learning.datasets.hapt import HAPT
from dapfl.learning.datasets.mnist import FASHION, MNIST
from dapfl.learning.datasets.shakespeare import SHAKESPEARE
from dapfl.learning.datasets.storage import FileStatus, file_status, verified_files

COLLECTIONS = {each.name: each for each in (MNIST, FASHION, CIFAR10, HAPT, SHAKESPEARE, ADULT)}


def cache_folder() -> Path:
    """Where the data sets are stored: `DAPFL_DATA`, or the user's cache folder."""
    chosen = os.environ.get("DAPFL_DATA")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("dapfl") / "data"


def load(name: str) -> Dataset:
    """The data set `name`, memory-mapped; what is absent or damaged is fetched first."""
    return _load(collection_named(name), cache_folder() / name)


def fetch(name: str) -> Path:
    """Makes the files of the data set `name` present and verified; the folder that holds them."""
    folder = cache_folder() / name
    verified_files(collection_named(name), folder)
    return folder


def status(name: str) -> list[FileStatus]:
    """What the cache holds of the data set `name`, every file verified."""
    return file_status(collection_named(name), cache_folder() / name)


def collection_named(name: str) -> Collection:
    """The data set `name`, or a DataError that names those there are."""
    if name not in COLLECTIONS:
        raise DataError(f"There is no data set '{name}': the data sets are {', '.join(COLLECTIONS)}.")
    return COLLECTIONS[name]


@cache
def _load(collection: Collection, folder: Path) -> Dataset:
    return collection.read(verified_files(collection, folder))
