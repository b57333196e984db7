"""Products of contributions that CS cannot read (Eq. 39)."""

from dataclasses import dataclass, field

from dapfl.arrays import Rows
from dapfl.federation.protection.base import ServerSuite
from dapfl.federation.transport import ClientId

# Contributions are multiplied in groups, so that memory does not grow with the cohort.
_MOST, _MOST_BYTES = 16, 2**26


@dataclass
class PartialSum:
    """The product of contributions that start from the same model."""

    suite: ServerSuite
    senders: list[ClientId] = field(default_factory=list)
    _contributions: list[Rows] = field(default_factory=list)
    _counts: list[Rows] = field(default_factory=list)

    def add(self, sender: ClientId, contribution: Rows, count: Rows) -> None:
        """One more legitimate contribution."""
        self.senders.append(sender)
        self._contributions.append(contribution)
        self._counts.append(count)
        held = sum(batch.nbytes for batch in self._contributions)
        if len(self._contributions) >= _MOST or held > _MOST_BYTES:
            self._contributions, self._counts = [self.contributions()], [self.counts()]

    def contributions(self) -> Rows:
        """∏ ε₁(|D_i|·ŵ_i) over all senders."""
        return self.suite.add_contributions(self._contributions)

    def counts(self) -> Rows:
        """∏ ε₁(|D_i|) over all senders."""
        return self.suite.add_counts(self._counts)


@dataclass(frozen=True)
class Count:
    """A client's ε₁(|D_i|), and the hash of the proof that it came with."""

    digest: bytes
    ciphertext: bytes
    proof: bytes = b""  # kept only where it has to be shown to a committee
