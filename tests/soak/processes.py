"""Faults of real processes: whole runs on both engines, whose processes are killed at random instants.

A run is killed with all its processes, or one of them is; its newest checkpoint is damaged or removed in
between; then it is resumed, until it has finished. If everyone took part in every round, its model must be
that of a run without faults, on either engine; in any case every round is there once, adds something up,
and counts those that it has taken. A fault waits for 0 to 2 more rounds and then for a random part of one.
So most faults meet a run at work, some meet one that starts, and a run lasts for many of them. Where single
processes are killed, several are at once: up to three, and up to five on Flower, where a fault costs most and
there are six to nine. Then a round is waited for, since a client whose message kills its worker twice is
given up for the round.

On the local engine most runs are `Prepared`, which saves nearly all that a fault costs. Every eighth, and
all on Flower, is started as a user starts it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.soak.faults import FaultTally
from tests.soak.prepared import Prepared
from tests.soak.whole_runs import ROOT, Engine, configuration

CLIENTS = 3
_TASK = ROOT / "tests" / "engines" / "tiny_task.py"
_PATIENCE = 1200.0  # seconds in which a run must end
_SEVERAL = "several killed"  # of the processes below, at random
_KINDS: dict[Engine, tuple[str, ...]] = {
    "local": (_SEVERAL,) * 3,
    "flower": (_SEVERAL,) * 5 + ("superlink-killed",),
}
_VICTIMS: dict[Engine, tuple[str, ...]] = {
    "local": ("worker-killed",),
    "flower": ("worker-killed", "supernode-killed", "clientapp-killed"),
}
_AT_ONCE: dict[Engine, int] = {"local": 3, "flower": 5}
_FULL = "disk-full"  # of the local engine: a disk of its own, where this user may mount one
_BETWEEN = ("run-killed", "newest-checkpoint-damaged", "newest-checkpoint-missing")
_COMMAND_LINES = {
    "worker-killed": "apps.worker",
    "supernode-killed": "flower-supernode",
    "clientapp-killed": "flwr-clientapp",
    "superlink-killed": "flower-superlink",
}


@dataclass(frozen=True)
class Plan:
    """What a run is, and how often something happens to it at most."""

    engine: Engine
    decryption: str = "shared"
    prepared: bool = False
    rounds: int = 20
    most: int = 16

    def __str__(self) -> str:
        started = "prepared" if self.prepared else "as a user starts it"
        return f"{self.engine}, {self.decryption}, {started}"


def plan(number: int) -> Plan:
    """Of the run with this number: every twelfth is on Flower, every other has a committee on each engine."""
    decryption = "committee" if (number + number // 12) % 2 else "shared"
    if number % 12 == 11:
        return Plan("flower", decryption)
    return _locally(decryption, as_user=number % 8 == 0)


def plan_on_local(number: int) -> Plan:
    """Of the run with this number, where none is on Flower."""
    return _locally("committee" if (number + number // 8) % 2 else "shared", as_user=number % 8 == 7)


def plan_on_flower(number: int) -> Plan:
    """Of the run with this number, where all are on Flower: short, so that a soak that ends loses little."""
    return Plan("flower", "committee" if number % 2 else "shared", rounds=10)


def _locally(decryption: str, as_user: bool) -> Plan:
    if as_user:
        return Plan("local", decryption)
    return Plan("local", decryption, prepared=True, rounds=60, most=40)


Process = Prepared | subprocess.Popen[Any]


def run_with_faults(tally: FaultTally, seed: int, plan: Plan) -> None:
    """One run and its faults."""
    rng, where = np.random.default_rng(seed), f"{plan}, seed {seed}"
    expected, usual = _undisturbed(plan.rounds)
    with tempfile.TemporaryDirectory() as folder, _disk(Path(folder) / "disk") as small:
        path = Path(folder) / "disk" / "run"
        process = _start(folder, plan, path)
        kinds = [*_KINDS[plan.engine], *_BETWEEN, *([_FULL] if small and plan.engine == "local" else [])]
        pause = False  # after a process was killed: a client whose message kills its worker twice is given up
        for _ in range(plan.most):
            fault = str(rng.choice(kinds))
            more, share = max(pause, int(rng.integers(3))), float(rng.uniform())
            pause = False
            if _ended_after(process, path, more) or _ended_within(process, share * _seconds(path, usual)):
                if _finished(process, path):
                    break
                if not _is_named(tally, where, folder):
                    return
                process = _start(folder, plan, path)
                continue
            if fault in _BETWEEN:
                _kill_all(process)
                fault = fault if _spoil(path, fault, rng) else "run-killed"
                process = _start(folder, plan, path)
            elif fault == _FULL:
                with _filled(path.parent):
                    ended = _ended_within(process, 10 * _seconds(path, usual) + 5)
                if ended and _finished(process, path):
                    break
                if not ended:
                    _kill_all(process)  # it waits for something else; a full disk is named where it writes
                elif "space" not in _log(folder):
                    tally.problems.append(f"{where}: a full disk is said to be {_log(folder)}")
                process = _start(folder, plan, path)
            else:
                several = fault == _SEVERAL
                most = int(rng.integers(_AT_ONCE[plan.engine])) + 1 if several else 1
                faults = _VICTIMS[plan.engine] if several else [fault]
                killed = _kill(process, plan, path, faults, most, rng)
                tally.faults.update(f"{plan.engine}: {each}" for each in killed)
                pause = bool(killed)
                continue
            tally.faults[f"{plan.engine}: {fault}"] += 1
        while not _ended_within(process, _PATIENCE) or not _finished(process, path):
            if process.returncode is None or not (path / "manifest.json").exists():
                tally.problems.append(f"{where}: the run does not end: {_log(folder)}")
                _kill_all(process)
                return
            if not _is_named(tally, where, folder):
                return
            process = _start(folder, plan, path)
        _check(tally, where, path, plan.rounds, expected)
    tally.runs += 1


def _finished(process: Process, path: Path) -> bool:
    """Whether a run that has ended is complete. It may have been killed after its last deed."""
    manifest = path / "manifest.json"
    return process.returncode == 0 or (
        manifest.exists() and json.loads(manifest.read_bytes())["status"] == "finished"
    )


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


def _check(tally: FaultTally, where: str, path: Path, rounds: int, expected: bytes) -> None:
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    tally.rounds += len(lines)
    if [line["round"] for line in lines] != list(range(rounds)):
        tally.lost_rounds += rounds - len(lines)
        tally.problems.append(f"{where}: rounds {[line['round'] for line in lines]}")
    for line in lines:
        taken = [client["id"] for client in line["clients"] if client["status"] == "accepted"]
        tally.rejections.update(c["status"] for c in line["clients"] if c["status"] != "accepted")
        if line["cohort"] and taken != line["cohort"]:
            tally.problems.append(f"{where}: round {line['round']} took {taken}, counts {line['cohort']}")
        if not line["cohort"]:
            tally.lost_rounds += 1
            statuses = [c["status"] for c in line["clients"]]
            tally.problems.append(f"{where}: round {line['round']} added nothing up: {statuses}")
    if all(len(line["cohort"]) == CLIENTS for line in lines) and _model(path) != expected:
        tally.problems.append(f"{where}: the model is not that of a run without faults")


@cache
def _undisturbed(rounds: int) -> tuple[bytes, float]:
    """The model of a run without faults, however it is started and decrypted; the seconds of a round."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        process = _start(folder, Plan("local", prepared=True, rounds=rounds), path)
        assert _ended_within(process, _PATIENCE) and process.returncode == 0, _log(folder)
        return _model(path), _seconds(path, 1.0)


