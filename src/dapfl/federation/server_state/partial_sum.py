"""Products of contributions that CS cannot read (Eq. 39)."""

from dataclasses import dataclass, field

from dapfl.arrays import Rows
from dapfl.federation.protection.base import ServerSuite
from dapfl.federation.transport import ClientId

# Contributions are multiplied in groups, so that memory does not grow with the cohort; and so many bytes of
# each at a time, so that the product is made in place.
_MOST, _MOST_BYTES = 16, 2**25
_BYTES_AT_ONCE = 2**21


@dataclass
class PartialSum:
    """The product of contributions that start from the same model."""

    suite: ServerSuite
    senders: list[ClientId] = field(default_factory=list)
    _product: Rows | None = None  # of the contributions so far, except for those below
    _contributions: list[Rows] = field(default_factory=list)
    _counts: list[Rows] = field(default_factory=list)

    def add(self, sender: ClientId, contribution: Rows, count: Rows) -> None:
        """One more legitimate contribution."""
        self.senders.append(sender)
        self._contributions.append(contribution)
        self._counts.append(count)
        held = sum(batch.nbytes for batch in self._contributions)
        if len(self._contributions) >= _MOST or held > _MOST_BYTES:
            self.contributions()
            self._counts = [self.counts()]

    def contributions(self) -> Rows:
        """∏ ε₁(|D_i|·ŵ_i) over all senders."""
        if self._product is None:
            self._product = self._contributions.pop(0).copy()
        product, others = self._product, self._contributions
        step = max(1, _BYTES_AT_ONCE // product.shape[1])
        for start in range(0, len(product) if others else 0, step):
            rows = slice(start, start + step)
            product[rows] = self.suite.add_contributions([product[rows], *(other[rows] for other in others)])
        self._contributions = []
        return product

    def counts(self) -> Rows:
        """∏ ε₁(|D_i|) over all senders."""
        return self.suite.add_counts(self._counts)


@dataclass(frozen=True)
class Count:
    """A client's ε₁(|D_i|), and the hash of the proof that it came with."""

    digest: bytes
    ciphertext: bytes
    proof: bytes = b""  # kept only where it has to be shown to a committee
