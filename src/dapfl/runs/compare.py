"""Many runs under the same conditions: every setting and seed meets the same clients, data and budgets.

Runs of one seed share all random streams but the agents' own (common random numbers), so settings can be
compared pair by pair. Each run has a directory of its own below the comparison's; a run that is finished
is not run again, one that was stopped is resumed.
"""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapfl.config import RunConfig, override, parse, read_toml, relocated
from dapfl.errors import ConfigError, NothingLearned, RunDirectoryError
from dapfl.runs.directory import RunDirectory
from dapfl.runs.session import resume, start
from dapfl.runs.settings import SETTINGS
from dapfl.system.processes import WORKERS

# The paper's seven settings (DQN is two of them), the agent as published, and the rules to beat: simple ones,
# local optimisers that find their own step sizes, a server step.
ALL = (
    "dap-fl",
    "large",
    "small",
    "ddpg-eta",
    "ddpg-alpha",
    "ddpg-client",
    "dqn-large",
    "dqn-small",
    "dap-fl-paper",
    "fixed-capped:0.03:30",
    "fixed-capped:0.1:6",
    "cosine-capped:0.1:6",
    "delta-sgd:6",
    "dog-capped:6",
    "fedadam-capped:0.1:6",
)
# What a patient expert would try: the best of these, run without a cap, is the oracle fixed setting.
ORACLE_GRID = tuple(
    f"fixed:{eta}:{alpha}" for eta in (0.01, 0.03, 0.1, 0.2, 0.3) for alpha in (1, 3, 6, 10, 20)
)


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    label: str
    config: RunConfig
    path: Path


def parse_settings(text: str) -> tuple[str, ...]:
    """The labels that `--settings` names: settings, rules and variants (see `plan`), `all`, `oracle`."""
    groups = {"all": ALL, "oracle": ORACLE_GRID}
    labels = [label for part in text.split(",") for label in groups.get(part.strip(), (part.strip(),))]
    return tuple(dict.fromkeys(labels))


def plan(base: RunConfig, labels: Iterable[str], seeds: Iterable[int], out: Path) -> list[Job]:
    """Every run of a comparison, seed by seed, so that a comparison that is stopped early is still paired.

    A label is a setting, a fixed rule `NAME:ETA:ALPHA`, a rule that finds its own η `NAME:ALPHA`, a price of
    work `dap-fl:KAPPA`, or a variant: a TOML file with whatever of a `RunConfig` it changes, such as parts of
    the agent.
    """
    configs = {label: relocated(override(base, _changes(label)), Path.resolve) for label in labels}
    return [
        Job(label, override(config, {"seed": seed}), out / _folder(label) / f"seed-{seed}")
        for seed in seeds
        for label, config in configs.items()
    ]


def _folder(label: str) -> str:
    return Path(label).stem if label.endswith(".toml") else label.replace(":", "_")


def _changes(label: str) -> dict[str, Any]:
    """What a label changes in the configuration of a comparison."""
    if label.endswith(".toml"):
        return read_toml(Path(label))
    setting, *values = label.split(":")
    try:
        match values:
            case []:
                return {"setting": setting}
            case [alpha] if setting in SETTINGS and SETTINGS[setting].asks == ("alpha",):
                return {"setting": setting, "alpha": int(alpha)}
            case [price]:
                return {"setting": setting, "price": float(price)}
            case [eta, alpha]:
                return {"setting": setting, "eta": float(eta), "alpha": int(alpha)}
    except ValueError:
        pass
    raise ConfigError(
        f"'{label}' is not a setting. A fixed rule is written NAME:ETA:ALPHA, one that finds η NAME:ALPHA, "
        "a price of work dap-fl:KAPPA."
    )


def is_finished(job: Job) -> bool:
    """Whether the run is there already; one that was made with another configuration is an error."""
    directory = RunDirectory(job.path)
    if not directory.begun:
        return False
    manifest = directory.read_manifest()
    if override(parse(manifest.config), {"workers": 0}) != override(job.config, {"workers": 0}):
        raise RunDirectoryError(
            f"{job.path} holds a run with another configuration. Choose another --out, or remove it."
        )
    return manifest.status in ("finished", "failed")


def rounds_done(job: Job) -> int:
    """How many rounds of a run are on the disk."""
    try:
        return RunDirectory(job.path).rounds_path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def perform(job: Job) -> None:
    """Runs a job in this process, or continues it where it stopped."""
    begun = RunDirectory(job.path).begun
    session = resume(job.path, inline=True) if begun else start(job.config, job.path, inline=True)
    with session, suppress(NothingLearned):  # a result like any other: the report says what was lost
        for _ in session:
            if _orphaned():
                break  # the comparison was killed: free the run, so that it can be resumed
    if _orphaned():
        os._exit(1)  # an executor's process would wait for more work for ever


def _orphaned() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


@dataclass(frozen=True)
class Progress:
    """How far a comparison has come."""

    rounds: int
    finished: tuple[Job, ...]
    failed: tuple[tuple[Job, str], ...]


def run_all(jobs: list[Job], workers: int = 0) -> Iterator[Progress]:
    """Runs the jobs on all cores, each in a process of its own, and yields their progress twice a second."""
    count = max(1, min(workers or os.cpu_count() or 1, len(jobs)))
    with ProcessPoolExecutor(count, mp_context=WORKERS) as pool:
        futures = {pool.submit(perform, job): job for job in jobs}
        pending = set(futures)
        try:
            while pending:
                _, pending = wait(pending, timeout=0.5)
                yield _progress(futures)
        except BaseException:
            # Killed runs resume from their checkpoints: nothing is lost by not waiting for them.
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _progress(futures: "dict[Future[None], Job]") -> Progress:
    done = {future: job for future, job in futures.items() if future.done()}
    failed = tuple((job, str(error)) for future, job in done.items() if (error := future.exception()))
    finished = tuple(job for future, job in done.items() if not future.exception())
    return Progress(sum(rounds_done(job) for job in futures.values()), finished, failed)
