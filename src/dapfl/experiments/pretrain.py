"""Pre-training: one shared agent lives through synthetic federations; its weights start every client's agent.

What a client cannot know about itself, a simulation can: the reward here is how much nearer the *global*
model comes to the best that its federation allows, and all clients learn from it at once. Prices κ are
drawn at random and are part of the state, so one set of weights serves them all.
"""

import hashlib
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from dapfl import __version__
from dapfl.config import ActionSpace, AgentConfig
from dapfl.console import Tracker
from dapfl.experiments.episode import Episode, Rule
from dapfl.experiments.synthetic import Floats, SyntheticFederation
from dapfl.provenance import source_commit
from dapfl.randomness import stream
from dapfl.tuning.action_space import ActionCodec
from dapfl.tuning.buffer import Transitions
from dapfl.tuning.ddpg import DDPG
from dapfl.tuning.mdp import price_of_work

LEARNER = AgentConfig(
    actor_rate=3e-4,
    critic_rate=1e-3,
    batch=256,
    steps=8,
    buffer=120_000,
    lambda_start=0.1,
    lambda_rate=0.0,
    warm_start=None,
)
"""The agent while it is being raised: the networks of every agent, faster rates, larger batches."""

REFERENCE_ROUNDS = 25
FLOOR = 0.95  # of the best loss and error: there is always a little to gain
NOISE = 0.005  # what is nearer to the floor than this is there
WARM_UP = 2000  # transitions before the critics learn; the actor waits for three times as many


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights: the same recipe gives the same weights."""

    seed: int = 0
    episodes: int = 300
    federations: int = 24
    clients: int = 20
    lengths: tuple[int, ...] = (60, 8, 24, 8)
    """Rounds of an episode, in turn. Short ones make the first rounds common, where most is won."""
    prices: tuple[float, float] = (0.02, 1.0)
    """κ is drawn log-uniformly from this range."""
    lessons: int = 12
    """First episodes, which follow simple rules instead of an actor that knows nothing."""
    noise: float = 0.5
    noise_decay: float = 0.9996
    noise_floor: float = 0.12
    shared_noise: float = 0.8
    """The part of the exploration's variance that all clients share: one client alone moves little."""
    hold: int = 4
    """Rounds for which the shared part stays the same, long enough to show an effect."""
    averaged: float = 0.5
    """The last part of the episodes, over which the shipped actor is averaged."""
    agent: AgentConfig = LEARNER


@dataclass(frozen=True)
class Graded:
    """A federation, and the best test loss and error that a good schedule reaches in it."""

    federation: SyntheticFederation
    best_loss: float
    best_error: float

    def gap(self) -> float:
        """How far the global model is from a little better than the best, in e-folds of loss and error."""
        loss, accuracy = self.federation.test()
        loss = min(loss, 20.0) if math.isfinite(loss) else 20.0
        loss_gap = math.log(max(loss / self.best_loss - FLOOR, NOISE))
        error_gap = math.log(max((1 - accuracy) / self.best_error - FLOOR, NOISE))
        return (loss_gap + error_gap) / 2


def graded_federations(recipe: Recipe, tracker: Tracker) -> list[Graded]:
    """The federations of a recipe: every second one Dirichlet, every second with a hidden layer.

    The best is what η by cosine from 0.2 to 0.02 and 8 epochs reach.
    """
    graded = []
    for number in range(recipe.federations):
        rng = stream(recipe.seed, "kind", number)
        dirichlet = float(rng.uniform(0.2, 1.0)) if number % 2 else None
        hidden = int(rng.integers(16, 40)) if number % 4 in (1, 2) else 0
        seed = int(rng.integers(2**31))
        federation = SyntheticFederation(seed, recipe.clients, dirichlet, hidden)
        rule = Rule(eta=0.2, alpha=8, last=0.1, rounds=REFERENCE_ROUNDS)
        codec = ActionCodec(ActionSpace())
        episode = Episode(federation, codec, price=1.0, number=0)
        tests = []
        for t in range(REFERENCE_ROUNDS):
            episode.step(np.tile(rule.action(t, codec), (recipe.clients, 1)))
            tests.append(federation.test())
        best_loss, best_accuracy = min(loss for loss, _ in tests), max(accuracy for _, accuracy in tests)
        graded.append(Graded(federation, best_loss, 1 - best_accuracy))
        tracker()
    return graded


class Exploration:
    """Noise on the actions, most of it the same for all clients and for some rounds."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.size = recipe.noise

    def __call__(self, actions: Floats, t: int, rng: np.random.Generator) -> Floats:
        """The actions of round t, moved."""
        recipe = self.recipe
        if t % recipe.hold == 0:
            self._shared = rng.standard_normal(actions.shape[1])
        own = rng.standard_normal(actions.shape)
        noise = math.sqrt(recipe.shared_noise) * self._shared + math.sqrt(1 - recipe.shared_noise) * own
        moved = np.clip(actions + self.size * noise, -1, 1).astype(np.float32)
        self.size = max(recipe.noise_floor, self.size * recipe.noise_decay)
        return moved


def live(
    graded: Graded, agent: DDPG, recipe: Recipe, number: int, exploration: Exploration, rounds: int
) -> float:
    """One episode from which the agent learns; gives the discounted return of the mean client."""
    rng = stream(recipe.seed, "life", number)
    low, high = (math.log(price) for price in recipe.prices)
    price = math.exp(rng.uniform(low, high))
    episode = Episode(graded.federation, agent.codec, price, number)
    rule = Rule.drawn(rng, rounds) if number < recipe.lessons else None
    gap, total = graded.gap(), 0.0
    for t in range(rounds):
        if rule is None:
            actions = agent.act(episode.states)
        else:
            actions = np.tile(rule.action(t, agent.codec), (recipe.clients, 1))
        step = episode.step(exploration(actions, t, rng))
        before, gap = gap, graded.gap()
        # Twice the e-folds of the gap closed: a global reward, so clients that help others are paid too.
        gain = min(max(2 * (before - gap), -1.5), 4.0)
        rewards = np.array([gain - price_of_work(price, c.alpha, t) for c in step.choices], np.float32)
        agent.store(Transitions(step.states, step.executed, rewards, step.next_states, step.limits))
        if len(agent.buffer) >= WARM_UP:
            agent.learn(rng, train_actor=len(agent.buffer) >= 3 * WARM_UP)
        total += agent.config.gamma**t * float(rewards.mean())
    return total


def pretrain(recipe: Recipe, tracker: Tracker) -> DDPG:
    """An agent that has lived through all episodes of a recipe; `tracker` moves once for each."""
    agent = DDPG(recipe.agent, ActionSpace(), stream(recipe.seed, "pretrained-agent"))
    federations = graded_federations(recipe, tracker)
    exploration = Exploration(recipe)
    average, count = np.zeros_like(agent.actor.main, np.float64), 0
    for number in range(recipe.episodes):
        graded = federations[number % len(federations)]
        turn = (number + number // len(federations)) % len(recipe.lengths)
        total = live(graded, agent, recipe, number, exploration, recipe.lengths[turn])
        if number >= (1 - recipe.averaged) * recipe.episodes:
            average, count = average + agent.actor.main, count + 1
        tracker(note=f"return {total:.2f}")
    if count:
        # The actor wanders about a good policy while it learns; the mean of its way is better than its end.
        agent.actor.load((average / count).astype(np.float32))
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
    command = (
        f"dapfl pretrain --seed {recipe.seed} --episodes {recipe.episodes} --federations {recipe.federations}"
    )
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
