"""Searches the files of whole runs for private keys, trained models and plaintexts.

A run is started as a user starts it, finishes or is killed, and is looked at (report, live page, status).
Then everything that it has written is searched: run directory, checkpoints, logs, temporary files, core
files. Key bundles are where keys belong; their mode is checked instead.
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

import psutil

from dapfl.federation.keys.bundles import load_bundles
from tests.dashboard.live import serving
from tests.soak.secrets import values_of
from tests.soak.whole_runs import ROOT, Engine, configuration

End = Literal["finished", "killed", "aborted"]
ENDS: tuple[End, ...] = ("finished", "killed", "aborted")


@dataclass
class Findings:
    """What a search has gone through, and the secrets that it has found: name and file."""

    files: int = 0
    bytes: int = 0
    values: int = 0
    plaintexts: int = 0
    found: list[str] = field(default_factory=list)


def search(
    engine: Engine = "local",
    end: End = "finished",
    *,
    decryption: str = "shared",
    codec: str = "exact",
) -> Findings:
    """Runs, ends as told, and searches; and sees that a secret that lies about would have been found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("work", "tmp", "spy"):
            (folder / each).mkdir()
        task = ROOT / "tests" / "soak" / "spying_task.py"
        (folder / "run.toml").write_text(configuration(task, "dap-fl", 6, 3, codec, decryption))
        run = folder / "work" / "run"
        _play(folder, run, engine, end)
        if end == "finished":
            _look(folder, run)
        values = values_of(*load_bundles(run / "keys", allow_insecure_small_keys=True))
        secrets = {bytes.fromhex(line) for path in (folder / "spy").iterdir() for line in _lines(path)}
        values["a client's own model or plaintext"] = [secret[:32] for secret in secrets]
        findings = Findings(values=len(values), plaintexts=len(secrets))
        for path in _files(folder):
            _search_file(findings, path, folder, values)
        bait, control = folder / "tmp" / "bait", Findings()
        bait.write_bytes(b"so " + b", ".join(shapes[-1] for shapes in values.values()))
        _search_file(control, bait, folder, values)
        assert len(control.found) == len(values), "the search is blind"
        return findings


def _search_file(findings: Findings, path: Path, folder: Path, values: dict[str, list[bytes]]) -> None:
    content = path.read_bytes()
    findings.files += 1
    findings.bytes += len(content)
    place = path.relative_to(folder)
    if path.suffix == ".keys":
        if path.stat().st_mode & 0o077:
            findings.found.append(f"others may read {place}")
        return
    names = [name for name, shapes in values.items() if any(shape in content for shape in shapes)]
    findings.found += [f"{name} in {place}" for name in names]


def _files(folder: Path) -> Iterator[Path]:
    """All files but those of the spy."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and "spy" not in path.relative_to(folder).parts:
            yield path


def _lines(path: Path) -> list[str]:
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()  # the last may have been cut off


def _play(folder: Path, run: Path, engine: Engine, end: End) -> None:
    """A run, up to its end or to a kill in its second round; core files are allowed."""
    command = ["run", "--config", str(folder / "run.toml"), "--engine", engine, "--out", str(run)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dapfl.cli", *command],
            cwd=folder / "work",
            env=_environment(folder),
            stdout=log,
            stderr=log,
            preexec_fn=_allow_core_files,
        )
    if end == "finished":
        assert process.wait(timeout=600) == 0, (folder / "log").read_text()
        return
    try:
        while not (run / "rounds.jsonl").exists() or not (run / "rounds.jsonl").read_bytes():
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for each in (psutil.Process(process.pid), *children) if children else ():
            try:
                each.send_signal(signal.SIGABRT if end == "aborted" else signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        process.wait(timeout=60)
        psutil.wait_procs(children, timeout=60)


def _look(folder: Path, run: Path) -> None:
    """The report, the status and the live page of a run, into files."""
    for number, command in enumerate(
        (["report", str(run), "--out", str(folder / "report")], ["status", str(run)])
    ):
        with (folder / f"output-{number}").open("wb") as log:
            subprocess.run(
                [sys.executable, "-m", "dapfl.cli", *command],
                cwd=folder / "work",
                env=_environment(folder),
                stdout=log,
                stderr=log,
                check=True,
            )
    with serving(run) as port:
        for page in ("", "snapshot"):
            with urlopen(f"http://127.0.0.1:{port}/{page}", timeout=30) as answer:
                (folder / f"page-{page}").write_bytes(answer.read())


def _environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    here = {
        "TMPDIR": str(folder / "tmp"),
        "HOME": str(folder / "tmp"),
        "LEFT_BEHIND_SPY": str(folder / "spy"),
    }
    return {**os.environ, **here, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def _allow_core_files() -> Any:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
