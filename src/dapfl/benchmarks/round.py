"""`dapfl bench round`: the seconds of a round in our local engine, in Flower's simulation and in pfl.

The same work for all, on all cores: 20 clients score the model on their data and train one epoch, the
server averages and scores the test set. Starting processes is not counted. Then encrypted rounds of the
default run, compared with a plain round that our own code trains and with one that torch trains.
"""

import hashlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from dapfl.benchmarks.peers import flower, pfl, torch_task
from dapfl.benchmarks.peers.workload import PeerFailed, Workload, run_peer
from dapfl.benchmarks.result import BenchResult, Figures, absent, host
from dapfl.benchmarks.timing import cores, cpu_seconds, spread_of
from dapfl.config import RunConfig, override
from dapfl.system.console import err

TASKS = ("logistic-mnist", "cnn-mnist")
ENCRYPTIONS: Mapping[str, Mapping[str, object]] = {
    "none, trained by torch": {"crypto.encryption": "none", "task": f"{torch_task.__file__}:TASK"},
    "none": {"crypto.encryption": "none"},
    "hybrid": {"crypto.envelope": "hybrid", "crypto.decryption": "shared"},
    "paillier": {"crypto.envelope": "paillier", "crypto.decryption": "shared"},
    "committee": {"crypto.decryption": "committee"},
}
ENOUGH = 10  # rounds that a median should be made of
_BLOCKS = 2  # every engine is measured this often, in turn


def run(
    *,
    tasks: tuple[str, ...] = TASKS,
    clients: int = 20,
    rounds: int = 12,
    encrypted_rounds: int = 12,
    codec: str = "compact",
    encryptions: tuple[str, ...] = tuple(ENCRYPTIONS),
    encrypted_changes: Mapping[str, object] | None = None,
    peer_python: str,
    timeout: float = 600,
    inline: bool = False,
) -> BenchResult:
    """Measures every engine that is installed, then encrypted rounds against plain ones.

    `peer_python` is the interpreter that has Flower's simulation and pfl; `encrypted_changes` are settings of
    the encrypted runs that differ from the defaults; `inline` keeps our clients in this process, for trials.
    """
    ours: dict[str, Figures] = {}
    peers: dict[str, dict[str, object]] = {}
    ratios: dict[str, float] = {}
    for task in tasks:
        # The first round of each block is not counted.
        load = Workload(task=task, clients=clients, rounds=1 + -(-(rounds - 1) // _BLOCKS))
        mine, others = _engines(load, peer_python, timeout, inline)
        ours[task] = mine
        for name, figures in others.items():
            peers.setdefault(name, {})[task] = figures
            if "round_seconds" in figures:
                ratios[f"{name} / ours, {task}"] = _seconds(figures) / _seconds(mine)
    if encrypted_rounds:
        ours["agents"] = _agents(clients)
        chosen = {name: each for name, each in ENCRYPTIONS.items() if name in ("none", *encryptions)}
        figures = _encrypted(codec, clients, encrypted_rounds, chosen, encrypted_changes or {}, inline)
        ours[f"encrypted, {codec}"] = figures
        seconds = {name: _seconds(cast(Figures, figures[name])) for name in chosen}
        work = {name: float(str(cast(Figures, figures[name])["cpu_seconds"])) for name in chosen}
        if "committee" in work and "hybrid" in work:
            ratios[f"committee / hybrid, CPU seconds, {codec}"] = work["committee"] / work["hybrid"]
        for name in ("hybrid", "paillier", "committee"):
            if name not in chosen:
                continue
            ratios[f"{name} / plain round, {codec}"] = seconds[name] / seconds["none"]
            ratios[f"{name} / plain round, CPU seconds, {codec}"] = work[name] / work["none"]
            if "none, trained by torch" in chosen:
                ratios[f"{name} / plain round trained by torch, {codec}"] = (
                    seconds[name] / seconds["none, trained by torch"]
                )
        # The agents' seconds are of one core, a round's of all.
        ratios[f"agents / plain round, {codec}"] = _seconds(ours["agents"]) / cores() / seconds["none"]
    what = {
        "what": "seconds of a round, all cores; medians with quartiles",
        "clients": clients,
        "epochs": 1,
        "batch_size": Workload(task="").batch_size,
        "rounds": rounds,
        "encrypted_rounds": encrypted_rounds,
        **host(),
    }
    result = BenchResult(work=what, ours=ours, peers=peers, ratios=ratios)
    fewest = min(count - 1 for count in (rounds if tasks else 99, encrypted_rounds or 99))
    if fewest < ENOUGH:
        result = result.with_warnings(f"Only {fewest} rounds were counted: medians of fewer than {ENOUGH}.")
    return result


def _seconds(figures: Figures) -> float:
    return float(str(figures["round_seconds"]))


def _timed(seconds: list[float]) -> dict[str, object]:
    """The figures of some rounds, all of which count."""
    spread = spread_of(seconds)
    return {
        "round_seconds": spread["median"],
        "quartiles": spread["quartiles"],
        "counted": spread["counted"],
        "all_rounds": seconds,
    }


def _engines(
    work: Workload, peer_python: str, timeout: float, inline: bool
) -> tuple[Figures, dict[str, Figures]]:
    """Our rounds and the peers', in turn, block by block."""
    mine: list[float] = []
    accuracy: float | None = None
    theirs: dict[str, list[Figures]] = {}
    for block in range(_BLOCKS):
        err.print(f"{work.task}: ours, Flower's simulation twice, pfl ({block + 1} of {_BLOCKS})")
        run = _our_run(_same_work(work), inline)
        mine += run.seconds[1:] or run.seconds
        accuracy = run.accuracy
        for name, figures in _peers(work, peer_python, timeout).items():
            theirs.setdefault(name, []).append(figures)
    merged: dict[str, Figures] = {}
    for name, blocks in theirs.items():
        broken = [figures for figures in blocks if "absent" in figures]
        rounds = [second for figures in blocks for second in cast(list[float], figures.get("all_rounds", []))]
        merged[name] = broken[0] if broken else {**blocks[-1], **_timed(rounds)}
    return {**_timed(mine), "accuracy": accuracy}, merged


def _same_work(work: Workload) -> RunConfig:
    """The workload as one of our runs."""
    return override(
        RunConfig(),
        {
            "task": work.task,
            "setting": "fixed-capped",
            "eta": work.eta,
            "alpha": work.epochs,
            "batch_size": work.batch_size,
            "rounds": work.rounds,
            "clients": work.clients,
            "seed": work.seed,
            "crypto.encryption": "none",
        },
    )


@dataclass(frozen=True)
class _Run:
    """How long one of our runs took, and its result."""

    seconds: list[float]
    cpu_seconds: list[float]  # of all its processes together
    accuracy: float | None
    model: str  # a digest of its weights


def _our_run(config: RunConfig, inline: bool) -> _Run:
    (run,) = _our_runs([config], inline)
    return run


def _our_runs(configs: Sequence[RunConfig], inline: bool) -> list[_Run]:
    """Plays runs of as many rounds in turn: a round of each, then the next round of each."""
    from dapfl.runs.directory import RunDirectory
    from dapfl.runs.session import start

    seconds: list[list[float]] = [[] for _ in configs]
    work: list[list[float]] = [[] for _ in configs]
    accuracies: list[float | None] = [None] * len(configs)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(index) for index in range(len(configs))]
        with ExitStack() as stack:
            sessions = [
                stack.enter_context(start(config, path, inline=inline))
                for config, path in zip(configs, paths, strict=True)
            ]
            rounds = [iter(session) for session in sessions]
            for _ in range(configs[0].rounds):
                for index, each in enumerate(rounds):
                    began, worked = time.perf_counter(), cpu_seconds()
                    accuracies[index] = next(each).accuracy
                    seconds[index].append(time.perf_counter() - began)
                    work[index].append(cpu_seconds() - worked)
            for each in rounds:
                for _ in each:  # a run ends after its last round
                    pass
        models = [_digest(RunDirectory(path).model_path) for path in paths]
    return [_Run(*each) for each in zip(seconds, work, accuracies, models, strict=True)]


def _digest(model: Path) -> str:
    with np.load(model) as tensors:
        weights = b"".join(tensors[name].tobytes() for name in tensors.files)
    return hashlib.sha256(weights).hexdigest()


def _peers(work: Workload, python: str, timeout: float) -> dict[str, Figures]:
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cores()}")
    same = msgspec.structs.replace(work, trainer="dapfl")
    return {
        "flower": _peer("flower", work, python, timeout, flower.INSTALL),
        "flower with our training": _peer("flower", same, python, timeout, flower.INSTALL),
        "pfl": _peer("pfl", work, python, timeout, pfl.INSTALL, torchrun),
    }


