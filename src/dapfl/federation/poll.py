"""What clients say about a global model that CS cannot work out for itself.

Every client that has worked out W(t) commits to a hash of it in its signed messages. The hash
that most clients name is the model; whoever names another is wrong or lying, and is noticed.
"""

from collections import Counter
from dataclasses import dataclass, field

from dapfl.federation.models import Vector
from dapfl.federation.transport import ClientId

UNUSABLE = frozenset({"bad-aggregate", "invalid-ciphertext", "wrong-size", "below-min-cohort"})
"""The refusals by which a client says that an aggregate cannot be decoded to a model."""


@dataclass
class Poll:
    """The commitments to one model, and the weights that came with some of them."""

    name: bytes
    quorum: int
    commitments: dict[ClientId, bytes] = field(default_factory=dict)
    weights: dict[bytes, Vector] = field(default_factory=dict)
    refusals: set[ClientId] = field(default_factory=set)
    contradictory: set[ClientId] = field(default_factory=set)

    def vote(self, client: ClientId, commitment: bytes) -> None:
        """Notes what a client has committed to; its first word counts, and a second one is noted."""
        if self.commitments.setdefault(client, commitment) != commitment:
            self.contradictory.add(client)

    @property
    def agreed(self) -> bytes | None:
        """The hash that more clients name than any other, if at least a quorum does."""
        counts = Counter(self.commitments.values()).most_common(2)
        if not counts or counts[0][1] < self.quorum or (len(counts) > 1 and counts[0][1] == counts[1][1]):
            return None
        return counts[0][0]

    @property
    def dissenters(self) -> list[ClientId]:
        """Who names another hash than the one agreed on, or two."""
        agreed = self.agreed
        if agreed is None:
            return []
        return sorted(self.contradictory.union(c for c, hash_ in self.commitments.items() if hash_ != agreed))

    @property
    def model(self) -> Vector | None:
        """The weights with the hash agreed on, if anyone has sent them."""
        agreed = self.agreed
        return None if agreed is None else self.weights.get(agreed)

    @property
    def unusable(self) -> bool:
        """Whether clients have found that the aggregate is not a model."""
        return len(self.refusals) >= self.quorum and len(self.refusals) > len(self.commitments)
