"""Who takes part in a round: everyone, a random few, or (the rival DDPG-client) whom an agent of CS selects.

After Zhang et al., "Deep Reinforcement Learning Assisted Federated Learning Algorithm for Data
Management of IIoT" (arXiv 2202.03575): a DDPG on the server selects the clients with accurate models and
low training cost. What is public does not fix its networks, its scales or how many it selects, so this
is a reconstruction: one actor scores every client, the better half is selected, and the agent is rewarded
for the rise of the mean accuracy and for selecting clients that are accurate, cheap and finish.

**What it sees.** Only what clients report inside their sealed uploads (accuracy of the global model on
their own data, cost of their round) and whether a contribution arrived. It never sees a model, which is
encrypted. But those reports are more than the paper's server learns in any other setting: a federation
that keeps them to itself (`share_reports = false`) cannot use this one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np

from dapfl.arrays import Floats
from dapfl.config import AgentConfig
from dapfl.errors import PolicyError
from dapfl.randomness import stream
from dapfl.tuning.buffer import LIMITS, Transitions
from dapfl.tuning.ddpg import ActorCritic

Selection = Literal["all", "ddpg-client"]
"""Who takes part: every client (or a random `per_round` of them), or those that an agent of CS selects."""

SELECTION_AGENT = AgentConfig(
    hidden=(64, 64),
    actor_rate=1e-3,
    critic_rate=1e-3,
    gamma=0.9,
    beta=0.01,
    batch=64,
    steps=4,
    buffer=10_000,
    noise=0.3,
    noise_decay=0.98,
    noise_floor=0.05,
    twin=False,
    lambda_rate=0.0,
)
SHARE = 0.5  # of the clients, selected each round
FEATURES = 5
GAIN_WEIGHT, ACCURACY_WEIGHT, COST_WEIGHT, LOST = 10.0, 5.0, 0.5, -1.0


@dataclass(frozen=True)
class SelectionReport:
    """What the server learned in one round of one client that it had selected."""

    client: int
    completed: bool  # its contribution is in the aggregate
    accuracy: float | None = None  # of the round's global model on the client's data
    cost: float | None = None  # of the client's round, Eq. 19


class ClientSelector(ABC):
    """Chooses who takes part in a round, and learns from what they report."""

    @abstractmethod
    def select(self, round_: int, clients: Sequence[int]) -> frozenset[int]:
        """Those of the clients that take part."""

    def observe(self, reports: Sequence[SelectionReport]) -> None:
        """What came back from those that were selected."""
        del reports

    def saved_state(self) -> bytes:
        """Everything needed to go on later exactly as now."""
        return b""

    def restore(self, state: bytes) -> None:
        """Go on from what `saved_state` gave."""
        if state:
            raise PolicyError(
                "This run selects every client, but the saved one did not: the settings differ."
            )


class EveryClient(ClientSelector):
    """All take part, always: every setting but one."""

    def select(self, round_: int, clients: Sequence[int]) -> frozenset[int]:
        """All of them."""
        del round_
        return frozenset(clients)


class RandomClients(ClientSelector):
    """So many of them, drawn anew each round: all that a round depends on is the seed and its number."""

    def __init__(self, seed: int, count: int) -> None:
        self.seed, self.count = seed, count

    def select(self, round_: int, clients: Sequence[int]) -> frozenset[int]:
        """A random choice."""
        drawn = stream(self.seed, "selection", round_, "random").permutation(len(clients))
        return frozenset(clients[place] for place in drawn[: self.count])


@dataclass(frozen=True)
class _Known:
    """What the server remembers of a client."""

    accuracy: float | None = None
    cost: float | None = None
    completion: float = 1.0  # running share of its selections that finished
    selected: int = -1  # the round it was last selected in


class _Round(msgspec.Struct, frozen=True):
    """One round's states and selections, waiting for their rewards."""

    number: int
    clients: list[int]
    states: bytes
    actions: list[float]  # 1 selected, -1 not
    own: list[float] | None = None  # each client's own part of the reward, once its report is in
    accuracy: float | None = None  # mean over the reports


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    agent: bytes
    known: dict[int, _Known]
    current: _Round | None
    previous: _Round | None


