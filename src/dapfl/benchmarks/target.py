"""`dapfl bench target`: the wall seconds from a command's start to a model of a given accuracy.

Twenty clients of different power under the same budgets. Ours is the default run, encrypted, with the
packaged agent. The peer is what a user of Flower has from its tutorial: FedAvg in Flower's simulation, SGD
with η = 0.01 and momentum 0.9, one epoch; and the best of a small grid, with the search counted as well,
since someone has to make it. Clients of the peer lose what exceeds their budget, as ours would.

All of it twice: as it is, with nothing encrypted, and with Flower's SecAgg+, which hides single models from a
server that follows the protocol.
"""

import itertools
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dapfl.benchmarks.peers import flower, flower_secagg
from dapfl.benchmarks.peers.workload import PeerFailed, Workload, run_peer
from dapfl.benchmarks.result import BenchResult, Figures, absent, host
from dapfl.config import RunConfig, override
from dapfl.system.console import err

TARGETS = {"cnn-mnist": 0.97, "cnn-fashion": 0.83}
QUICK = {"logistic-mnist": 0.85}
TUTORIAL = (0.01, 1)  # η and epochs; momentum 0.9
GRID = tuple(itertools.product((0.01, 0.03, 0.1), (1, 5)))
PEERS = {"": "flower", ", SecAgg+": "flower_secagg"}  # by what their names end with


def run(
    *,
    targets: Mapping[str, float] = TARGETS,
    clients: int = 20,
    rounds: int = 60,
    seed: int = 0,
    grid: tuple[tuple[float, int], ...] = GRID,
    changes: Mapping[str, object] | None = None,
    peer_python: str,
    timeout: float = 900,
    inline: bool = False,
) -> BenchResult:
    """Measures our default run and the peer on every task; nobody gets more than `rounds` rounds."""
    ours: dict[str, Figures] = {}
    peers: dict[str, dict[str, object]] = {}
    ratios: dict[str, float] = {}
    for task, target in targets.items():
        both = {"task": task, "clients": clients, "rounds": rounds, "seed": seed}
        err.print(f"{task} to {target:.0%}: ours, encrypted")
        ours[task] = mine = _ours(override(RunConfig(), {**both, **(changes or {})}), target, inline)
        work = Workload(
            task=task, clients=clients, rounds=rounds, seed=seed, momentum=0.9, target=target, budgets=True
        )
        for suffix, module in PEERS.items():
            tried: dict[tuple[float, int], Figures] = {}
            for eta, epochs in (TUTORIAL, *(each for each in grid if each != TUTORIAL)):
                err.print(f"{task} to {target:.0%}: Flower{suffix}, η = {eta}, {epochs} epochs")
                one = msgspec.structs.replace(work, eta=eta, epochs=epochs)
                tried[eta, epochs] = _peer(module, one, peer_python, timeout)
                if "absent" in tried[eta, epochs]:
                    break
            found = {"flower, tutorial": tried[TUTORIAL], "flower, best of a grid": _best(tried)}
            for name, figures in found.items():
                peers.setdefault(name + suffix, {})[task] = figures
                _compare(ratios, f"{name}{suffix} / ours, {task}", mine, figures)
    what = {
        "what": "wall seconds from the start of the command to a test accuracy",
        "targets": dict(targets),
        "clients": clients,
        "most_rounds": rounds,
        "seed": seed,
        "grid": [f"eta {eta}, {epochs} epochs" for eta, epochs in grid],
        "secagg": f"every run of the peer a second time with SecAgg+: {flower_secagg.SHARES} shares, any "
        f"{flower_secagg.THRESHOLD} of which restore a secret",
        **host(),
    }
    return BenchResult(work=what, ours=ours, peers=peers, ratios=ratios)


def _ours(config: RunConfig, target: float, inline: bool) -> Figures:
    from dapfl.runs.session import start

    accuracies: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with start(config, Path(folder) / "run", inline=inline) as session:
            ready = time.perf_counter()
            for record in session:
                accuracies.append(record.accuracy or 0.0)
                if accuracies[-1] >= target:
                    break
            ended = time.perf_counter()
    return _figures(accuracies, target, ended - began, ready - began)


def _figures(accuracies: list[float], target: float, seconds: float, start_seconds: float) -> Figures:
    reached = bool(accuracies) and accuracies[-1] >= target
    return {
        "seconds": seconds,
        "reached": reached,
        "rounds": len(accuracies),
        "accuracy": accuracies[-1] if accuracies else None,
        "start_seconds": start_seconds,
    }


def _peer(module: str, work: Workload, python: str, timeout: float) -> Figures:
    began = time.time()
    try:
        report = run_peer(module, work, python, timeout)
    except PeerFailed as failure:
        return absent(str(failure), flower.INSTALL)
    ended = report.reached or time.time()
    assert work.target is not None
    seconds = ended - began
    return _figures(report.accuracies, work.target, seconds, seconds - sum(report.round_seconds))


def _best(tried: Mapping[tuple[float, int], Figures]) -> Figures:
    """The fastest run that reached the target, and what all runs took together."""
    measured = {each: figures for each, figures in tried.items() if "seconds" in figures}
    if len(measured) < len(tried):
        return next(figures for figures in tried.values() if "absent" in figures)
    total = sum(float(str(figures["seconds"])) for figures in measured.values())
    reached = {each: figures for each, figures in measured.items() if figures["reached"]}
    every = {f"eta {eta}, {epochs} epochs": figures for (eta, epochs), figures in measured.items()}
    if not reached:
        return {"reached": False, "seconds_with_search": total, "all": every}
    eta, epochs = min(reached, key=lambda each: float(str(reached[each]["seconds"])))
    best = {**reached[eta, epochs], "eta": eta, "epochs": epochs}
    return {**best, "seconds_with_search": total, "all": every}


def _compare(ratios: dict[str, float], name: str, mine: Figures, theirs: object) -> None:
    """Ratios of wall seconds where both have reached the target; a search counts in a ratio of its own."""
    if not isinstance(theirs, Mapping) or not mine["reached"]:
        return
    seconds = float(str(mine["seconds"]))
    if theirs.get("reached"):
        ratios[name] = float(str(theirs["seconds"])) / seconds
    if "seconds_with_search" in theirs:
        ratios[f"{name}, with the search"] = float(str(theirs["seconds_with_search"])) / seconds
