"""`dapfl bench round`: the seconds of a round in our local engine, in Flower's simulation and in pfl.

The same work for all, on all cores: 20 clients score the model on their data and train one epoch, the
server averages and scores the test set. Starting processes is not counted. Then what encryption adds to
a round of the default run.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dapfl.benchmarks import flower_peer, pfl_peer
from dapfl.benchmarks.result import BenchResult, Figures, absent, host
from dapfl.benchmarks.timing import cores
from dapfl.benchmarks.workload import PeerFailed, Workload, run_peer
from dapfl.config import RunConfig, override
from dapfl.console import err

TASKS = ("logistic-mnist", "cnn-mnist")
ENCRYPTIONS: Mapping[str, Mapping[str, object]] = {
    "none": {"crypto.encryption": "none"},
    "hybrid": {"crypto.envelope": "hybrid"},
    "paillier": {"crypto.envelope": "paillier"},
}


def run(
    *,
    tasks: tuple[str, ...] = TASKS,
    clients: int = 20,
    rounds: int = 8,
    encrypted_rounds: int = 3,
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
        work = Workload(task=task, clients=clients, rounds=rounds)
        err.print(f"{task}: ours")
        seconds, accuracy = _our_rounds(_same_work(work), inline)
        mine = statistics.median(seconds[1:] or seconds)
        ours[task] = {"round_seconds": mine, "all_rounds": seconds, "accuracy": accuracy}
        for name, figures in _peers(work, peer_python, timeout).items():
            peers.setdefault(name, {})[task] = figures
            if "round_seconds" in figures:
                ratios[f"{name} / ours, {task}"] = float(str(figures["round_seconds"])) / mine
    if encrypted_rounds:
        ours["encrypted"] = _encrypted(clients, encrypted_rounds, encrypted_changes or {}, inline)
        plain = float(str(ours["encrypted"]["none round_seconds"]))
        for name in ("hybrid", "paillier"):
            ratios[f"{name} / plain round"] = float(str(ours["encrypted"][f"{name} round_seconds"])) / plain
    what = {
        "what": "seconds of a round, all cores",
        "clients": clients,
        "epochs": 1,
        "batch_size": Workload(task="").batch_size,
        "rounds": rounds,
        **host(),
    }
    return BenchResult(work=what, ours=ours, peers=peers, ratios=ratios)


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


def _our_rounds(config: RunConfig, inline: bool) -> tuple[list[float], float | None]:
    """The seconds of every round of a run, and its last accuracy."""
    from dapfl.experiments.runner import start

    seconds: list[float] = []
    accuracy = None
    with (
        tempfile.TemporaryDirectory() as folder,
        start(config, Path(folder) / "run", inline=inline) as session,
    ):
        began = time.perf_counter()
        for record in session:
            ended = time.perf_counter()
            seconds.append(ended - began)
            began, accuracy = ended, record.accuracy
    return seconds, accuracy


def _peers(work: Workload, python: str, timeout: float) -> dict[str, Figures]:
    err.print(f"{work.task}: Flower's simulation twice, pfl")
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cores()}")
    same = msgspec.structs.replace(work, trainer="dapfl")
    return {
        "flower": _peer("flower_peer", work, python, timeout, flower_peer.INSTALL),
        "flower with our training": _peer("flower_peer", same, python, timeout, flower_peer.INSTALL),
        "pfl": _peer("pfl_peer", work, python, timeout, pfl_peer.INSTALL, torchrun),
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
        "round_seconds": statistics.median(report.round_seconds[1:] or report.round_seconds),
        "all_rounds": report.round_seconds,
        "accuracy": report.accuracy,
        "processes": report.processes,
    }


def _encrypted(clients: int, rounds: int, changes: Mapping[str, object], inline: bool) -> Figures:
    """The default run, plain and encrypted: one seed, so the same epochs and the same model."""
    figures: dict[str, object] = {}
    accuracies = set()
    for name, encryption in ENCRYPTIONS.items():
        config = override(RunConfig(), {"clients": clients, "rounds": rounds, **changes, **encryption})
        err.print(f"{config.task}, the default run, encryption {name}")
        seconds, accuracy = _our_rounds(config, inline)
        figures[f"{name} round_seconds"] = sum(seconds) / len(seconds)
        figures[f"{name} all_rounds"] = seconds
        accuracies.add(accuracy)
    return {**figures, "same_model": len(accuracies) == 1}
