"""Faults of real processes: whole runs on both engines, whose processes are killed at random instants.

A run is killed with all its processes, or one of them is; its newest checkpoint is damaged or removed in
between; then it is resumed, until it has finished. If everyone took part in every round, its model must be
that of a run without faults, on either engine; in any case every round is there once, and counts those that
it has taken. A fault waits for 0 to 2 more rounds and then for a random part of one. So most faults meet a
run at work, some meet one that starts, and a run lasts for many of them.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.soak.faults import FaultTally
from tests.soak.whole_runs import ROOT, Engine, configuration

ROUNDS, CLIENTS = 20, 3
_PATIENCE = 1200.0  # seconds in which a run must end
_CONFIG = configuration(ROOT / "tests" / "engines" / "tiny_task.py", "small", CLIENTS, ROUNDS)
_VICTIMS: dict[Engine, dict[str, str]] = {
    "local": {"worker-killed": "multiprocessing.spawn"},
    "flower": {
        "worker-killed": "apps.worker",
        "supernode-killed": "flower-supernode",
        "superlink-killed": "flower-superlink",
    },
}
_FULL = "disk-full"  # of the local engine: a disk of its own, where this user may mount one
_BETWEEN = ("run-killed", "newest-checkpoint-damaged", "newest-checkpoint-missing")


def run_with_faults(tally: FaultTally, seed: int, engine: Engine, most: int = 12) -> None:
    """One run with up to `most` faults."""
    rng = np.random.default_rng(seed)
    expected, usual = _undisturbed()
    with tempfile.TemporaryDirectory() as folder, _disk(Path(folder) / "disk") as small:
        path = Path(folder) / "disk" / "run"
        process = _start(folder, engine, path)
        kinds = [*_VICTIMS[engine], *_BETWEEN, *([_FULL] if small and engine == "local" else [])]
        for _ in range(most):
            fault = str(rng.choice(kinds))
            more, instant = int(rng.integers(3)), float(rng.uniform(0.0, 2.0)) * usual / ROUNDS
            if _ended_after(process, path, more) or _ended_within(process, instant):
                if process.returncode == 0:
                    break
                if not _is_named(tally, f"{engine}, seed {seed}", folder):
                    return
                process = _start(folder, engine, path)
                continue
            if fault in _BETWEEN:
                _kill_all(process)
                fault = fault if _spoil(path, fault, rng) else "run-killed"
                process = _start(folder, engine, path)
            elif fault == _FULL:
                with _filled(path.parent):
                    ended = _ended_within(process, 3 * usual)
                if ended and process.returncode == 0:
                    break
                if not ended:
                    _kill_all(process)  # it waits for something else; a full disk is named where it writes
                elif "space" not in _log(folder):
                    tally.problems.append(f"{engine}, seed {seed}: a full disk is said to be {_log(folder)}")
                process = _start(folder, engine, path)
            elif not _kill_one(process, _VICTIMS[engine][fault], rng):
                continue
            tally.faults[f"{engine}: {fault}"] += 1
        while not _ended_within(process, _PATIENCE) or process.returncode != 0:
            if process.returncode is None or not (path / "manifest.json").exists():
                tally.problems.append(f"{engine}, seed {seed}: the run does not end: {_log(folder)}")
                _kill_all(process)
                return
            if not _is_named(tally, f"{engine}, seed {seed}", folder):
                return
            process = _start(folder, engine, path)
        _check(tally, f"{engine}, seed {seed}", path, expected)
    tally.runs += 1


def _is_named(tally: FaultTally, where: str, folder: str) -> bool:
    """Whether a run that has ended with an error, as it does without its SuperLink, says what to do."""
    said = _log(folder)
    tally.rejections[said.split(".")[0][:80]] += 1
    if "resume" in said or "ended" in said:
        return True
    tally.problems.append(f"{where}: {said}")
    return False


@contextmanager
def _disk(folder: Path) -> Iterator[bool]:
    """A folder on a disk of 48 MB, and True; where this user may not mount, a folder like any other."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "dapfl-soak", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def _filled(folder: Path) -> Iterator[None]:
    """No space is left meanwhile."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(2**16))
        yield
    finally:
        ballast.unlink()


def _check(tally: FaultTally, where: str, path: Path, expected: bytes) -> None:
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    tally.rounds += len(lines)
    if [line["round"] for line in lines] != list(range(ROUNDS)):
        tally.lost_rounds += ROUNDS - len(lines)
        tally.problems.append(f"{where}: rounds {[line['round'] for line in lines]}")
    for line in lines:
        taken = [client["id"] for client in line["clients"] if client["status"] == "accepted"]
        tally.rejections.update(c["status"] for c in line["clients"] if c["status"] != "accepted")
        if line["cohort"] and taken != line["cohort"]:
            tally.problems.append(f"{where}: round {line['round']} took {taken}, counts {line['cohort']}")
    if all(len(line["cohort"]) == CLIENTS for line in lines) and _model(path) != expected:
        tally.problems.append(f"{where}: the model is not that of a run without faults")


@cache
def _undisturbed() -> tuple[bytes, float]:
    """The model of a run without faults, the same on both engines, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        process = _start(folder, "local", Path(folder) / "run")
        assert _ended_within(process, _PATIENCE) and process.returncode == 0, _log(folder)
        return _model(Path(folder) / "run"), time.monotonic() - began


