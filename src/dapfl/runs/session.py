"""One run, from its configuration to its last line: what `dapfl run`, comparisons and notebooks use.

    with start(config, Path("runs/first")) as session:
        for record in session:
            print(record.round, record.accuracy)

However a session ends early, by an error, by Ctrl-C or by a kill, `resume` continues its run.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from dapfl import __version__
from dapfl.arrays import Vector
from dapfl.config import RunConfig, override, parse, relocated
from dapfl.engines.base import Deployed, Engine
from dapfl.engines.registry import ENGINES, EngineSetup
from dapfl.errors import ConfigError, DapflError, NothingLearned, RunDirectoryError, StorageError
from dapfl.federation.assembly import build_federation, check
from dapfl.federation.keys.bundles import bundle_path
from dapfl.federation.keys.run_id import begin_run
from dapfl.federation.records import RoundRecord
from dapfl.federation.round import Federation, progress_in
from dapfl.federation.run_keys import Keys, keys_needed, load_keys, load_server_keys, make_keys, save_keys
from dapfl.federation.server_state.state_file import StateFile
from dapfl.federation.transport import ClientId, LocalTransport, Transport
from dapfl.learning.inputs import without_idle_scaling
from dapfl.learning.runtime import task_runtime
from dapfl.learning.tasks import get_task
from dapfl.runs.description import describe
from dapfl.runs.directory import Checkpoint, Restored, RunDirectory, records_hash
from dapfl.runs.fingerprint import config_hash, differences
from dapfl.runs.logs import open_logs
from dapfl.runs.manifest import Manifest
from dapfl.runs.monitoring.devices import FleetWatch
from dapfl.runs.monitoring.lost_work import why_nothing
from dapfl.runs.results import read_run
from dapfl.runs.settings import Resolved, resolve
from dapfl.system.console import progress
from dapfl.system.files import replacing


def start(
    config: RunConfig, path: Path, *, inline: bool = False, deployed: Deployed | None = None
) -> "Session":
    """A new run in a new directory. `inline` keeps the clients in this process."""
    config = relocated(config, Path.resolve)  # it may be resumed from another folder
    resolved = resolve(config)
    # What cannot work fails here, before anything is written or any key is made.
    ENGINES["inline" if inline else config.engine].require()
    check(config, clients_here=deployed is None)
    directory = RunDirectory.create(path, describe(config, resolved, deployed))
    return Session(directory, config, resolved, None, inline, fresh=True)


def resume(
    path: Path,
    *,
    rounds: int | None = None,
    workers: int | None = None,
    wait: float | None = None,
    inline: bool = False,
    accept_changes: bool = False,
) -> "Session":
    """The run in `path`, continued after its last complete round; to `rounds` rounds, if that is given.

    With `accept_changes` it goes on even if its data, its files or its configuration are not what they were,
    and the manifest says so.
    """
    directory = RunDirectory(path)
    directory.read_manifest()  # if there is none, nothing is locked
    with directory.lock():
        restored = directory.load()
        manifest = directory.read_manifest()
        config = parse(manifest.config)
        _check_extension(path, manifest, restored, rounds)
        notes = list(restored.notes)
        if changed := _changed(manifest, config, restored):
            if not accept_changes:
                raise RunDirectoryError(
                    f"This would not be the same run: {' and '.join(changed)} changed since it began. Undo "
                    "that, start a new run, or go on knowingly with --accept-changes."
                )
            notes.append(f"goes on although {' and '.join(changed)} changed since it began")
        if rounds is not None and rounds != config.rounds:
            notes.append(f"extended from {config.rounds} to {rounds} rounds")
            config = override(config, {"rounds": rounds})
            kept = override(parse(manifest.config), {"rounds": rounds})
            directory.write_manifest(msgspec.structs.replace(manifest, config=msgspec.to_builtins(kept)))
        if manifest.dapfl != __version__:
            notes.append(f"goes on with dapfl {__version__}; it was begun with {manifest.dapfl or 'another'}")
        if notes:
            directory.note(*notes)
    given = {"workers": workers, "wait": wait}
    config = override(config, {name: value for name, value in given.items() if value is not None})
    return Session(directory, config, resolve(config), restored.checkpoint, inline, notes=tuple(notes))


def _check_extension(path: Path, manifest: Manifest, restored: Restored, rounds: int | None) -> None:
    done = restored.checkpoint.rounds if restored.checkpoint else 0
    if rounds is not None and rounds < done:
        raise ConfigError(f"The run in {path} has {done} rounds already: --rounds must be more than that.")
    over = done >= (rounds or manifest.planned_rounds or 0)
    if over and manifest.status in ("finished", "failed"):
        raise RunDirectoryError(
            f"The run in {path} has {manifest.status} after {done} rounds. To extend it, say how many it "
            f"should have in all: dapfl run --resume {path} --rounds {2 * done}."
        )


def _changed(manifest: Manifest, config: RunConfig, restored: Restored) -> list[str]:
    """What is no longer as it was when the run began."""
    changed = differences(manifest.fingerprint, config)
    policy = msgspec.json.encode(resolve(config).policy)  # as JSON, which knows no tuples
    if restored.checkpoint and restored.checkpoint.config not in (b"", config_hash(manifest.config)):
        changed.append("the configuration in manifest.json")
    elif manifest.policy and manifest.policy != msgspec.json.decode(policy):
        changed.append(f"what the setting {config.setting} means to this version of dapfl")
    return changed


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
        notes: tuple[str, ...] = (),
    ) -> None:
        self.notes = notes  # what was repaired, extended or changed before it goes on
        self.config = config
        self.path = directory.path
        self._directory = directory
        self._resolved = resolved
        self._checkpoint = checkpoint
        self._engine_kind = ENGINES["inline" if inline else config.engine]
        self._fresh = fresh
        self._stack = ExitStack()
        self._federation: Federation | None = None
        self._fleet: FleetWatch | None = None
        manifest = directory.read_manifest()
        self._deployed, self.last_client = manifest.deployment, manifest.last_client

    @property
    def rounds_done(self) -> int:
        """How many rounds were complete before this session."""
        return self._checkpoint.rounds if self._checkpoint else 0

    @property
    def can_resume(self) -> bool:
        """Whether `resume` would go on with this run after a stop."""
        return self._directory.begun and self._directory.read_manifest().status in ("running", "stopped")

    def __enter__(self) -> Self:
        try:
            self._open()
        except DapflError:
            if self._fresh:
                self._directory.remove()  # a run that could not begin leaves nothing behind
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
            if self._engine_kind.keeps_client_state:  # the clients are on devices of their own
                self._fleet = FleetWatch(engine, self.path)
            self._federation = self._build_federation(self._fleet or engine, keys)
            self._logs = stack.enter_context(open_logs(self.config, self.path))
            self._stack = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[RoundRecord]:
        assert self._federation is not None, "a session is iterated inside its `with`"
        records = records_hash(b"", self._directory.record_lines())
        manifest = config_hash(self._directory.read_manifest().config)
        for record in self._federation.rounds(self.config.rounds):
            line = record.to_json()
            self._directory.save(
                Checkpoint(
                    rounds=record.round + 1,
                    federation=self._federation.saved_state(),
                    clients=self._engine.states(),
                    lines=[line],
                    records=records,
                    config=manifest,
                )
            )
            records = records_hash(records, [line])
            self._logs.log(record)
            yield record
        self._end()

    def attacks(self) -> tuple[str, ...]:
        """What became of the run's live attackers, one line each."""
        assert self._federation is not None
        return self._federation.attacks()

    def _end(self) -> None:
        """Notes how the run has ended; NothingLearned if no round was ever aggregated."""
        assert self._federation is not None
        run = read_run(self.path)
        if not any(record.participants for record in run.rounds):
            self._directory.set_status("failed")
            raise NothingLearned(
                f"None of the {len(run.rounds)} rounds was aggregated, so there is no trained model. "
                f"{why_nothing(run.manifest, run.rounds)}"
            )
        self._save_model(self._federation.weights)
        self._directory.set_status("finished")

    # Parts -------------------------------------------------------------------------------------

    def _keys(self) -> Keys:
        """The keys of this run: made at its start, and kept in the run directory for `resume`."""
        folder = self._directory.keys_path
        if self.config.crypto.encryption == "none":
            return make_keys(self.config)
        if self._deployed:
            return load_server_keys(self.config, Path(self._deployed.folder))
        if (folder / "complete").exists():
            return load_keys(self.config, folder)
        if self._checkpoint is not None:
            raise RunDirectoryError(
                f"The keys of this run are not in {folder} any more: it cannot go on. Restore the folder "
                "from a backup, or start a new run."
            )
        with progress("Keys", keys_needed(self.config)) as advance:
            keys = make_keys(self.config, advance)
        save_keys(folder, keys)
        (folder / "complete").touch()
        return keys

    def _open_engine(self, keys: Keys) -> Engine:
        @cache  # every worker process needs it
        def primer_of_checkpoint() -> bytes:
            return self._build_federation(LocalTransport({}), keys).primer() if self._checkpoint else b""

        setup = EngineSetup(
            config=self.config,
            policy=self._resolved.policy,
            keys=keys.clients,
            states=self._checkpoint.clients if self._checkpoint else {},
            primer=lambda: self._federation.primer() if self._federation else primer_of_checkpoint(),
            folder=self._engine_folder,
            deployed=self._deployed,
            members=keys.members,
        )
        return self._engine_kind.open(setup)

    @property
    def _engine_folder(self) -> Path:
        return self.path / self._engine_kind.name

    def _build_federation(self, transport: Transport, keys: Keys) -> Federation:
        state = self._checkpoint.federation if self._checkpoint else None
        if state is None and self._state_file is not None:
            state = self._state_file.read()  # clients may have begun the first round
        federation = build_federation(
            self.config,
            self._resolved.selection,
            keys.server,
            transport,
            one_exchange_per_round=self._engine_kind.one_exchange_per_round,
            state_file=self._state_file,
            insiders=keys.insiders,
            run=self._new_run() if state is None else None,
            step=self._resolved.policy.server_step,
            before_round=self._await_clients,
            rosters=keys.rosters,
            roster=None if state is None else progress_in(state).roster,
        )
        if state is not None:
            federation.restore(state)
        return federation

    def _await_clients(self, clients: Sequence[ClientId], least: int) -> None:
        """Where clients come and go, a round begins only when enough of them are there."""
        if self._fleet is not None:
            self._fleet.await_clients(clients, least, self.config.wait)

    def _new_run(self) -> bytes | None:
        """The id of a new run with the keys of a deployment, which may have served other runs."""
        if self._deployed is None or self.config.crypto.encryption == "none":
            return None
        return begin_run(bundle_path(Path(self._deployed.folder), None))

    @property
    def _state_file(self) -> StateFile | None:
        """For clients that keep their own states: they may be ahead of the last checkpoint."""
        return self._directory.state_file if self._engine_kind.keeps_client_state else None

    def _save_model(self, weights: Vector) -> None:
        layout = task_runtime(get_task(self.config.task)).layout
        tensors = {spec.name: weights[spec.start : spec.stop].reshape(spec.shape) for spec in layout.tensors}
        with replacing(self._directory.model_path, mode=0o600) as file:
            np.savez(file, allow_pickle=False, **without_idle_scaling(tensors))

    def _note_stop(self) -> None:
        if self._directory.read_manifest().status == "running":
            with suppress(StorageError):  # a full disk has been reported already
                self._directory.set_status("stopped")
