"""The public parameters of a federation."""

from dataclasses import dataclass, field

import numpy as np

from dapfl.arrays import Vector
from dapfl.crypto.packing import CompactCodec, ReferenceModels, Segment, VectorCodec, wide_size
from dapfl.federation.global_model.models import GlobalModel, from_bytes
from dapfl.federation.global_model.server_step import ServerStep, TakeAverage
from dapfl.federation.messages import NO_MODEL

MOST_ROSTER_BYTES = 2**22
"""A roster takes 2 to 4 KB for each client, with keys of 2048 bits."""


@dataclass(frozen=True)
class PublicParameters:
    """What every participant knows before the federation starts."""

    codec: VectorCodec
    segments: tuple[Segment, ...]
    min_cohort: int
    step: ServerStep = field(default_factory=TakeAverage)
    committee: bool = False  # whether a committee decrypts, and so gets to see uploads

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.segments[-1].stop

    @property
    def contribution_rows(self) -> int:
        """The number of plaintexts, and ciphertexts, of a contribution."""
        segments = self.contributed
        return self.codec.plaintext_count(segments[-1].stop, wide_size(segments))

    @property
    def contributed(self) -> tuple[Segment, ...]:
        """The tensors of a contribution: the weights, and what the server step has clients measure.

        A measured number may be of any size, so it is wide.
        """
        measured = (
            Segment(name, place, place + 1, nonnegative=True, wide=True)
            for place, name in enumerate(self.step.measured, self.size)
        )
        return (*self.segments, *measured)

    @property
    def relative(self) -> bool:
        """Whether an aggregate makes a model only together with the model before it."""
        return self.step.relative or isinstance(self.codec, CompactCodec)

    def initial_model(self, name: bytes, weights: Vector) -> GlobalModel:
        """W(0)."""
        return GlobalModel(name, weights, memory=self.step.initial_memory(self.size))

    def unknown_model(self) -> GlobalModel:
        """Stands for W(t) where nothing is relative to it: only its size is looked at."""
        return self.initial_model(NO_MODEL, np.zeros(self.size, np.float32))

    def references(self, model: GlobalModel) -> ReferenceModels:
        """What the codec is told about the model that contributions start from."""
        more = np.zeros(len(self.step.measured), np.float32)  # measured anew, relative to nothing
        current, previous = (
            weights if weights is None or not more.size else np.concatenate([weights, more])
            for weights in (model.weights, model.previous)
        )
        assert current is not None, "a model has weights"
        return ReferenceModels(current, previous, self.contributed)

    @property
    def contents_bytes(self) -> int:
        """The length of `GlobalModel.contents`."""
        return 4 * (self.size + len(self.step.initial_memory(self.size)))

    def read_contents(self, data: bytes) -> tuple[Vector, Vector]:
        """Weights and memory out of `GlobalModel.contents`; ProtocolError if they cannot be."""
        values = from_bytes(data, self.contents_bytes // 4)
        return values[: self.size], values[self.size :]

    def upload_limit(self, row_bytes: int) -> int:
        """More bytes than any honest upload or answer has, whatever the envelope."""
        numbers = (self.contribution_rows + 64) * row_bytes + self.contents_bytes
        return 2 * numbers + numbers // 8 + 2**17  # Paillier's envelope makes 512 bytes of 255

    def delivery_limit(self, row_bytes: int) -> int:
        """More bytes than any honest delivery has: a snapshot, and a few aggregates after it; or, with a
        committee, the uploads of all clients. A roster may come with it."""
        uploads = self.codec.bounds.max_clients if self.committee else 0
        return max(4, uploads) * self.upload_limit(row_bytes) + MOST_ROSTER_BYTES