def _model(path: Path) -> bytes:
    with np.load(path / "model.npz") as tensors:
        return b"".join(tensors[name].tobytes() for name in sorted(tensors.files))


def _start(folder: str, plan: Plan, path: Path) -> Process:
    """Starts the run, or resumes it, in a process group of its own."""
    config, log = Path(folder) / "run.toml", Path(folder) / "log"
    config.write_text(configuration(_TASK, "small", CLIENTS, plan.rounds, decryption=plan.decryption))
    new = ["--config", str(config), "--engine", plan.engine, "--out", str(path)]
    begun = (path / "manifest.json").exists()
    if not begun and path.exists():  # killed before it had written anything
        subprocess.run(["rm", "-rf", str(path)], check=True)
    arguments = ["run", *(["--resume", str(path)] if begun else new)]
    if plan.prepared:
        return Prepared(arguments, log)
    command = [sys.executable, "-m", "dapfl.cli", *arguments]
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)


def _ended_within(process: Process, seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _ended_after(process: Process, path: Path, more: int) -> bool:
    """Whether the run has ended; waits until it has played so many rounds more, or far too long."""
    wanted, deadline = _played(path) + more, time.monotonic() + _PATIENCE
    while _played(path) < wanted and time.monotonic() < deadline:
        if _ended_within(process, 0.05):
            return True
    return process.poll() is not None


def _played(path: Path) -> int:
    rounds = path / "rounds.jsonl"
    return rounds.read_bytes().count(b"\n") if rounds.exists() else 0


def _seconds(path: Path, otherwise: float) -> float:
    """How long the run's last round took, if there is one."""
    with suppress(FileNotFoundError, IndexError, ValueError):
        return float(json.loads((path / "rounds.jsonl").read_text().splitlines()[-1])["seconds"]["total"])
    return otherwise


def _kill_all(process: Process) -> None:
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
    _wait_until_dead(children)


def _wait_until_dead(killed: Sequence[psutil.Process]) -> None:
    """A process that is killed does not die at once: on a busy machine it may finish a round first."""
    while any(map(_runs, killed)):
        time.sleep(0.005)


def _runs(process: psutil.Process) -> bool:
    """Whether it is there, and not only waits to be noted as ended by whoever has inherited it."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _kill(
    process: Process, plan: Plan, path: Path, faults: Sequence[str], most: int, rng: np.random.Generator
) -> list[str]:
    """Kills so many of the processes that these faults are about; which faults these were."""
    found: list[tuple[str, psutil.Process]] = []
    with suppress(psutil.Error):
        run = psutil.Process(process.pid)
        direct, every = run.children(), run.children(recursive=True)
        if plan.engine == "flower":
            every += _detached(path)
        for child, fault in product(every, faults):
            name = "multiprocessing.spawn" if plan.engine == "local" else _COMMAND_LINES[fault]
            with suppress(psutil.Error):  # it has just ended
                if child not in direct if plan.prepared else name in str(child.cmdline()):
                    found.append((fault, child))
    killed: list[tuple[str, psutil.Process]] = []
    for place in rng.permutation(len(found))[:most]:
        fault, child = found[place]
        with suppress(psutil.NoSuchProcess):
            child.kill()
            killed.append((fault, child))
    _wait_until_dead([child for _, child in killed])
    return [fault for fault, _ in killed]


def _detached(path: Path) -> list[psutil.Process]:
    """The workers of a run's SuperNodes: whoever starts one does not wait for its end, so it is no child."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(part.startswith(f"{path}/") for part in process.cmdline()) and process.ppid() == 1:
                found.append(process)
    return found


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
