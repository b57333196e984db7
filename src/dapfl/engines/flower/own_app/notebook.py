"""What a node keeps from message to message."""

from pathlib import Path

import msgspec
from flwr.app import ConfigRecord, Context

from dapfl.engines.flower.apps.persistent_client import FileStateStore, StateStore
from dapfl.engines.flower.own_app.learner import Memory
from dapfl.errors import ProtocolError
from dapfl.system.files import Loaded


class ContextStateStore:
    """A `StateStore` in Flower's `Context.state`, which lasts as long as the node."""

    def __init__(self, context: Context, name: str = "dapfl-state") -> None:
        self._records = context.state
        self._name = name

    def load(self) -> Loaded | None:
        """The last saved state, if any."""
        record = self._records.config_records.get(self._name)
        state = record["state"] if record is not None else None
        return Loaded(state) if isinstance(state, bytes) else None

    def save(self, state: bytes) -> None:
        """Replaces the saved state."""
        self._records[self._name] = ConfigRecord({"state": state})


class _Saved(msgspec.Struct, frozen=True):
    """The saved state of a client, and of which federation."""

    federation: bytes
    started: float
    state: bytes


class Notebook:
    """What a node keeps from message to message: in the folder `state-dir` of its node config, or, without
    one, in Flower's `Context.state`, which lasts as long as its SuperNode."""

    def __init__(self, context: Context) -> None:
        folder = context.node_config.get("state-dir")
        self._client: StateStore
        self._memory: StateStore
        if folder:
            Path(str(folder)).mkdir(parents=True, exist_ok=True, mode=0o700)
            self._client = FileStateStore(Path(str(folder)))
            self._memory = FileStateStore(Path(str(folder)), "app.state")
        else:
            self._client = ContextStateStore(context)
            self._memory = ContextStateStore(context, "dapfl-app")

    def memory(self) -> Memory:
        """What is known of the app."""
        saved = self._memory.load()
        return msgspec.msgpack.decode(saved.content, type=Memory) if saved else Memory()

    def write_memory(self, memory: Memory) -> None:
        """Keeps what is known of the app."""
        self._memory.save(msgspec.msgpack.encode(memory))

    def states_of(self, federation: bytes, started: float) -> StateStore:
        """The saved states of one federation; one that began before the last is refused, as a replay."""
        return _OneFederation(self._client, federation, started)


class _OneFederation:
    """A `StateStore` for one federation inside one for all."""

    def __init__(self, store: StateStore, federation: bytes, started: float) -> None:
        self._store, self._federation, self._started = store, federation, started

    def load(self) -> Loaded | None:
        """The state of this federation, if it has one."""
        loaded = self._store.load()
        if loaded is None:
            return None
        saved = msgspec.msgpack.decode(loaded.content, type=_Saved)
        if saved.federation == self._federation:
            return Loaded(saved.state, loaded.fault)
        if saved.started >= self._started:
            raise ProtocolError("old-federation", "this federation began before the last one of this node")
        return None

    def save(self, state: bytes) -> None:
        """Replaces the saved state."""
        self._store.save(msgspec.msgpack.encode(_Saved(self._federation, self._started, state)))