def _model(path: Path) -> bytes:
    with np.load(path / "model.npz") as tensors:
        return b"".join(tensors[name].tobytes() for name in sorted(tensors.files))


def _start(folder: str, engine: Engine, path: Path) -> subprocess.Popen[Any]:
    """Starts the run, or resumes it, in a process group of its own."""
    config = Path(folder) / "run.toml"
    config.write_text(_CONFIG)
    new = ["--config", str(config), "--engine", engine, "--out", str(path)]
    begun = (path / "manifest.json").exists()
    if not begun and path.exists():  # killed before it had written anything
        subprocess.run(["rm", "-rf", str(path)], check=True)
    command = [sys.executable, "-m", "dapfl.cli", "run", *(["--resume", str(path)] if begun else new)]
    with (Path(folder) / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _ended_within(process: subprocess.Popen[Any], seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _ended_after(process: subprocess.Popen[Any], path: Path, more: int) -> bool:
    """Whether the run has ended; waits until it has played so many rounds more, or far too long."""
    wanted, deadline = _played(path) + more, time.monotonic() + _PATIENCE
    while _played(path) < wanted and time.monotonic() < deadline:
        if _ended_within(process, 0.05):
            return True
    return process.poll() is not None


def _played(path: Path) -> int:
    rounds = path / "rounds.jsonl"
    return rounds.read_bytes().count(b"\n") if rounds.exists() else 0


def _kill_all(process: subprocess.Popen[Any]) -> None:
    """kill -9: the run first, so that it cannot tidy up, then whatever it has started."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    process.kill()
    process.wait()
    for child in children:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(children, timeout=60)


def _kill_one(process: subprocess.Popen[Any], name: str, rng: np.random.Generator) -> bool:
    """Kills one of the run's processes whose command line has this in it; whether there was one."""
    found: list[int] = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):  # it has just ended
                if name in str(child.cmdline()):
                    found.append(child.pid)
    try:
        if found:
            os.kill(found[int(rng.integers(len(found)))], signal.SIGKILL)
    except ProcessLookupError:
        return False
    return bool(found)


def _spoil(path: Path, fault: str, rng: np.random.Generator) -> bool:
    """Damages or removes the newest checkpoint, if there is an older one."""
    newest = path / "checkpoint" / "checkpoint.msgpack"
    both = (newest, newest.with_name("checkpoint.previous.msgpack"))  # one fault at a time is survived
    if fault == "run-killed" or not all(each.exists() for each in both):
        return fault == "run-killed"
    if fault == "newest-checkpoint-missing":
        newest.unlink()
    else:
        data = bytearray(newest.read_bytes())
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        newest.unlink()  # the older one may be a link to it
        newest.write_bytes(data)
    return True


def _log(folder: str) -> str:
    return (Path(folder) / "log").read_text("utf-8", "replace").strip().splitlines()[-1][:300]
