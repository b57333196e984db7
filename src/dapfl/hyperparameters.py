"""The hyper-parameters of local training, as one value that travels whole from a policy to SGD.

A new one is a field of `Hyperparameters`, an axis of `dapfl.config.ActionSpace` (pinned to the value that
changes nothing), its use in `dapfl.learning` and its column in `dapfl.federation.records`. Everything in
between passes them on without naming them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True)
class Hyperparameters:
    """What one client trains with in one round."""

    eta: float
    """The learning rate η."""
    alpha: int
    """The number of local epochs α."""
    batch_size: int

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The name of each.

        >>> Hyperparameters.names()
        ('eta', 'alpha', 'batch_size')
        """
        return tuple(field.name for field in fields(cls))

    @classmethod
    def rounded(cls, values: Mapping[str, float]) -> Self:
        """From a number for each name; what is a count becomes a whole number, at least 1.

        >>> Hyperparameters.rounded({"eta": 0.1, "alpha": 5.7, "batch_size": 0.2})
        Hyperparameters(eta=0.1, alpha=6, batch_size=1)
        """
        chosen: dict[str, Any] = {
            field.name: max(1, round(value)) if field.type is int else float(value)
            for field in fields(cls)
            for value in [values[field.name]]
        }
        return cls(**chosen)

    def plain(self) -> dict[str, Any]:
        """Each value by its name, as a number of Python's own: a policy may return NumPy's.

        >>> import numpy as np
        >>> Hyperparameters(np.float64(0.1), np.int32(6), 32).plain()
        {'eta': 0.1, 'alpha': 6, 'batch_size': 32}
        """
        return {
            field.name: (int if field.type is int else float)(getattr(self, field.name))
            for field in fields(self)
        }
