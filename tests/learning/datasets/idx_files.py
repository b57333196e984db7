"""A small data set in IDX files, and sources that deliver it as real ones do."""

import gzip
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dapfl.errors import DataError
from dapfl.learning.datasets.collection import About, Collection, DataFile
from dapfl.learning.datasets.mnist import read_idx
from dapfl.learning.datasets.sources import Source
from dapfl.system.console import Tracker


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    return header + array.tobytes()


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 256, (40, 4, 4)).astype(np.uint8),
        np.arange(40, dtype=np.uint8) % 3,
        rng.integers(0, 256, (10, 4, 4)).astype(np.uint8),
        np.arange(10, dtype=np.uint8) % 3,
    ]


NAMES = ("train-images", "train-labels", "test-images", "test-labels")
CONTENTS = {name: idx(array) for name, array in zip(NAMES, arrays(), strict=True)}


def small_collection(*sources: Source) -> Collection:
    files = tuple(
        DataFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in CONTENTS.items()
    )
    about = About("Small: fifty made-up images", "anybody's", "Nobody, never")
    return Collection("small", about, files, sources, read_idx, by_default=True)


@dataclass(frozen=True)
class FakeSource:
    """Delivers what `content_of` says, counts how often it was asked, then runs `afterwards`."""

    name: str = "fake"
    content_of: Callable[[str], bytes | None] = CONTENTS.get
    gzipped: bool = False
    afterwards: Callable[[], None] = lambda: None
    asked: list[list[str]] = field(default_factory=list, hash=False, compare=False)

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        self.asked.append(list(names))
        for name in names:
            content = self.content_of(name)
            if content is None:
                raise DataError("out of order")
            (folder / "inside").mkdir(exist_ok=True)
            if self.gzipped:
                (folder / "inside" / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / "inside" / name).write_bytes(content)
            tracker(1, note=name)
        self.afterwards()


BROKEN = FakeSource("broken", lambda name: None)
