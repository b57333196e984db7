"""What a hyper-parameter policy is: it sees a `Situation`, makes a `Choice`, learns from the `Outcome`.

One object serves one client. Each round the client calls `choose` with what it sees of the global model
on its own data and of its own resources, trains with what was chosen, and calls `observe` with how that
went. A policy of your own needs only `choose`:

>>> class Halving(HyperparameterPolicy):
...     def choose(self, situation):
...         return decide(Hyperparameters(0.1 / 2**situation.round, 10, 32), situation, capped=True)
>>> seen = Situation(round=1, rounds=5, loss=2.0, accuracy=0.3, f1=0.3,
...                  budget=8.0, epoch_cost=1.0, transfer_cost=0.5, samples=600)
>>> Halving().choose(seen)
Choice(eta=0.05, alpha=7, batch_size=32, planned_alpha=10)
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from dapfl.budget import affordable_epochs, round_cost
from dapfl.config import PolicyConfig
from dapfl.errors import ConfigError, PolicyError
from dapfl.hyperparameters import Hyperparameters
from dapfl.randomness import stream
from dapfl.tuning.action_space import ActionCodec

BARELY = 0.98  # of the loss of guessing: a model above this has learned nothing yet
WORSE = 1.05  # of the loss of guessing: a model above this is worse than that
COSINE_FLOOR = 0.1  # the learning rate that `Cosine` ends at, as a part of the first


@dataclass(frozen=True)
class Situation:
    """What a client sees at the start of round t: W(t) on D_i (Eq. 20) and its resources (Eq. 19)."""

    round: int
    rounds: int
    loss: float
    accuracy: float
    f1: float
    budget: float
    epoch_cost: float
    transfer_cost: float
    samples: int
    reference_loss: float | None = None  # what guessing gives, ln(classes); None where there is no such thing

    guess_loss: float | None = None  # of the best constant guess on D_i: the entropy of its labels
    shared_unit: float | None = (
        None  # the mean unit of η of all clients in the round before; None if not known
    )
    alignment: float | None = None  # the cosine between the last two changes of W; None if not known
    effort: float = 1.0  # how many times the epochs that an agent chooses are worth their while

    @property
    def plateau_loss(self) -> float | None:
        """The loss of a model that has learned only how frequent the classes are; None if not known."""
        return None if self.one_sided else self.guess_loss

    @property
    def one_sided(self) -> bool:
        """Whether the client has few of the classes, or one by far most often.

        The best constant guess on its data is then better than most good models of all classes.
        """
        known = self.guess_loss is not None and self.reference_loss is not None
        return known and self.guess_loss < 0.5 * self.reference_loss  # type: ignore[operator]

    @property
    def guessing(self) -> bool:
        """Whether the model is no better than a constant guess: on its first plateau, or dead.

        Its loss says so, and its F1: where one class is guessed for all samples, F1 is at most 1/classes. A
        model that is clearly worse than a constant guess is neither: steps were too large.
        """
        if self.plateau_loss is None or self.reference_loss is None:
            return False
        one_class = min(0.5, 1.5 * math.exp(-self.reference_loss))
        better, worse = self.loss < BARELY * self.plateau_loss, self.loss > WORSE * self.plateau_loss
        return not better and not worse and not self.f1 > one_class  # a loss that is no number is neither

    def after(self, epochs: int) -> "Situation":
        """What is left when so many epochs of the budget have been used."""
        return replace(self, budget=self.budget - epochs * self.epoch_cost)

    def within(self, share: float) -> "Situation":
        """With a part of the budget only, but enough for one epoch where the whole affords one."""
        least = min(self.budget, self.cost(1))
        return replace(self, budget=max(share * self.budget, least))

    def cost(self, alpha: float) -> float:
        """What α epochs and two transfers of the model cost (Eq. 19)."""
        return round_cost(alpha, self.epoch_cost, self.transfer_cost)

    @property
    def affordable(self) -> int:
        """The most epochs that fit the budget (Eq. 19); 0 if not even one does."""
        return affordable_epochs(self.budget, self.epoch_cost, self.transfer_cost)


@dataclass(frozen=True)
class Choice(Hyperparameters):
    """What a client does in round t. `alpha` is executed; `planned_alpha` is what it was before the cap."""

    planned_alpha: int = field(kw_only=True)


@dataclass(frozen=True)
class Outcome:
    """How local training went: finished within the budget or not, and the loss of ŵ_i(t) on D_i."""

    completed: bool
    loss_after: float | None = None
    moved: float | None = None  # ‖ŵ_i(t) − W(t)‖ / ‖W(t)‖


@dataclass(frozen=True)
class AgentRecord:
    """What a learning policy can tell about its last choice; None or empty where there is nothing to tell."""

    state: tuple[float, ...] | None = None  # s_i(t), as the networks see it
    action: tuple[float, ...] | None = None  # μ(s_i(t)) in [-1, 1], before noise and cap
    reward: float | None = None  # r_i(t-1)
    reward_parts: dict[str, float] = field(default_factory=dict)
    critic_loss: float | None = None  # Eq. 25, mean over the round's steps
    actor_loss: float | None = None  # -J of Eq. 27, mean over the round's steps
    q: float | None = None  # Q(s_i(t), a_i(t)) of the chosen action
    lambda_: float | None = None
    unit: float | None = None  # the learning rate that trials gave, of which η is a multiple


def decide(plan: Hyperparameters, situation: Situation, capped: bool) -> Choice:
    """A plan made into a choice: under the cap, α is at most what the budget affords (and at least 1)."""
    alpha = max(1, min(plan.alpha, situation.affordable)) if capped else plan.alpha
    executed = {name: getattr(plan, name) for name in Hyperparameters.names()} | {"alpha": alpha}
    return Choice(**executed, planned_alpha=plan.alpha)


class HyperparameterPolicy(ABC):
    """Chooses one client's hyper-parameters each round. Only `choose` must be written.

    Whatever is random should be drawn from `dapfl.randomness.stream(self.seed, ..., self.client, round)`.
    """

    needs_local_loss = False  # True: `observe` wants `Outcome.loss_after`, which costs an evaluation
    tries_rates = False  # True: `prepare` may train for trials before the choice

    def __init__(self, config: PolicyConfig | None = None, seed: int = 0, client: int = 1) -> None:
        self.config = config or PolicyConfig()
        self.seed, self.client = seed, client

    @property
    def batch_size(self) -> int:
        """What trials train with: the pinned batch size, or the middle of its range."""
        axis = self.config.space.batch_size
        return round(axis.pinned if axis.pinned is not None else math.sqrt(axis.low * axis.high))

    def __init_subclass__(cls) -> None:
        own = vars(cls)
        if "restore" in own and "saved_state" not in own:  # a resumed run would silently forget
            raise PolicyError(f"{cls.__name__} has `restore` but no `saved_state`: write both, or neither.")

    @abstractmethod
    def choose(self, situation: Situation) -> Choice:
        """What to train with in this round."""

    def prepare(self, situation: Situation, trial: Callable[[float], float]) -> int:
        """Before the choice, a policy may try rates: `trial(η)` trains an epoch from W(t) and gives the loss.

        Returns the epochs that this took, which count against the budget.
        """
        del situation, trial
        return 0

    def retry(self, situation: Situation, choice: Choice, outcome: Outcome) -> Choice | None:
        """Another choice for this round instead of one that went badly, or None to let it stand.

        `situation` says what is left of the budget.
        """
        del situation, choice, outcome
        return None

    def rate(self, choice: Choice) -> float:
        """What other clients may know of the learning rate: η, or the unit that it is a multiple of."""
        return choice.eta

    def observe(self, outcome: Outcome) -> None:
        """How the training that `choose` decided went. Nothing is learned unless a policy says so."""
        del outcome

    @property
    def record(self) -> AgentRecord:
        """What there is to tell about the last choice."""
        return AgentRecord()

    def saved_state(self) -> bytes:
        """Everything needed to go on later exactly as now; empty for a policy without memory."""
        return b""

    def restore(self, state: bytes) -> None:
        """Go on from what `saved_state` gave."""
        if state:
            raise PolicyError(
                f"{type(self).__name__} keeps no state, but {len(state)} bytes of it were to be restored: "
                "the run was made with another policy."
            )


class Fixed(HyperparameterPolicy):
    """The same hyper-parameters every round: the pinned values of its action space."""

    def __init__(self, config: PolicyConfig, seed: int = 0, client: int = 1) -> None:
        super().__init__(config, seed, client)
        codec = ActionCodec(config.space)
        if codec.free:
            raise ConfigError(
                f"A {config.kind} policy chooses nothing, but {' and '.join(codec.free)} has no fixed value: "
                "give --eta and --alpha, or pin the axis."
            )
        self.plan = codec.decode(())

    def choose(self, situation: Situation) -> Choice:
        """The pinned values, capped if the policy is."""
        return decide(self.plan, situation, self.config.capped)


class Cosine(Fixed):
    """Pinned values, but η falls along half a cosine to a tenth over the planned rounds."""

    def choose(self, situation: Situation) -> Choice:
        """η(t) = η·(0.1 + 0.9·(1 + cos(π·t/T))/2)."""
        progress = min(1.0, situation.round / situation.rounds)
        share = COSINE_FLOOR + (1 - COSINE_FLOOR) * (1 + math.cos(math.pi * progress)) / 2
        plan = replace(self.plan, eta=self.plan.eta * share)
        return decide(plan, situation, self.config.capped)


class Random(HyperparameterPolicy):
    """Every free axis uniform on its scale, every round: the least that an agent must beat."""

    def __init__(self, config: PolicyConfig, seed: int = 0, client: int = 1) -> None:
        super().__init__(config, seed, client)
        self.codec = ActionCodec(config.space)

    def choose(self, situation: Situation) -> Choice:
        """A draw that depends on seed, client and round only."""
        rng = stream(self.seed, "random-policy", self.client, situation.round)
        action = rng.uniform(-1.0, 1.0, self.codec.size).astype(np.float32)
        return decide(self.codec.decode(action), situation, self.config.capped)
