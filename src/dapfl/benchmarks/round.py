"""`dapfl bench round`: the seconds of a round in our local engine, in Flower's simulation and in pfl.

The same work for all, on all cores: 20 clients score the model on their data and train one epoch, the
server averages and scores the test set. Starting processes is not counted. Then what encryption adds to
a round of the default run, whose training our own code has made short, and what that round takes with
torch's training.
"""

import hashlib
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from dapfl.benchmarks import flower_peer, pfl_peer, torch_task
from dapfl.benchmarks.result import BenchResult, Figures, absent, host
from dapfl.benchmarks.timing import cores
from dapfl.benchmarks.workload import PeerFailed, Workload, run_peer
from dapfl.config import RunConfig, override
from dapfl.console import err

TASKS = ("logistic-mnist", "cnn-mnist")
ENCRYPTIONS: Mapping[str, Mapping[str, object]] = {
    "none, trained by torch": {"crypto.encryption": "none", "task": f"{torch_task.__file__}:TASK"},
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
        mine = _our_run(_same_work(work), inline)
        ours[task] = {
            "round_seconds": mine.round_seconds,
            "all_rounds": mine.seconds,
            "accuracy": mine.accuracy,
        }
        for name, figures in _peers(work, peer_python, timeout).items():
            peers.setdefault(name, {})[task] = figures
            if "round_seconds" in figures:
                ratios[f"{name} / ours, {task}"] = float(str(figures["round_seconds"])) / mine.round_seconds
    if encrypted_rounds:
        ours["agents"] = _agents(clients)
    for codec in ("exact", "compact") if encrypted_rounds else ():
        figures = _encrypted(codec, clients, encrypted_rounds, encrypted_changes or {}, inline)
        ours[f"encrypted, {codec}"] = figures
        seconds = {name: cast(Figures, figures[name])["round_seconds"] for name in ENCRYPTIONS}
        for name in ("hybrid", "paillier"):
            ratios[f"{name} / plain round, {codec}"] = float(str(seconds[name])) / float(str(seconds["none"]))
            slow = float(str(seconds["none, trained by torch"]))
            ratios[f"{name} / plain round trained by torch, {codec}"] = float(str(seconds[name])) / slow
        # The agents' seconds are of one core, a round's of all.
        share = float(str(ours["agents"]["round_seconds"])) / cores() / float(str(seconds["none"]))
        ratios[f"agents / plain round, {codec}"] = share
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


@dataclass(frozen=True)
class _Run:
    """What a run of ours took, and what came of it."""

    seconds: list[float]
    accuracy: float | None
    model: str  # a digest of its weights

    @property
    def round_seconds(self) -> float:
        """Without the first round, which starts processes, builds tables and proves what is proved once."""
        return statistics.median(self.seconds[1:] or self.seconds)


def _our_run(config: RunConfig, inline: bool) -> _Run:
    from dapfl.experiments.runner import start

    seconds: list[float] = []
    accuracy = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with start(config, path, inline=inline) as session:
            began = time.perf_counter()
            for record in session:
                ended = time.perf_counter()
                seconds.append(ended - began)
                began, accuracy = ended, record.accuracy
        with np.load(path / "model.npz") as tensors:
            weights = b"".join(tensors[name].tobytes() for name in tensors.files)
    return _Run(seconds, accuracy, hashlib.sha256(weights).hexdigest())


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


def _agents(clients: int, rounds: int = 40) -> Figures:
    """What the default setting's agents take a round to observe, learn and choose, on one core."""
    from dapfl.experiments.settings import resolve
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


def _encrypted(codec: str, clients: int, rounds: int, changes: Mapping[str, object], inline: bool) -> Figures:
    """The default run, plain and encrypted: one seed, so the same epochs and the same model."""
    figures: dict[str, object] = {}
    models = set()
    for name, encryption in ENCRYPTIONS.items():
        both = {"clients": clients, "rounds": rounds, "crypto.codec": codec}
        config = override(RunConfig(), {**both, **changes, **encryption})
        err.print(f"{config.task}, the default run, codec {codec}, encryption {name}")
        run = _our_run(config, inline)
        figures[name] = {"round_seconds": run.round_seconds, "all_rounds": run.seconds}
        if "task" not in encryption:
            models.add(run.model)  # torch's own training rounds differently
    return {**figures, "same_model": len(models) == 1}
