"""A data set that can be fetched: its files as they must be, where they can be had, how they are read."""

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dapfl.learning.data import Dataset
from dapfl.learning.datasets.sources import Source


@dataclass(frozen=True)
class DataFile:
    """One file as it must be, uncompressed."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class About:
    """What whoever uses a data set should know of it."""

    title: str
    licence: str
    citation: str


@dataclass(frozen=True)
class Collection:
    """A data set: its files, the sources to try in order, and what turns the mapped files into samples.

    Those of the paper's tasks are fetched by default; the others when they are first asked for.
    """

    name: str
    about: About
    files: tuple[DataFile, ...]
    sources: tuple[Source, ...]
    read: Callable[[Sequence[mmap.mmap]], Dataset]
    by_default: bool = False
