"""Where the seconds of a round go."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds spent in each named phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time inside the block towards this phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def lap(self) -> dict[str, float]:
        """The seconds since the last lap; every phase starts from zero again."""
        seconds, self.seconds = self.seconds, {}
        return seconds
