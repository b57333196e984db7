"""The learning-rate finder alone, without an agent: the rate that trials gave, and fixed epochs."""

from dataclasses import replace

import msgspec

from dapfl.config import PolicyConfig
from dapfl.errors import PolicyError
from dapfl.tuning.finder import RateUnit, Trial
from dapfl.tuning.policy import AgentRecord, Choice, Fixed, Outcome, Situation, decide

BACKOFF = 0.5  # what the rate shrinks by when training overshot


class Probe(Fixed):
    """η as the finder gives it, times the pinned η of its action space (1); α pinned."""

    needs_local_loss = True
    tries_rates = True

    def __init__(self, config: PolicyConfig, seed: int = 0, client: int = 1) -> None:
        super().__init__(config, seed, client)
        self.unit = RateUnit()
        self._situation: Situation | None = None

    def prepare(self, situation: Situation, trial: Trial) -> int:
        """Look for the rate where it is not known, or training has stalled."""
        return self.unit.prepare(situation, trial)

    def choose(self, situation: Situation) -> Choice:
        """The rate found."""
        self._situation = situation
        return decide(replace(self.plan, eta=self.plan.eta * self.unit.unit), situation, self.config.capped)

    def observe(self, outcome: Outcome) -> None:
        """A rate that overshot shrinks."""
        if self._situation is None:
            raise PolicyError("A policy observes the outcome of a choice, and none has been made yet.")
        self.unit.observe(self._situation, outcome, BACKOFF)

    @property
    def record(self) -> AgentRecord:
        """The rate found."""
        return AgentRecord(unit=self.unit.unit)

    def saved_state(self) -> bytes:
        """The rate, and what is known about it."""
        return msgspec.msgpack.encode(self.unit)

    def restore(self, state: bytes) -> None:
        """Go on from what `saved_state` gave."""
        try:
            self.unit = msgspec.msgpack.decode(state, type=RateUnit)
        except msgspec.MsgspecError as error:
            raise PolicyError(f"This is not the state of a learning-rate finder: {error}.") from None