def _peer(
    module: str, work: Workload, python: str, timeout: float, install: str, launcher: tuple[str, ...] = ()
) -> Figures:
    try:
        report = run_peer(module, work, python, timeout, launcher)
    except PeerFailed as failure:
        return absent(str(failure), install)
    # The first round starts a peer's processes and fills its caches, as it does ours.
    return {
        **_timed(report.round_seconds[1:] or report.round_seconds),
        "accuracy": report.accuracy,
        "processes": report.processes,
    }


def _agents(clients: int, rounds: int = 40) -> Figures:
    """What the agents of the default setting need per round to observe, learn and choose, on one core."""
    from dapfl.runs.settings import resolve
    from dapfl.tuning import Outcome, Situation, build_policy

    config = resolve(RunConfig()).policy
    agents = [build_policy(config, seed=0, client=client) for client in range(1, clients + 1)]
    seconds = []
    for t in range(rounds):
        loss = 2.3 / (t + 1)
        seen = Situation(t, rounds, loss, 1 - loss / 3, 1 - loss / 3, 30.0, 1.2, 1.0, samples=600)
        began = time.process_time()
        for agent in agents:
            agent.choose(seen)
            agent.observe(Outcome(completed=True, loss_after=0.9 * loss))
        seconds.append(time.process_time() - began)
    return {"round_seconds": statistics.median(seconds[rounds // 2 :]), "clients": clients}


def _encrypted(
    codec: str,
    clients: int,
    rounds: int,
    encryptions: Mapping[str, Mapping[str, object]],
    changes: Mapping[str, object],
    inline: bool,
) -> Figures:
    """The default run, plain and encrypted, round by round in turn: the same epochs and the same model."""
    both = {"clients": clients, "rounds": rounds, "crypto.codec": codec}
    configs = {
        name: override(RunConfig(), {**both, **changes, **encryption})
        for name, encryption in encryptions.items()
    }
    err.print(f"the default run, codec {codec}, in turn: {'; '.join(configs)}")
    runs = dict(zip(configs, _our_runs(list(configs.values()), inline), strict=True))
    figures: dict[str, object] = {}
    for name, run in runs.items():
        work = spread_of(run.cpu_seconds[1:] or run.cpu_seconds)
        figures[name] = {
            **_timed(run.seconds[1:] or run.seconds),
            "first_round_seconds": run.seconds[0],
            "cpu_seconds": work["median"],
            "cpu_quartiles": work["quartiles"],
            "first_round_cpu_seconds": run.cpu_seconds[0],
        }
    # Torch's own training rounds differently.
    models = {run.model for name, run in runs.items() if "task" not in ENCRYPTIONS[name]}
    return {**figures, "same_model": len(models) == 1}
