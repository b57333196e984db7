"""Pre-training: what is known of a synthetic federation teaches an agent that knows only its client.

A simulation may try everything. For every synthetic federation a search over schedules finds the one that
brings the *global* model furthest for its price. The actor then learns to do what that schedule would do,
from what a single client sees, whatever was done before: how hard the task is, and whether it is slow because
it is stuck or because it is nearly done, it must read from losses and gains. The critics learn the values of
all that was tried. Prices κ are part of the state, so one set of weights serves them all.
"""

import hashlib
import math
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np

from dapfl import __version__
from dapfl.arrays import Floats
from dapfl.config import ActionSpace, AgentConfig
from dapfl.pretraining.episode import Episode, Rule
from dapfl.pretraining.synthetic import Kind, SyntheticFederation
from dapfl.randomness import stream
from dapfl.system.console import Tracker
from dapfl.system.provenance import source_commit
from dapfl.tuning.action_space import ActionCodec
from dapfl.tuning.buffer import Transitions
from dapfl.tuning.ddpg import DDPG
from dapfl.tuning.mdp import action_places, price_feature, price_of_work, price_place

LEARNER = AgentConfig(
    actor_rate=1e-3,
    critic_rate=1e-3,
    batch=256,
    buffer=250_000,
    lambda_start=0.1,
    lambda_rate=0.0,
    price=0.4,  # has no effect here, where every price has its lessons; the default of runs may change
    warm_start=None,
)
"""The agent while it is being raised: the networks of every agent, faster rates, larger batches."""

LEARNABLE = 0.2  # the least progress of a federation from which there is something to learn
SMALLEST = 0.01  # a loss or an error below this counts as this: there is nothing left to learn


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights: the same recipe gives the same weights."""

    seed: int = 0
    federations: int = 30
    clients: int = 20
    lengths: tuple[int, ...] = (16, 10, 24)
    """Rounds of a federation, in turn."""
    etas: tuple[float, ...] = (0.35, 0.7, 1.4)
    """η at the start of a schedule, in units."""
    lasts: tuple[float, ...] = (0.3, 1.0)
    """The part of it that is left at the end, along a cosine."""
    alphas: tuple[int, ...] = (2, 5, 12, 30)
    """The epochs, as far as a client can afford them."""
    prices: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    """The prices κ for which the best schedules are looked for."""
    softness: float = 0.05
    """How much less a schedule may be worth than the best and still count, by 1/e."""
    actor_steps: int = 6000
    critic_steps: int = 2000
    agent: AgentConfig = LEARNER

    def rules(self, rounds: int) -> list[Rule]:
        """The schedules that are tried in every federation."""
        return [
            Rule(eta, alpha, last, rounds)
            for eta in self.etas
            for last in self.lasts
            for alpha in self.alphas
        ]


@dataclass(frozen=True)
class Life:
    """One federation under one schedule: what its clients saw and did, and how far the global model came."""

    rule: Rule
    states: Floats  # rounds × clients × features, at a price of 1
    executed: Floats
    limits: Floats
    next_states: Floats
    affordable: Floats  # rounds × clients: epochs
    shares: Floats  # rounds × clients: the part of them that was executed
    gaps: Floats  # see `gap`: of the global model, before the first round and after each

    @property
    def progress(self) -> float:
        """How far the gap has closed."""
        return float(self.gaps[0] - self.gaps[-1])

    def value(self, price: float) -> float:
        """What the progress was worth, less the price of the work."""
        work = sum(price_of_work(price, float(share), t) for t, share in enumerate(self.shares.mean(1)))
        return self.progress - work

    def rewards(self, price: float) -> Floats:
        """r_i(t) of every round and client: the progress of all, less the price of one's own work."""
        gains = np.clip(self.gaps[:-1] - self.gaps[1:], -1.5, 4.0)
        asked = [[price_of_work(price, float(s), t) for s in row] for t, row in enumerate(self.shares)]
        return np.asarray(gains[:, None] - np.array(asked), np.float32)


def gap(federation: SyntheticFederation) -> float:
    """ln error + ¼ ln loss of the global model on samples that no client has.

    Accuracy is what users look at; the loss tells apart models whose errors are equal.
    """
    loss, accuracy = federation.test()
    loss = min(loss, 20.0) if math.isfinite(loss) else 20.0
    return math.log(max(1 - accuracy, SMALLEST)) + 0.25 * math.log(max(loss, SMALLEST))


def lives(recipe: Recipe, number: int) -> list[Life]:
    """One federation of a recipe, under each of its schedules."""
    with np.errstate(all="ignore"):  # training that diverges is part of what is to be learned from
        rng = stream(recipe.seed, "kind", number)
        kind = Kind.drawn(rng, number)
        federation = SyntheticFederation(int(rng.integers(2**31)), kind, recipe.clients)
        rounds = recipe.lengths[number % len(recipe.lengths)]
        return [live(federation, rule, rounds) for rule in recipe.rules(rounds)]


