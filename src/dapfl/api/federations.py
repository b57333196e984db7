"""Federations from Python: the functions behind `import dapfl`.

These functions do what the commands of the same names do, with the same names for everything: the same run
directory, the same results.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dapfl import config as configuration
from dapfl.api.results import Comparison, RunResult
from dapfl.config import CryptoConfig, RunConfig, override
from dapfl.crypto.engines.base import set_threads
from dapfl.errors import ConfigError, DapflError
from dapfl.federation.records import RoundRecord
from dapfl.learning.tasks import TASKS, Task, register
from dapfl.runs import compare as comparing
from dapfl.runs import session as sessions
from dapfl.runs.directory import fresh_directory
from dapfl.runs.results import read_run
from dapfl.runs.scales import scale_of

__all__ = ["compare", "load", "resume", "run"]

OnRound = Callable[[RoundRecord], object]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Federations compute on one thread in each process; afterwards this process has its own back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        set_threads(None)


@_one_thread()
def run(
    task: str | Task | None = None,
    *,
    out: str | Path | None = None,
    config: str | Path | None = None,
    on_round: OnRound | None = None,
    **options: Any,
) -> RunResult:
    """Runs a federation, and returns its result.

    - `task` is a name such as ``"cnn-mnist"``, a reference ``"path/to/file.py:NAME"``, or a `Task` object.
    - `out` is the run directory, which must be new or empty; a new one in ``runs/`` if it is left out.
    - `config` is a TOML file; what is given here overrides it.
    - `on_round` is called with the `RoundRecord` of each round once it is saved. If it raises StopIteration,
      the run stops there, and `resume` can continue it.
    - `options` are the keys of a configuration file: ``rounds``, ``clients``, ``setting``, ``seed``,
      ``partition``, ``eta``, ... The keys of its table ``[crypto]`` can be written directly, as on the
      command line (``encryption="none"``, ``key_bits=3072``); other tables are dictionaries
      (``policy={...}``).

    The clients run in worker processes, one for each core, unless the task is a `Task` object: other
    processes do not know that object, so its clients all run in this one.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as out:
    ...     result = run("examples/own_task.py:rings", rounds=2, clients=3, encryption="none", out=out)
    >>> result.status, len(result.rounds)
    ('finished', 2)
    """
    task, inline = _known(task)
    base = configuration.load(Path(config)) if config is not None else RunConfig()
    chosen = override(base, _changes(options) | ({} if task is None else {"task": task}))
    if inline and chosen.engine != "local":
        raise ConfigError(
            f"A Task object cannot run on the engine {chosen.engine}: put it into a file, and say "
            "task='FILE.py:NAME'."
        )
    path = Path(out) if out is not None else fresh_directory(chosen)
    return _finish(sessions.start(chosen, path, inline=inline), on_round)


@_one_thread()
def resume(
    path: str | Path,
    *,
    task: Task | None = None,
    rounds: int | None = None,
    workers: int | None = None,
    accept_changes: bool = False,
    on_round: OnRound | None = None,
) -> RunResult:
    """Continues the run in a directory after its last complete round.

    It ends with the same result as a run that was never stopped. `rounds` extends it to that number of
    rounds, with the same result as a run of that length from the start. A run of a `Task` object needs that
    object again, as `task`. A run whose data or files have changed continues only with `accept_changes`.
    """
    inline = False
    if task is not None:
        name, inline = _known(task)
        if (found := load(path).config["task"]) != name:
            raise ConfigError(
                f"The run in {path} is of the task {found}, not {name}: resume it with that task, or start "
                "a new run."
            )
    session = sessions.resume(
        Path(path), rounds=rounds, workers=workers, inline=inline, accept_changes=accept_changes
    )
    return _finish(session, on_round)


def load(path: str | Path) -> RunResult:
    """The run in a directory as it is now, finished or not."""
    return RunResult(read_run(Path(path)))


@_one_thread()
def compare(
    task: str | Task,
    settings: str | Sequence[str] = "all",
    *,
    out: str | Path,
    scale: str = "standard",
    rounds: int | None = None,
    seeds: int | None = None,
    first_seed: int = 100,
    workers: int = 0,
    on_progress: Callable[[comparing.Progress], object] | None = None,
    **options: Any,
) -> Comparison:
    """Runs several settings and seeds under the same conditions, each run in a directory of its own.

    `settings` are names, as a list or joined by commas; ``"all"`` are those of the paper and some simple
    rules. `scale` gives `rounds` and `seeds` where they are left out. Nothing is encrypted unless
    ``encryption="paillier"`` says so: the results are the same, bit for bit. What is finished in `out` is not
    run again, so the same call after a stop does only what is missing.
    """
    name, inline = _known(task)
    assert name is not None
    amount = scale_of(scale, name)
    changes = {"encryption": "none", **options, "rounds": rounds or amount.rounds}
    base = override(RunConfig(), _changes(changes) | {"task": name})
    labels = comparing.parse_settings(settings if isinstance(settings, str) else ",".join(settings))
    all_seeds = range(first_seed, first_seed + (seeds or amount.seeds))
    jobs = comparing.plan(base, labels, all_seeds, Path(out))
    missing = [job for job in jobs if not comparing.is_finished(job)]
    if inline:
        for job in missing:
            comparing.perform(job)
    elif missing:
        for progress in comparing.run_all(missing, workers):
            if on_progress is not None:
                on_progress(progress)
        if progress.failed:
            reasons = "; ".join(f"{job.path}: {reason}" for job, reason in progress.failed)
            raise DapflError(
                f"{len(progress.failed)} of {len(jobs)} runs failed: {reasons}. "
                "The same call again repeats only those."
            )
    return Comparison(Path(out), tuple(RunResult(read_run(job.path)) for job in jobs))


# Parts ---------------------------------------------------------------------------------------------


def _known(task: str | Task | None) -> tuple[str | None, bool]:
    """The name of a task in this process, and whether this process alone knows it."""
    if isinstance(task, Task):
        return register(task), task.name not in TASKS
    return task, False


def _changes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their dotted names in the configuration."""
    changes: dict[str, Any] = {}
    tables = ("crypto", "resources")
    crypto, known = CryptoConfig.__struct_fields__, RunConfig.__struct_fields__
    for name, value in options.items():
        if name in tables and isinstance(value, Mapping):
            changes |= {f"{name}.{key}": entry for key, entry in value.items()}
        elif name in known:
            changes[name] = value
        elif name in crypto:
            changes[f"crypto.{name}"] = value
        else:
            near = difflib.get_close_matches(name, [*known, *crypto], n=1)
            raise ConfigError(f"There is no option {name!r}{f': did you mean {near[0]!r}?' if near else '.'}")
    return changes


def _finish(session: sessions.Session, on_round: OnRound | None) -> RunResult:
    """Runs a session to its end, or until the callback stops it."""
    with session:
        for record in session:
            try:
                if on_round is not None:
                    on_round(record)
            except StopIteration:
                if record.round + 1 < session.config.rounds:
                    break
        attacks = session.attacks()
    return RunResult(read_run(session.path), attacks)
