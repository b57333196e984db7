"""What clients say about a global model that CS cannot read by itself.

Every client that has derived W(t) commits to its hash in its signed messages. The hash that more than half
of the clients asked name is the model's; a client that names another is mistaken or lying, and is noticed.
"""

from collections import Counter
from dataclasses import dataclass, field

from dapfl.arrays import Vector
from dapfl.federation.transport import ClientId

UNUSABLE = frozenset({"bad-aggregate", "invalid-ciphertext", "wrong-size", "below-min-cohort"})
"""The refusals by which a client says that an aggregate does not decode to a model."""


@dataclass
class ModelAgreement:
    """The commitments to one model, and the contents that came with some of them.

    Nothing is agreed on by fewer than `quorum` clients, nor by half of the `voters` or fewer: those who were
    asked, whether they have answered or not.
    """

    quorum: int
    voters: set[ClientId] = field(default_factory=set)
    commitments: dict[ClientId, bytes] = field(default_factory=dict)
    contents: dict[bytes, tuple[Vector, Vector]] = field(default_factory=dict)  # weights and memory
    refusals: set[ClientId] = field(default_factory=set)
    contradictory: set[ClientId] = field(default_factory=set)

    def vote(self, client: ClientId, commitment: bytes) -> None:
        """Notes what a client commits to. Its first vote counts; a different second one is noted."""
        if self.commitments.setdefault(client, commitment) != commitment:
            self.contradictory.add(client)

    def _enough(self, votes: int) -> bool:
        return votes >= self.quorum and 2 * votes > len(self.voters.union(self.commitments, self.refusals))

    @property
    def agreed(self) -> bytes | None:
        """The hash that more than half of the voters name, if there is one."""
        counts = Counter(self.commitments.values()).most_common(1)
        return counts[0][0] if counts and self._enough(counts[0][1]) else None

    @property
    def dissenters(self) -> list[ClientId]:
        """Who names another hash than the one agreed on, or two hashes."""
        agreed = self.agreed
        if agreed is None:
            return []
        return sorted(self.contradictory.union(c for c, hash_ in self.commitments.items() if hash_ != agreed))

    @property
    def model(self) -> tuple[Vector, Vector] | None:
        """The weights (and memory) with the hash agreed on, if anyone has sent them."""
        agreed = self.agreed
        return None if agreed is None else self.contents.get(agreed)

    @property
    def unusable(self) -> bool:
        """Whether clients have found that the aggregate does not make a model."""
        return self._enough(len(self.refusals))
