"""How the current model came about, as far as CS can tell, and what a client needs to derive it.

CS knows a model by its head, the signed body that makes it, and holds the weights of only those models
that it has come to know. Where nothing is relative (the codec `exact`), the head alone makes the model.
Otherwise an aggregate says only what changed. A client that missed a round then gets a snapshot (the last
model that CS knows, together with the one before) and every aggregate since.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from dapfl.arrays import Vector
from dapfl.federation.global_model.models import GlobalModel, from_bytes, to_bytes
from dapfl.federation.messages import NO_MODEL, Signed


@dataclass(frozen=True)
class Head:
    """The signed body that makes a model: its name, and the name of the model it builds on."""

    name: bytes
    parent: bytes
    signed: Signed


@dataclass
class ModelHistory:
    """The head, what leads to it, and the last model whose weights are known."""

    relative: bool
    head: Head
    latest: GlobalModel
    before: Head = field(init=False)  # where to go back to if clients find the head unusable
    snapshot: GlobalModel | None = None
    chain: list[Head] = field(init=False)  # from the snapshot to the head
    _sealed: tuple[bytes, Signed] | None = None

    def __post_init__(self) -> None:
        self.before, self.chain = self.head, [self.head]

    @property
    def is_known(self) -> bool:
        """Whether CS knows the weights of the current model."""
        return self.latest.name == self.head.name

    def advance(self, head: Head) -> None:
        """A new aggregate makes a new model, whose weights are not known yet."""
        self.before, self.head = self.head, head
        self.chain = [*self.chain, head] if self.relative else [head]

    def withdraw(self) -> bool:
        """Goes back to the model before the head, once."""
        if self.head is self.before:
            return False
        self.chain = [head for head in self.chain if head is not self.head]
        self.head = self.before
        return True

    def rebase(self) -> None:
        """Clients can decrypt earlier aggregates no more: from now on they are sent the current model itself,
        which CS must know. (W(0) is no secret, and stays as it was signed.)"""
        assert self.is_known, "only a model that CS knows can be sealed anew"
        if self.head.parent != NO_MODEL:
            self.snapshot, self.chain = self.latest, []
        self.before, self._sealed = self.head, None

    def learn(self, weights: Vector, memory: Vector) -> None:
        """CS has come to know the current model."""
        previous = self.latest.weights if self.latest.name == self.head.parent else None
        self.latest = GlobalModel(self.head.name, weights, previous, memory)
        if self.relative and previous is not None:
            self.snapshot, self.chain = self.latest, []

    def parts_for(self, known: bytes | None, seal: Callable[[GlobalModel], Signed]) -> list[Signed]:
        """What a client needs that has the model called `known`: the head, or everything that leads to it."""
        rebased = self.snapshot is not None and self.snapshot.name == self.head.name
        if known in (self.head.name, self.head.parent) or not (self.relative or rebased):
            return [self.head.signed]
        steps = [head.signed for head in self.chain]
        if self.snapshot is None:
            return steps
        if self._sealed is None or self._sealed[0] != self.snapshot.name:
            self._sealed = self.snapshot.name, seal(self.snapshot)
        return [self._sealed[1], *steps]

    def saved_state(self) -> "SavedHistory":
        """What `restore` goes on from."""
        snapshot = None if self.snapshot is None else _SavedModel.of(self.snapshot)
        return SavedHistory(self.head, self.before, self.chain, _SavedModel.of(self.latest), snapshot)

    def restore(self, saved: "SavedHistory", size: int) -> None:
        """Goes on from a saved state."""
        self.head, self.chain = saved.head, saved.chain
        self.before = self.head if saved.before == saved.head else saved.before
        self.latest = saved.latest.model(size)
        self.snapshot = None if saved.snapshot is None else saved.snapshot.model(size)
        self._sealed = None


class _SavedModel(msgspec.Struct, frozen=True):
    """A global model in the saved state of CS."""

    name: bytes
    weights: bytes
    previous: bytes | None
    memory: bytes = b""

    @classmethod
    def of(cls, model: GlobalModel) -> "_SavedModel":
        previous = None if model.previous is None else to_bytes(model.previous)
        return cls(model.name, to_bytes(model.weights), previous, to_bytes(model.memory))

    def model(self, size: int) -> GlobalModel:
        previous = None if self.previous is None else from_bytes(self.previous, size)
        memory = from_bytes(self.memory, len(self.memory) // 4)
        return GlobalModel(self.name, from_bytes(self.weights, size), previous, memory)


class SavedHistory(msgspec.Struct, frozen=True):
    """The history in the saved state of CS."""

    head: Head
    before: Head
    chain: list[Head]
    latest: _SavedModel
    snapshot: _SavedModel | None
