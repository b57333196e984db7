"""Small synthetic federations, fast enough to pre-train an agent on thousands of rounds.

What users bring differs, and so do these: tasks that look like images (smooth class patterns, styles, shifts,
correlated noise, dark background) or like tables, 2 to 100 classes, one to five layers, three activations,
with normalisation or without, inputs of several scales, tens to thousands of samples a client.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dapfl.arrays import Floats
from dapfl.config import ResourceConfig
from dapfl.federation.global_model.server_step import NormalisedAverage, cosine
from dapfl.pretraining.perceptron import Activation, Perceptron, Weights, cross_entropy
from dapfl.randomness import stream
from dapfl.resources import ResourceProcess, build_resources

BATCH = 16
TEST_SAMPLES = 1000
PERMUTATIONS = 32
MOST_ROWS = 256  # of a client, so that no federation takes much longer than the others

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClientScores:
    """Loss, accuracy and macro-F1 of every client, on its own data."""

    loss: Floats
    accuracy: Floats
    f1: Floats


@dataclass(frozen=True)
class Kind:
    """What a synthetic federation is like. `dirichlet` None means IID clients."""

    images: bool
    classes: int
    hidden: tuple[int, ...]
    activation: Activation
    normalised: bool
    scale: float  # the root mean square of the inputs
    samples: float  # |D_i| on average
    dirichlet: float | None

    @classmethod
    def drawn(cls, rng: np.random.Generator, number: int) -> "Kind":
        """A random kind; every second federation has IID clients, every third trains no hidden layer."""
        images = bool(rng.random() < 0.6)
        activation = str(rng.choice(["relu", "relu", "relu", "tanh", "sigmoid"]))
        layers = 0 if number % 3 == 0 else int(rng.integers(1, 5))
        if activation == "sigmoid":  # more layers of it learn nothing without tricks of initialisation
            layers = min(layers, 2)
        many = rng.random() < 0.15
        return cls(
            images=images,
            classes=int(rng.integers(20, 101)) if many else int(rng.integers(2, 13)),
            hidden=tuple(int(width) for width in rng.integers(10, 30, layers)),
            activation=activation,  # type: ignore[arg-type]
            normalised=bool(rng.random() < 0.3),
            scale=float(2 ** rng.uniform(-2.0, 1.5)),
            samples=float(np.exp(rng.uniform(np.log(60), np.log(2000)))),
            dirichlet=float(rng.uniform(0.2, 1.0)) if number % 2 else None,
        )


def image_like(samples: int, classes: int, rng: np.random.Generator) -> tuple[Floats, Indices]:
    """A random task of `samples` small grey images, a row each, and their labels."""
    side = int(rng.integers(8, 12))
    styles = int(rng.integers(2, 6))
    labels = rng.integers(0, classes, samples)
    smooth, rough = (_blur(side, width) for width in (rng.uniform(1.2, 2.2), rng.uniform(0.8, 2.0)))

    def fields(kernel: Floats, *shape: int) -> Floats:
        noise = rng.standard_normal((*shape, side, side), np.float32)
        return np.asarray(kernel @ noise @ kernel.T, np.float32)

    patterns = rng.uniform(0.7, 1.2) * fields(smooth, classes, 1)  # what a class has in common
    patterns = patterns + rng.uniform(0.3, 0.8) * fields(smooth, classes, styles)
    patterns += rng.uniform(0.0, 1.2) * fields(smooth)  # what all images have in common
    images = patterns[labels, rng.integers(0, styles, samples)].astype(np.float32)
    shifts = rng.integers(-1, 2, (samples, 2))
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            moved = (shifts[:, 0] == down) & (shifts[:, 1] == right)
            images[moved] = np.roll(images[moved], (down, right), (1, 2))
    images += np.float32(rng.uniform(0.2, 0.7)) * fields(rough, samples)
    images = np.maximum(0, images - np.float32(rng.uniform(0, 0.9))).reshape(samples, -1)
    images = np.minimum(images, np.quantile(images, 0.97))
    images /= np.sqrt(np.mean(images**2))
    mislabelled = rng.random(samples) < rng.uniform(0, 0.06)
    labels = np.where(mislabelled, rng.integers(0, classes, samples), labels)
    return images.astype(np.float32), labels


def _blur(side: int, width: float) -> Floats:
    """A Gaussian blur of one axis that keeps the variance of white noise."""
    place = np.arange(side)
    kernel = np.exp(-0.5 * ((place[:, None] - place) / width) ** 2)
    return np.asarray(kernel / np.sqrt(np.sum(kernel**2, axis=1, keepdims=True)), np.float32)


def table_like(samples: int, classes: int, rng: np.random.Generator) -> tuple[Floats, Indices]:
    """A random task of `samples` rows of correlated columns; a hidden rule with errors decides the class."""
    columns, factors = int(rng.integers(8, 60)), int(rng.integers(3, 12))
    hidden = rng.standard_normal((samples, factors))
    rows = hidden @ rng.standard_normal((factors, columns)) + rng.uniform(0.2, 1.5) * rng.standard_normal(
        (samples, columns)
    )
    if rng.random() < 0.5:  # columns with long tails, as amounts of money have
        rows = np.sign(rows) * np.abs(rows) ** rng.uniform(1.0, 1.5)
    rows /= rows.std(0)
    if classes > 20:  # a rule of random features cannot tell many classes apart; places can
        places = rng.uniform(1.0, 2.5) * rng.standard_normal((classes, factors))
        labels = np.argmin((places**2).sum(1) - 2 * hidden @ places.T, axis=1)
    else:
        width = int(rng.integers(4, 24))
        inner = np.tanh(hidden @ rng.standard_normal((factors, width)) * rng.uniform(0.3, 1.5))
        scores = inner @ rng.standard_normal((width, classes))
        labels = np.argmax(scores + rng.uniform(0.0, 1.0) * rng.gumbel(size=scores.shape), axis=1)
    return rows.astype(np.float32), labels.astype(np.int64)


class SyntheticFederation:
    """Clients with data, resources and one global model; `seed` and `kind` decide everything about it."""

    def __init__(self, seed: int, kind: Kind, clients: int = 20) -> None:
        rng = stream(seed, "synthetic-federation")
        self.seed, self.kind, self.clients = seed, kind, clients
        self.samples = np.clip(rng.normal(kind.samples, kind.samples / 3, clients), 32, None).astype(int)
        # Half the samples in half the batch: the steps of a real epoch at half the cost.
        self.rows = np.clip(self.samples * rng.uniform(0.4, 0.6), 16, MOST_ROWS).astype(int)
        pool = int(self.rows.sum()) * (1 if kind.dirichlet is None else 2)
        make = image_like if kind.images else table_like
        inputs, labels = make(pool + TEST_SAMPLES, kind.classes, rng)
        inputs *= np.float32(kind.scale)
        self.test_inputs, self.test_labels = inputs[pool:], labels[pool:]
        self._hand_out(inputs[:pool], labels[:pool], rng)
        self._epochs = [self._shuffled_epochs(client, rng) for client in range(clients)]
        self.network = Perceptron(
            (inputs.shape[1], *kind.hidden, kind.classes), kind.activation, kind.normalised
        )
        self._first = self.network.initial(rng)
        self.reset()

    def _hand_out(self, inputs: Floats, labels: Indices, rng: np.random.Generator) -> None:
        """Disjoint local sets, in one array with a row block for each client, padded with zero weight."""
        classes = self.kind.classes
        self._width = int(self.rows.max())
        self.inputs = np.zeros((self.clients, self._width, inputs.shape[1]), np.float32)
        self.labels = np.zeros((self.clients, self._width), np.int64)
        self.present = np.zeros((self.clients, self._width), np.float32)
        remaining = [list(np.flatnonzero(labels == label)) for label in range(classes)]
        order = rng.permutation(len(labels))
        for client, count in enumerate(self.rows):
            if self.kind.dirichlet is None:
                chosen, order = order[:count], order[count:]
            else:
                wanted = rng.multinomial(count, rng.dirichlet(np.full(classes, self.kind.dirichlet)))
                parts = [
                    [pool.pop() for _ in range(min(n, len(pool)))]
                    for n, pool in zip(wanted, remaining, strict=True)
                ]
                chosen = np.concatenate([np.array(part, np.int64) for part in parts])
                if not len(chosen):  # its classes are used up
                    chosen = np.array([max(remaining, key=len).pop()], np.int64)
                self.rows[client] = len(chosen)
            self.inputs[client, : len(chosen)] = inputs[chosen]
            self.labels[client, : len(chosen)] = labels[chosen]
            self.present[client, : len(chosen)] = 1
        self._targets = np.eye(classes, dtype=np.float32)[self.labels] * self.present[..., None]
        share = self._targets.sum(1) / self.rows[:, None]
        self.guess_loss = -(share * np.log(np.maximum(share, 1e-12))).sum(1)  # the entropy of its labels

    def reset(self) -> None:
        """Back to W(0)."""
        self.weights = self._first
        self._change: Floats | None = None  # what the last round changed
        self.alignment: float | None = None  # of the last two changes

    def resources(self, episode: int) -> list[ResourceProcess]:
        """Every client's resources, drawn anew for each episode."""
        config, seed = ResourceConfig(), self.seed * 100_000 + episode
        return [
            build_resources(config, client + 1, self.clients, int(samples), seed)
            for client, samples in enumerate(self.samples)
        ]

    def _shuffled_epochs(self, client: int, rng: np.random.Generator) -> tuple[Indices, Floats]:
        """Epochs ready to run: row numbers of each batch, and each row's share of its batch (0 = padding)."""
        count = int(self.rows[client])
        batches = -(-count // BATCH)
        order = np.full((PERMUTATIONS, batches * BATCH), client * self._width)
        order[:, :count] = client * self._width + np.argsort(rng.random((PERMUTATIONS, count)), axis=1)
        share = np.zeros(batches * BATCH, np.float32)
        share[:count] = 1 / BATCH
        share[(batches - 1) * BATCH : count] = 1 / (count - (batches - 1) * BATCH)
        return order.reshape(PERMUTATIONS, batches, BATCH), share.reshape(batches, BATCH)

    def steps(self, alpha: Indices) -> Indices:
        """τ_i: how many steps α_i epochs are."""
        return np.array([len(share) for _, share in self._epochs]) * alpha

    def train(self, eta: Floats, alpha: Indices, rng: np.random.Generator) -> Weights:
        """Every client's ŵ_i(t): α_i epochs of SGD at η_i from the global model (Eq. 2), 0 epochs allowed."""
        steps = self.steps(alpha)
        chosen = [rng.integers(0, PERMUTATIONS, epochs) for epochs in alpha]
        order = np.argsort(-steps, kind="stable")
        rows = np.zeros((self.clients, max(1, int(steps.max())), BATCH), np.int64)
        shares = np.zeros(rows.shape, np.float32)
        for place, client in enumerate(order):
            epochs, share = self._epochs[client]
            rows[place, : steps[client]] = epochs[chosen[client]].reshape(-1, BATCH)
            shares[place, : steps[client]] = np.tile(share, (alpha[client], 1)) * eta[client]
        local = [np.repeat(part[None], self.clients, axis=0) for part in self.weights]
        inputs = self.inputs.reshape(-1, self.inputs.shape[2])
        targets = self._targets.reshape(-1, self.kind.classes)
        # Clients lie in the order of their steps, so those still at work are always the first ones.
        active = np.searchsorted(-steps[order], -np.arange(int(steps.max())), side="left")
        for step, count in enumerate(active):
            now = rows[:count, step]
            active_weights = [part[:count] for part in local]
            self.network.descend(active_weights, inputs[now], targets[now], shares[:count, step, :, None])
        back = np.argsort(order)
        return [part[back] for part in local]

    def aggregate(self, local: Weights, taking_part: npt.NDArray[np.bool_], steps: Indices) -> None:
        """W(t+1) by normalised averaging: changes count alike however many steps made them, weighted by the
        clients' samples; nobody, no change."""
        if not taking_part.any():
            return
        share = (self.rows * taking_part / np.sum(self.rows * taking_part)).astype(np.float32)
        mean = float(share @ steps)
        factors = np.array([NormalisedAverage.factor(mean, int(each)) for each in np.maximum(steps, 1)])
        share = share * factors.astype(np.float32)
        before, self.weights = (
            self.weights,
            [
                start + np.tensordot(share, part - start, 1)
                for start, part in zip(self.weights, local, strict=True)
            ],
        )
        change = np.concatenate([(b - a).ravel() for a, b in zip(before, self.weights, strict=True)])
        self.alignment = None if self._change is None else cosine(self._change, change)
        self._change = change

    def evaluate(self) -> ClientScores:
        """The global model on every client's own data."""
        return self._scores(self.network.logits(self.weights, self.inputs))

    def evaluate_local(self, local: Weights) -> Floats:
        """Each client's loss of its own local model on its own data."""
        return self._losses(self.network.logits(local, self.inputs))

    def test(self) -> tuple[float, float]:
        """Loss and accuracy of the global model on samples that no client has."""
        logits = self.network.logits(self.weights, self.test_inputs)
        losses = cross_entropy(logits, self.test_labels)
        return float(losses.mean()), float(np.mean(logits.argmax(1) == self.test_labels))

    def _losses(self, logits: Floats) -> Floats:
        losses = cross_entropy(logits, self.labels) * self.present
        return np.asarray(losses.sum(1) / self.rows, np.float32)

    def _scores(self, logits: Floats) -> ClientScores:
        classes, guess = self.kind.classes, logits.argmax(2)
        real = self.present > 0
        # One histogram of (client, truth, guess) gives every confusion matrix at once.
        cell = (np.arange(self.clients)[:, None] * classes + self.labels) * classes + guess
        cells = np.bincount(cell[real], minlength=self.clients * classes**2)
        confusion = cells.reshape(self.clients, classes, classes).astype(np.float32)
        hits = np.diagonal(confusion, axis1=1, axis2=2)
        seen = confusion.sum(1) + confusion.sum(2)
        f1 = np.sum(2 * hits / np.maximum(seen, 1), axis=1) / np.sum(seen > 0, axis=1)
        return ClientScores(self._losses(logits), hits.sum(1) / self.rows, f1)