class DDPGSelector(ClientSelector):
    """The better half by the actor's score, or so many as asked for.

    In the first round, when nothing is known, it is everyone, or so many at random.
    """

    def __init__(
        self,
        seed: int,
        minimum: int = 1,
        config: AgentConfig = SELECTION_AGENT,
        *,
        per_round: int | None = None,
    ) -> None:
        self.seed, self.minimum, self.config, self.per_round = seed, minimum, config, per_round
        self.agent = ActorCritic(config, FEATURES, 1, stream(seed, "selection"))
        self.known: dict[int, _Known] = {}
        self._current: _Round | None = None
        self._previous: _Round | None = None

    def select(self, round_: int, clients: Sequence[int]) -> frozenset[int]:
        """Score every client and take the best; every draw depends on the seed and the round."""
        states = self._features(round_, clients)
        if not self.known:
            chosen = RandomClients(self.seed, self.per_round or len(clients)).select(round_, clients)
        else:
            rng = stream(self.seed, "selection", round_, "explore")
            noise = max(self.config.noise_floor, self.config.noise * self.config.noise_decay**round_)
            scores = self.agent.act(states)[:, 0] + noise * rng.standard_normal(len(clients))
            count = self.per_round or max(self.minimum, math.ceil(SHARE * len(clients)))
            chosen = frozenset(clients[place] for place in np.argsort(-scores, kind="stable")[:count])
        actions = [1.0 if client in chosen else -1.0 for client in clients]
        self._current = _Round(round_, list(clients), states.tobytes(), actions)
        return chosen

    def observe(self, reports: Sequence[SelectionReport]) -> None:
        """Remember the reports; the accuracy they show rewards the selection of the round before."""
        now = self._current
        if now is None:
            raise PolicyError("A selector observes the reports of a selection, and none has been made yet.")
        heard = {report.client: _bounded(report) for report in reports}
        accuracies = [report.accuracy for report in heard.values() if report.accuracy is not None]
        mean = float(np.mean(accuracies)) if accuracies else None
        for client, action in zip(now.clients, now.actions, strict=True):
            if action > 0:  # a selected client that says nothing did not finish
                heard.setdefault(client, SelectionReport(client, completed=False))
        for report in heard.values():
            self._remember(report, now.number)
        own = [self._own_reward(heard.get(client), mean) for client in now.clients]
        now = msgspec.structs.replace(now, own=own, accuracy=mean)
        if self._previous is not None and self._previous.clients == now.clients:
            self._learn(self._previous, now)
        self._previous, self._current = now, None

    def _learn(self, before: _Round, now: _Round) -> None:
        gain = 0.0
        if before.accuracy is not None and now.accuracy is not None:
            gain = GAIN_WEIGHT * (now.accuracy - before.accuracy)
        self.agent.store(
            Transitions(
                _states(before),
                np.array(before.actions, np.float32)[:, None],
                np.array(before.own, np.float32) + np.float32(gain),
                _states(now),
                np.zeros((len(now.clients), LIMITS), np.float32),
            )
        )
        self.agent.learn(stream(self.seed, "selection", now.number, "learn"))

    def _own_reward(self, report: SelectionReport | None, mean_accuracy: float | None) -> float:
        """For a selected client: accurate is good, dear is bad, not finished is worst; else nothing."""
        if report is None:
            return 0.0
        if not report.completed:
            return LOST
        reward = 0.0
        if report.accuracy is not None and mean_accuracy is not None:
            reward += ACCURACY_WEIGHT * (report.accuracy - mean_accuracy)
        return reward - COST_WEIGHT * self._relative_cost(report.cost)

    def _remember(self, report: SelectionReport, round_: int) -> None:
        last = self.known.get(report.client, _Known())
        self.known[report.client] = replace(
            last,
            accuracy=last.accuracy if report.accuracy is None else report.accuracy,
            cost=last.cost if report.cost is None else report.cost,
            completion=0.75 * last.completion + 0.25 * report.completed,
            selected=round_,
        )

    def _relative_cost(self, cost: float | None) -> float:
        """A cost against the median of all known ones, which one liar cannot move far; bounded to ±2."""
        costs = [each.cost for each in self.known.values() if each.cost is not None]
        if cost is None or not costs:
            return 0.0
        return min(max(cost / max(float(np.median(costs)), 1e-9) - 1.0, -2.0), 2.0)

    def _features(self, round_: int, clients: Sequence[int]) -> Floats:
        """Of each client: accuracy and cost against the others, completion, rounds unselected, progress."""
        accuracies = [each.accuracy for each in self.known.values() if each.accuracy is not None]
        mean = float(np.mean(accuracies)) if accuracies else 0.0
        rows = []
        for client in clients:
            known = self.known.get(client, _Known())
            better = 0.0 if known.accuracy is None else ACCURACY_WEIGHT * (known.accuracy - mean)
            waiting = min((round_ - known.selected) / 10, 2.0)
            rows.append(
                [better, self._relative_cost(known.cost), known.completion, waiting, min(round_ / 50, 1.5)]
            )
        return np.array(rows, np.float32).reshape(-1, FEATURES)

    def saved_state(self) -> bytes:
        """The agent, what it knows of the clients, and the rounds still without their rewards."""
        saved = _Saved(self.agent.saved_state(), self.known, self._current, self._previous)
        return msgspec.msgpack.encode(saved)

    def restore(self, state: bytes) -> None:
        """Go on bit for bit from what `saved_state` gave a selector that was made with the same arguments."""
        try:
            saved = msgspec.msgpack.decode(state, type=_Saved)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PolicyError(f"This is not the state of a client selector: {error}.") from None
        self.agent.restore(saved.agent)
        self.known, self._current, self._previous = saved.known, saved.current, saved.previous


def build_selector(
    selection: Selection, seed: int, minimum: int, per_round: int | None = None
) -> ClientSelector:
    """The selector of a setting; `minimum` is the smallest cohort that gives an aggregate."""
    if selection == "ddpg-client":
        return DDPGSelector(seed, minimum, per_round=per_round)
    return EveryClient() if per_round is None else RandomClients(seed, per_round)


def _states(round_: _Round) -> Floats:
    return np.frombuffer(round_.states, np.float32).reshape(-1, FEATURES)


def _bounded(report: SelectionReport) -> SelectionReport:
    """The report with finite, bounded numbers; a value that is not a number counts as not given."""
    accuracy, cost = report.accuracy, report.cost
    return replace(
        report,
        accuracy=min(max(accuracy, 0.0), 1.0) if accuracy is not None and math.isfinite(accuracy) else None,
        cost=max(cost, 0.0) if cost is not None and math.isfinite(cost) else None,
    )
