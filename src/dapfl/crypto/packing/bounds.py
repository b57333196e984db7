"""What participants have declared about their contributions, and the error of a sum beyond it."""

from dataclasses import dataclass

from dapfl.errors import EncodingError


@dataclass(frozen=True)
class Bounds:
    """What every participant has declared never to exceed; all headroom follows from it."""

    max_samples: int
    max_clients: int

    def __post_init__(self) -> None:
        if self.max_samples < 1 or self.max_clients < 1:
            raise EncodingError(
                f"Bounds of {self.max_samples} samples and {self.max_clients} clients leave nothing to add: "
                "both must be at least 1."
            )


def altered_sum(contributors: int) -> EncodingError:
    """The error of a sum that holds what its contributors cannot have sent."""
    return EncodingError(
        f"The sum holds numbers that {contributors} contributions of this codec cannot add up to: "
        "it was altered, or belongs to another round."
    )
