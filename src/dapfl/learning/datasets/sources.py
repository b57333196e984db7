"""Where files can be had. Nothing that comes from a source is trusted: `storage` verifies every byte."""

import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from dapfl.errors import DataError
from dapfl.system.console import Tracker

CONNECT_SECONDS = 8.0
LARGEST_FILE = 256 << 20  # no file that we know is larger, packed or unpacked


class Source(Protocol):
    """Somewhere to fetch files from."""

    @property
    def name(self) -> str:
        """What an error message calls it."""

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        """Leaves the named files, plain or as .gz, anywhere under the folder; DataError if it cannot.

        A name may be a pattern, such as ``*.txt``. The tracker counts one step for each name.
        """


@dataclass(frozen=True)
class Mirror:
    """A web address under which every file lies by its name, gzipped or as `suffix` says."""

    address: str
    suffix: str = ".gz"

    @property
    def name(self) -> str:
        """The address."""
        return self.address

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        """Downloads the files one by one; the first failure gives the mirror up."""
        for name in names:
            download(self.address + name + self.suffix, folder / (name + self.suffix), tracker)


@dataclass(frozen=True)
class WebArchive:
    """A zip or tar archive on the web that holds the files."""

    address: str

    @property
    def name(self) -> str:
        """The address."""
        return self.address

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        """Downloads the archive and unpacks the files."""
        archive = folder / "archive"

        def scaled(advance: float = 1, note: str = "") -> None:
            tracker(advance * len(names), note)

        download(self.address, archive, scaled)
        unpack(archive, names, folder)


@dataclass(frozen=True)
class Converted:
    """A source of other files, from which `convert(arrivals, folder)` makes those that are wanted."""

    source: Source
    raw: tuple[str, ...]
    convert: Callable[[Path, Path], None]

    @property
    def name(self) -> str:
        """The source's."""
        return self.source.name

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        """Fetches the other files and converts them."""

        def scaled(advance: float = 1, note: str = "") -> None:
            tracker(advance * len(names) / len(self.raw), note)

        arrivals = folder / "raw"
        arrivals.mkdir()
        self.source.fetch(self.raw, arrivals, scaled)
        try:
            self.convert(arrivals, folder)
        except DataError:
            raise
        except Exception as error:  # the files may be anything at all
            raise DataError(f"cannot be converted: {type(error).__name__}: {error}") from None


def download(address: str, target: Path, tracker: Tracker) -> None:
    """Downloads a file; DataError if it cannot be had. The tracker counts one step in all."""
    name = target.name
    try:
        with (
            urllib.request.urlopen(address, timeout=CONNECT_SECONDS) as response,
            target.open("wb") as opened,
        ):
            length = int(response.headers.get("Content-Length") or 0)
            received = 0
            while chunk := response.read(1 << 16):
                received += len(chunk)
                if received > LARGEST_FILE:
                    raise DataError(f"{name} is longer than it can be")
                opened.write(chunk)
                if length:
                    tracker(len(chunk) / length, note=name)
            if not length:
                tracker(1, note=name)
    except urllib.error.HTTPError as error:
        raise DataError(f"{name}: HTTP status {error.code}") from None
    except urllib.error.URLError as error:
        raise DataError(f"not reachable: {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise DataError(f"{name}: the connection broke: {error}") from None


def unpack(archive: Path, names: Sequence[str], folder: Path) -> None:
    """Unpacks the members of a zip or tar archive whose paths end in one of `names` (or fit a pattern).

    They are written under the last part of their path: an archive cannot write elsewhere.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for member in opened.infolist():
                    if _wanted(member.filename, names) and not member.is_dir():
                        with opened.open(member) as content:
                            _copy(content, folder / PurePosixPath(member.filename).name)
        else:
            with tarfile.open(archive) as tar:
                for entry in tar:
                    source = tar.extractfile(entry) if _wanted(entry.name, names) else None
                    if source is not None:
                        with source:
                            _copy(source, folder / PurePosixPath(entry.name).name)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise DataError(f"{archive.name} cannot be unpacked: {error}") from None


def _wanted(path: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(f"/{path}", f"*/{name}") for name in names)


def _copy(source: IO[bytes], target: Path) -> None:
    received = 0
    with target.open("wb") as opened:
        while chunk := source.read(1 << 20):
            received += len(chunk)
            if received > LARGEST_FILE:
                raise DataError(f"{target.name} is longer than it can be")
            opened.write(chunk)
