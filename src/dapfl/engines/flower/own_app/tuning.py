"""How a node tunes the train function of a Flower app: which values it may choose, and by what."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dapfl.config import PolicyConfig
from dapfl.errors import ConfigError
from dapfl.hyperparameters import Hyperparameters
from dapfl.resources import Resources
from dapfl.tuning.build import build_policy
from dapfl.tuning.policy import AgentRecord, Choice, HyperparameterPolicy, Outcome, Situation, decide

RATE_NAMES = ("lr", "learning-rate", "learning_rate")
EPOCH_NAMES = ("local-epochs", "local_epochs", "epochs", "num-epochs", "num_epochs")
_BATCH = 32  # where an app decides the batch size by itself, no policy does


@dataclass(frozen=True)
class Tunable:
    """A value of the app's own configuration that a node may change: its name, and what it is without us."""

    name: str
    value: float


@dataclass(frozen=True)
class Tunables:
    """What there is to tune in an app: its learning rate and its epochs, where its configuration has them."""

    rate: Tunable | None
    epochs: Tunable | None

    @classmethod
    def find(
        cls, config: Mapping[str, Any], run_config: Mapping[str, Any], rate: str | None, epochs: str | None
    ) -> "Tunables":
        """Looks in the strategy's train config, then in the run config, for the names given or usual ones."""
        return cls(
            _find(config, run_config, (rate,) if rate else RATE_NAMES, bool(rate)),
            _find(config, run_config, (epochs,) if epochs else EPOCH_NAMES, bool(epochs)),
        )

    @property
    def usual(self) -> Hyperparameters:
        """What the app trains with by itself."""
        epochs = max(1, int(self.epochs.value)) if self.epochs else 1
        return Hyperparameters(self.rate.value if self.rate else 0.0, epochs, _BATCH)

    def chosen(self, choice: Hyperparameters) -> dict[str, float | int]:
        """What to put into the app's configuration."""
        values: dict[str, float | int] = {}
        if self.rate:
            values[self.rate.name] = float(choice.eta)
        if self.epochs:
            values[self.epochs.name] = int(choice.alpha)
        return values


def _find(
    config: Mapping[str, Any], run_config: Mapping[str, Any], names: tuple[str, ...], asked: bool
) -> Tunable | None:
    for place in (config, run_config):
        for name in names:
            value = place.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                return Tunable(name, float(value))
    if asked:
        raise ConfigError(
            f"There is no positive number '{names[0]}' to tune, neither in the strategy's train_config nor "
            "in the app's run config (pyproject.toml)."
        )
    return None


class Usual(HyperparameterPolicy):
    """Nothing is tuned: the app trains with its own values."""

    def __init__(self, tunables: Tunables) -> None:
        super().__init__()
        self._usual = tunables.usual

    def choose(self, situation: Situation) -> Choice:
        """The app's own values, whatever they cost."""
        return decide(self._usual, situation, capped=False)


class Tuned(HyperparameterPolicy):
    """An agent, where the app reports its loss and its learning rate can be chosen.

    Otherwise only time is known. Then the app keeps its own values, but trains no more epochs than the
    deadline affords.
    """

    def __init__(self, config: PolicyConfig, tunables: Tunables, seed: int, client: int) -> None:
        super().__init__(config, seed, client)
        self._usual = tunables.usual
        self._agent = build_policy(config, seed, client) if tunables.rate and tunables.epochs else None
        self.needs_local_loss = self._agent is not None and self._agent.needs_local_loss
        self._asked = False
        self.by_time_alone = self._agent is None

    def choose(self, situation: Situation) -> Choice:
        """By the agent if there is a loss to learn from, else by time alone."""
        self._asked = self._agent is not None and situation.loss == situation.loss
        self.by_time_alone = not self._asked
        if self._agent is not None and self._asked:
            return self._agent.choose(situation)
        return decide(self._usual, situation, capped=True)

    def observe(self, outcome: Outcome) -> None:
        """For the agent, if it has chosen."""
        if self._agent is not None and self._asked:
            self._agent.observe(outcome)

    @property
    def record(self) -> AgentRecord:
        """The agent's."""
        return self._agent.record if self._agent is not None else AgentRecord()

    def saved_state(self) -> bytes:
        """The agent's."""
        return self._agent.saved_state() if self._agent is not None else b""

    def restore(self, state: bytes) -> None:
        """The agent goes on."""
        if self._agent is not None and state:
            self._agent.restore(state)


class Unlimited:
    """Resources of a node that does not tune: as much time as the strategy waits for it."""

    def at(self, round: int) -> Resources:  # noqa: A002
        """Always enough."""
        return Resources(budget=float("inf"), epoch_cost=0.0, transfer_cost=0.0)