def live(federation: SyntheticFederation, rule: Rule, rounds: int) -> Life:
    """A federation from W(0) on, all of whose clients follow one schedule."""
    codec = ActionCodec(ActionSpace())
    episode = Episode(federation, codec, price=1.0, number=0, rounds=rounds)
    gaps, steps, affordable = [gap(federation)], [], []
    for t in range(rounds):
        affordable.append(np.array([max(now.affordable, 1) for now in episode.situations], np.float32))
        steps.append(episode.step(rule.actions(t, affordable[-1], codec)))
        gaps.append(gap(federation))
    return Life(
        rule,
        np.stack([step.states for step in steps]),
        np.stack([step.executed for step in steps]),
        np.stack([step.limits for step in steps]),
        np.stack([step.next_states for step in steps]),
        np.stack(affordable),
        np.stack([step.shares for step in steps]),
        np.array(gaps, np.float32),
    )


@dataclass(frozen=True)
class Lessons:
    """What the actor is taught: states, and what the best schedule of their federation does there."""

    states: Floats
    actions: Floats


def lessons(recipe: Recipe, federations: list[list[Life]]) -> Lessons:
    """For every price, all states of all federations with what the best schedules for that price do there.

    Several schedules may be as good as the best one within the noise of a test set: their mean counts, each
    weighted by exp(value/softness).
    """
    codec = ActionCodec(ActionSpace())
    states, actions = [], []
    for played in federations:
        if max(life.progress for life in played) < LEARNABLE:
            continue  # nothing works here, and the least work would count as best
        for price in recipe.prices:
            values = np.array([life.value(price) for life in played])
            worth = np.exp((values - values.max()) / recipe.softness)
            worth /= worth.sum()
            for life in played:
                seen = _at_price(life.states, price, codec)
                states.append(seen.reshape(-1, seen.shape[-1]))
                for t, now in enumerate(life.affordable):
                    said = np.stack([each.rule.actions(t, now, codec) for each in played])
                    actions.append(np.tensordot(worth, said, 1))
    return Lessons(np.concatenate(states), np.concatenate(actions).astype(np.float32))


def _at_price(states: Floats, price: float, codec: ActionCodec) -> Floats:
    seen = states.copy()
    seen[..., price_place(codec)] = price_feature(price)
    return seen


def teach(agent: DDPG, recipe: Recipe, taught: Lessons) -> None:
    """The actor learns the lessons: the squared distance to the wanted action falls."""
    rng = stream(recipe.seed, "lessons")
    places, batch = action_places(agent.codec), recipe.agent.batch
    average, count = np.zeros_like(agent.actor.main, np.float64), 0
    for step in range(recipe.actor_steps):
        rows = rng.integers(0, len(taught.states), batch)
        states = taught.states[rows]
        # The last action gives away which schedule is followed, and would only be repeated.
        states[:, places] = states[rng.permutation(batch), places]
        raw, tape = agent.actor.network.forward(agent.actor.main, states)
        action = np.tanh(raw)
        error = (action - taught.actions[rows]) * (1 - action * action) / batch
        gradient, _ = agent.actor.network.backward(agent.actor.main, tape, error.astype(np.float32))
        agent.actor.descend(gradient)
        if step >= recipe.actor_steps // 2:
            average, count = average + agent.actor.main, count + 1
    # The actor wanders about a good policy while it learns; the mean of its way is better than its end.
    agent.actor.load((average / count).astype(np.float32))


def judge(agent: DDPG, recipe: Recipe, federations: list[list[Life]]) -> None:
    """The critics learn what was lived through, at every price."""
    for number, played in enumerate(federations):
        for place, life in enumerate(played):
            price = recipe.prices[(number + place) % len(recipe.prices)]
            for t, rewards in enumerate(life.rewards(price)):
                agent.store(
                    Transitions(
                        _at_price(life.states[t], price, agent.codec),
                        life.executed[t],
                        rewards,
                        _at_price(life.next_states[t], price, agent.codec),
                        life.limits[t],
                    )
                )
    agent.learn(stream(recipe.seed, "critics"), recipe.critic_steps, train_actor=False)


def pretrain(recipe: Recipe, tracker: Tracker) -> DDPG:
    """An agent that has learned from all federations of a recipe; `tracker` moves once for each."""
    agent = DDPG(recipe.agent, ActionSpace(), stream(recipe.seed, "pretrained-agent"))
    federations = []
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for played in pool.map(partial(lives, recipe), range(recipe.federations)):
            federations.append(played)
            tracker()
    teach(agent, recipe, lessons(recipe, federations))
    judge(agent, recipe, federations)
    return agent


@dataclass(frozen=True)
class Origin:
    """What made a file of weights; written beside it."""

    command: str
    recipe: Recipe
    dapfl: str
    commit: str | None
    date: str
    seconds: float
    host: str
    numpy: str
    bytes: int
    sha256: str


def write(recipe: Recipe, path: Path, train: Callable[[], DDPG]) -> Origin:
    """Trains, and writes the weights to `path` and their origin to `path`.json."""
    command = f"dapfl pretrain --seed {recipe.seed} --federations {recipe.federations}"
    start, commit = time.monotonic(), source_commit()
    train().weights(made_by=command).save(path)
    content = path.read_bytes()
    origin = Origin(
        command=command,
        recipe=recipe,
        dapfl=__version__,
        commit=commit,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - start, 1),
        host=platform.platform(),
        numpy=np.__version__,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    path.with_name(path.name + ".json").write_bytes(msgspec.json.format(msgspec.json.encode(origin)) + b"\n")
    return origin
