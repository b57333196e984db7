"""One run from its configuration to its last line: what `dapfl run` and every experiment are made of.

    with start(config, Path("runs/first")) as session:
        for record in session:
            print(record.round, record.accuracy)

Leaving early, by any way at all, leaves a run directory that `resume` continues.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from dapfl.config import RunConfig, override, parse
from dapfl.console import progress
from dapfl.crypto.engine import set_threads
from dapfl.engines.local import WorkerPool
from dapfl.errors import DapflError, RunDirectoryError
from dapfl.experiments.logs import open_logs
from dapfl.experiments.manifest import describe
from dapfl.experiments.settings import Resolved, resolve
from dapfl.experiments.store import Checkpoint, RunDirectory
from dapfl.federation.assembly import (
    Keys,
    Shared,
    build_client,
    build_federation,
    check,
    keys_needed,
    load_keys,
    load_server_keys,
    make_keys,
    save_keys,
)
from dapfl.federation.client import Client
from dapfl.federation.ledger import Ledger
from dapfl.federation.records import RoundRecord
from dapfl.federation.round import Federation
from dapfl.federation.transport import ClientId, LocalTransport, Transport
from dapfl.files import replacing
from dapfl.learning.sgd import Vector
from dapfl.learning.tasks import get_task
from dapfl.learning.workshop import workshop


@dataclass(frozen=True)
class Deployed:
    """Clients on machines of their own: the SuperLink's address, and the server's folder."""

    superlink: str
    folder: str


def start(
    config: RunConfig, path: Path, *, inline: bool = False, deployed: Deployed | None = None
) -> "Session":
    """A new run in a new directory. `inline` keeps the clients in this process."""
    config = _with_absolute_paths(config)
    resolved = resolve(config)
    check(config)  # what cannot work is said before anything is written or any key is made
    manifest = describe(config, resolved)
    if deployed:
        manifest["deployment"] = asdict(deployed)
    directory = RunDirectory.create(path, manifest)
    return Session(directory, config, resolved, None, inline, fresh=True)


def resume(path: Path, *, workers: int | None = None, inline: bool = False) -> "Session":
    """The run in `path`, continued after its last complete round."""
    directory = RunDirectory.open(path)
    manifest = directory.read_manifest()
    if manifest.get("status") == "finished":
        raise RunDirectoryError(f"The run in {path} has finished: there is nothing to resume.")
    config = parse(manifest["config"])
    if workers is not None:
        config = override(config, {"workers": workers})
    with directory.lock():
        checkpoint = directory.load()
    return Session(directory, config, resolve(config), checkpoint, inline)


def _with_absolute_paths(config: RunConfig) -> RunConfig:
    """A run can be resumed from any folder, so the files it names must not depend on this one."""
    changes: dict[str, Any] = {}
    file, colon, name = config.task.rpartition(":")
    if colon and file.endswith(".py"):
        changes["task"] = f"{Path(file).resolve()}:{name}"
    if config.resources.trace:
        changes["resources.trace"] = str(Path(config.resources.trace).resolve())
    return override(config, changes)


class Engine(Transport, Protocol):
    """Where the clients live, and how their states are kept."""

    def states(self) -> dict[ClientId, bytes]:
        """The states of the clients, if the run has to keep them."""

    def close(self) -> None:
        """Lets the clients go."""


class _Inline(LocalTransport):
    """Clients in this process: what experiments use that keep the cores busy with many runs."""

    clients: dict[ClientId, Client]  # type: ignore[assignment]

    def states(self) -> dict[ClientId, bytes]:
        """The states of the clients."""
        return {client: each.state() for client, each in self.clients.items()}

    def close(self) -> None:
        """Nothing is held."""


class Session:
    """A run at work: iterate over it for the record of each round."""

    def __init__(
        self,
        directory: RunDirectory,
        config: RunConfig,
        resolved: Resolved,
        checkpoint: Checkpoint | None,
        inline: bool,
        fresh: bool = False,
    ) -> None:
        self.config = config
        self.path = directory.path
        self._directory = directory
        self._resolved = resolved
        self._checkpoint = checkpoint
        self._inline = inline
        self._fresh = fresh
        self._stack = ExitStack()
        self._federation: Federation | None = None
        found = directory.read_manifest().get("deployment")
        self._deployed = Deployed(**found) if found else None

    @property
    def rounds_done(self) -> int:
        """How many rounds were complete before this session."""
        return self._checkpoint.rounds if self._checkpoint else 0

    def __enter__(self) -> Self:
        try:
            self._open()
        except DapflError:
            if self._fresh:
                self._directory.remove()  # a run that could not even begin leaves nothing behind
            raise
        return self

    def _open(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._directory.lock())
            self._directory.set_status("running")
            stack.callback(self._note_stop)
            keys = self._keys()
            engine = self._engine = self._open_engine(keys)
            stack.callback(engine.close)
            self._federation = self._build_federation(engine, keys)
            self._logs = stack.enter_context(
                open_logs(self.config.log, self.path, self._directory.read_manifest())
            )
            self._stack = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[RoundRecord]:
        assert self._federation is not None, "a session is iterated inside its `with`"
        for record in self._federation.rounds(self.config.rounds):
            self._directory.save(
                Checkpoint(
                    rounds=record.round + 1,
                    federation=self._federation.state(),
                    clients=self._engine.states(),
                    lines=[record.to_json()],
                )
            )
            self._logs.log(record)
            yield record
        self._save_model(self._federation.weights)
        self._directory.clear_keys()
        self._directory.set_status("finished")

    def attacks(self) -> tuple[str, ...]:
        """What became of the run's live attackers, one line each."""
        assert self._federation is not None
        return self._federation.attacks()

    # Parts -------------------------------------------------------------------------------------

    def _keys(self) -> Keys:
        """The keys of this run: made at its start, kept in the run directory until its end."""
        folder = self._directory.keys_path
        if self.config.crypto.encryption == "none":
            return make_keys(self.config)
        if self._deployed:
            return load_server_keys(self.config, Path(self._deployed.folder))
        if (folder / "complete").exists():
            return load_keys(self.config, folder)
        with progress("Keys", keys_needed(self.config)) as advance:
            keys = make_keys(self.config, advance)
        save_keys(folder, keys)
        (folder / "complete").touch()
        return keys

    def _open_engine(self, keys: Keys) -> Engine:
        config, policy = self.config, self._resolved.policy
        if config.engine == "flower" and not self._inline:
            return self._open_flower(keys)
        states = self._checkpoint.clients if self._checkpoint else {}
        primer = self._build_federation(LocalTransport({}), keys).primer() if self._checkpoint else b""

        def shared() -> Shared:
            """What the clients of one process share; restored clients learn the current model from it."""
            return Shared(config, self._federation.primer() if self._federation else primer)

        if self._inline:
            set_threads(1)
            ours = shared()
            clients = {i: build_client(config, policy, i, keys.clients[i], ours) for i in keys.clients}
            for client, state in states.items():
                clients[client].restore(state)
            return _Inline(clients)
        recipes = {i: partial(build_client, config, policy, i, keys.clients[i]) for i in keys.clients}
        return WorkerPool(recipes, shared, workers=config.workers, states=states)

    def _open_flower(self, keys: Keys) -> Engine:
        from dapfl.engines.flower.engine import open_at, open_here  # an optional dependency

        if self._deployed:
            return open_at(self._deployed.superlink, Path(self._deployed.folder), self.config)
        return open_here(self.path / "flower", self.config, self._resolved.policy, keys.clients)

    def _build_federation(self, transport: Transport, keys: Keys) -> Federation:
        federation = build_federation(
            self.config,
            self._resolved.selection,
            keys.server,
            transport,
            carried=self.config.engine == "flower",  # an exchange there takes seconds: one a round
            ledger=self._ledger,
            insiders=keys.insiders,
        )
        kept = self._ledger.read() if self._ledger else None
        state = self._checkpoint.federation if self._checkpoint else kept
        if state is not None:
            federation.restore(state)
        return federation

    @property
    def _ledger(self) -> Ledger | None:
        """For clients that keep their own states: they may be ahead of a run that has no checkpoint yet."""
        if self.config.engine != "flower" or self._inline:
            return None
        return Ledger(self._directory.checkpoint_path.with_name("federation.state"))

    def _save_model(self, weights: Vector) -> None:
        layout = workshop(get_task(self.config.task)).layout
        tensors = {spec.name: weights[spec.start : spec.stop].reshape(spec.shape) for spec in layout.tensors}
        with replacing(self.path / "model.npz") as file:
            np.savez(file, allow_pickle=False, **tensors)

    def _note_stop(self) -> None:
        if self._directory.read_manifest()["status"] != "finished":
            self._directory.set_status("stopped")
        else:
            shutil.rmtree(self.path / "flower", ignore_errors=True)  # the clients' keys and states
