"""The files of data sets: verified, cached outside any project, memory-mapped.

The cache folder is the user's own and holds plain files, one folder for each data set. A file is only
ever replaced as a whole, and every process that opens one verifies the bytes it is about to use:
a half-written, truncated or altered file is never learned from, and any number of processes may
fetch at the same time.
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
from pathlib import Path
from typing import Literal

from dapfl.errors import DataError
from dapfl.learning.datasets.collection import Collection, DataFile
from dapfl.learning.datasets.sources import Source
from dapfl.system import console

_CHUNK = 1 << 20


@dataclass(frozen=True)
class FileStatus:
    """What the cache holds of one file."""

    path: Path
    size: int
    state: Literal["verified", "missing", "corrupt"]


def file_status(collection: Collection, folder: Path) -> list[FileStatus]:
    """What the folder holds of a data set, every file verified."""
    found = []
    for file in collection.files:
        path = folder / file.name
        state: Literal["verified", "missing", "corrupt"] = "missing"
        if path.exists():
            state = "corrupt" if isinstance(_open_verified(file, path), str) else "verified"
        found.append(FileStatus(path, file.size, state))
    return found


def verified_files(collection: Collection, folder: Path) -> list[mmap.mmap]:
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
                console.err.print(f"Fetching {collection.name} from {source.name}", markup=False)
                complaints = _try(source, missing, arrivals, f"Fetching {collection.name}")
                missing, problems = _install(arrivals.rglob("*"), folder, missing)
            if missing:
                why = ", ".join([*complaints, *problems]) or "not all files there"
                console.err.print(f"  failed: {why}", markup=False)
                tried.append(f"{source.name} ({why})")
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
                while target.tell() <= file.size and (chunk := source.read(_CHUNK)):
                    target.write(chunk)
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
