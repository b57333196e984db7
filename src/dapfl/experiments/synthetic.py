"""Small synthetic federations, fast enough to pre-train an agent on thousands of rounds.

The tasks look like images (smooth class patterns, styles, shifts, correlated noise, dark background):
an agent raised on Gaussian clouds does not transfer, one raised on these does. The model is a softmax
regression or one hidden layer. All clients train at once, as one batch of matrix products.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dapfl.config import ResourceConfig
from dapfl.randomness import stream
from dapfl.resources import ResourceProcess, build_resources

CLASSES = 10
BATCH = 16
TEST_SAMPLES = 2000
PERMUTATIONS = 32

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Weights = list[Floats]
"""The matrix of each layer; with a leading axis of clients, or without. The first includes the bias."""


@dataclass(frozen=True)
class ClientScores:
    """Loss, accuracy and macro-F1 of every client, on its own data."""

    loss: Floats
    accuracy: Floats
    f1: Floats


def image_like(samples: int, rng: np.random.Generator) -> tuple[Floats, Indices]:
    """A random task of `samples` small grey images, a row each with a 1 at its end, and their labels."""
    side = int(rng.integers(10, 14))
    styles = int(rng.integers(2, 6))
    labels = rng.integers(0, CLASSES, samples)
    smooth, rough = (_blur(side, width) for width in (rng.uniform(1.2, 2.2), rng.uniform(0.8, 2.0)))

    def fields(kernel: Floats, *shape: int) -> Floats:
        noise = rng.standard_normal((*shape, side, side), np.float32)
        return np.asarray(kernel @ noise @ kernel.T, np.float32)

    patterns = rng.uniform(0.7, 1.2) * fields(smooth, CLASSES, 1)  # what a class has in common
    patterns = patterns + rng.uniform(0.3, 0.8) * fields(smooth, CLASSES, styles)
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
    # The mean squared norm decides which learning rates are stable; that of MNIST is near 100.
    norm = np.exp(rng.uniform(np.log(60), np.log(260)))
    images *= np.sqrt(norm / np.mean(np.sum(images**2, axis=1)))
    mislabelled = rng.random(samples) < rng.uniform(0, 0.06)
    labels = np.where(mislabelled, rng.integers(0, CLASSES, samples), labels)
    bias = np.ones(samples, np.float32)
    return np.column_stack((images.astype(np.float32), bias)), labels


def _blur(side: int, width: float) -> Floats:
    """A Gaussian blur of one axis that keeps the variance of white noise."""
    place = np.arange(side)
    kernel = np.exp(-0.5 * ((place[:, None] - place) / width) ** 2)
    return np.asarray(kernel / np.sqrt(np.sum(kernel**2, axis=1, keepdims=True)), np.float32)


class SyntheticFederation:
    """Clients with data, resources and one global model; `seed` decides everything about it.

    `dirichlet` is the concentration of each client's class distribution, None for IID clients;
    `hidden` is the width of the hidden layer, 0 for a softmax regression.
    """

    def __init__(self, seed: int, clients: int = 20, dirichlet: float | None = None, hidden: int = 0) -> None:
        rng = stream(seed, "synthetic-federation")
        self.seed, self.clients, self.hidden = seed, clients, hidden
        self.samples = np.clip(rng.normal(600, 200, clients), 100, None).astype(int)
        # Half the samples in half the batch: the steps of a real epoch at half the cost.
        self.rows = np.maximum(40, self.samples * rng.uniform(0.4, 0.6)).astype(int)
        pool = int(self.rows.sum()) * (1 if dirichlet is None else 2)
        images, labels = image_like(pool + TEST_SAMPLES, rng)
        self.test_images, self.test_labels = images[pool:], labels[pool:]
        self._hand_out(images[:pool], labels[:pool], dirichlet, rng)
        self._epochs = [self._shuffled_epochs(client, rng) for client in range(clients)]
        self._first = self._initial(images.shape[1], rng)
        self.weights = self._first

    def _hand_out(
        self,
        images: Floats,
        labels: Indices,
        dirichlet: float | None,
        rng: np.random.Generator,
    ) -> None:
        """Disjoint local sets, in one array with a row block for each client, padded with zero weight."""
        self._width = int(self.rows.max())
        self.images = np.zeros((self.clients, self._width, images.shape[1]), np.float32)
        self.labels = np.zeros((self.clients, self._width), np.int64)
        self.present = np.zeros((self.clients, self._width), np.float32)
        remaining = [list(np.flatnonzero(labels == label)) for label in range(CLASSES)]
        order = rng.permutation(len(labels))
        for client, count in enumerate(self.rows):
            if dirichlet is None:
                chosen, order = order[:count], order[count:]
            else:
                wanted = rng.multinomial(count, rng.dirichlet(np.full(CLASSES, dirichlet)))
                parts = [
                    [pool.pop() for _ in range(min(n, len(pool)))]
                    for n, pool in zip(wanted, remaining, strict=True)
                ]
                chosen = np.concatenate([np.array(part, np.int64) for part in parts])
                self.rows[client] = len(chosen)
            self.images[client, : len(chosen)] = images[chosen]
            self.labels[client, : len(chosen)] = labels[chosen]
            self.present[client, : len(chosen)] = 1
        self._targets = np.eye(CLASSES, dtype=np.float32)[self.labels] * self.present[..., None]

    def _initial(self, features: int, rng: np.random.Generator) -> Weights:
        """W(0): zeros for the regression, the usual uniform start with a hidden layer."""
        if not self.hidden:
            return [np.zeros((features, CLASSES), np.float32)]
        shapes = ((features, self.hidden), (self.hidden, CLASSES))
        return [rng.uniform(-(n**-0.5), n**-0.5, (n, m)).astype(np.float32) for n, m in shapes]

    def reset(self) -> None:
        """Back to W(0)."""
        self.weights = self._first

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

    def train(self, eta: Floats, alpha: Indices, rng: np.random.Generator) -> Weights:
        """Every client's ŵ_i(t): α_i epochs of SGD at η_i from the global model (Eq. 2), 0 epochs allowed."""
        steps = np.array([len(share) for _, share in self._epochs]) * alpha
        order = np.argsort(-steps, kind="stable")
        rows = np.zeros((self.clients, max(1, int(steps.max())), BATCH), np.int64)
        shares = np.zeros(rows.shape, np.float32)
        for place, client in enumerate(order):
            epochs, share = self._epochs[client]
            chosen = rng.integers(0, PERMUTATIONS, alpha[client])
            rows[place, : steps[client]] = epochs[chosen].reshape(-1, BATCH)
            shares[place, : steps[client]] = np.tile(share, (alpha[client], 1)) * eta[client]
        local = [np.repeat(part[None], self.clients, axis=0) for part in self.weights]
        images = self.images.reshape(-1, self.images.shape[2])
        targets = self._targets.reshape(-1, CLASSES)
        # Clients lie in the order of their steps, so those still at work are always the first ones.
        active = np.searchsorted(-steps[order], -np.arange(int(steps.max())), side="left")
        for step, count in enumerate(active):
            now = rows[:count, step]
            self._descend(
                [part[:count] for part in local], images[now], targets[now], shares[:count, step, :, None]
            )
        back = np.argsort(order)
        return [part[back] for part in local]

    def _descend(self, weights: Weights, x: Floats, targets: Floats, shares: Floats) -> None:
        """One SGD step of every active client, in place."""
        h = np.maximum(x @ weights[0], 0) if self.hidden else x
        error = _softmax(h @ weights[-1])
        error -= targets
        error *= shares
        if self.hidden:
            inner = (error @ weights[1].transpose(0, 2, 1)) * (h > 0)
            weights[0] -= x.transpose(0, 2, 1) @ inner
        weights[-1] -= h.transpose(0, 2, 1) @ error

    def aggregate(self, local: Weights, taking_part: npt.NDArray[np.bool_]) -> None:
        """W(t+1): the mean of the local models, weighted by their samples (Eq. 3); nobody, no change."""
        if taking_part.any():
            share = (self.rows * taking_part / np.sum(self.rows * taking_part)).astype(np.float32)
            self.weights = [np.tensordot(share, part, 1) for part in local]

    def _logits(self, weights: Weights, x: Floats) -> Floats:
        return (np.maximum(x @ weights[0], 0) if self.hidden else x) @ weights[-1]

    def evaluate(self) -> ClientScores:
        """The global model on every client's own data."""
        return self._scores(self._logits(self.weights, self.images))

    def evaluate_local(self, local: Weights) -> Floats:
        """Each client's loss of its own local model on its own data."""
        return self._losses(self._logits(local, self.images))

    def test(self) -> tuple[float, float]:
        """Loss and accuracy of the global model on samples that no client has."""
        logits = self._logits(self.weights, self.test_images)
        losses = _cross_entropy(logits, self.test_labels)
        return float(losses.mean()), float(np.mean(logits.argmax(1) == self.test_labels))

    def _losses(self, logits: Floats) -> Floats:
        losses = _cross_entropy(logits, self.labels) * self.present
        return np.asarray(losses.sum(1) / self.rows, np.float32)

    def _scores(self, logits: Floats) -> ClientScores:
        guess = logits.argmax(2)
        real = self.present > 0
        # One histogram of (client, truth, guess) gives every confusion matrix at once.
        cell = (np.arange(self.clients)[:, None] * CLASSES + self.labels) * CLASSES + guess
        cells = np.bincount(cell[real], minlength=self.clients * CLASSES**2)
        confusion = cells.reshape(self.clients, CLASSES, CLASSES).astype(np.float32)
        hits = np.diagonal(confusion, axis1=1, axis2=2)
        seen = confusion.sum(1) + confusion.sum(2)
        f1 = np.sum(2 * hits / np.maximum(seen, 1), axis=1) / np.sum(seen > 0, axis=1)
        return ClientScores(self._losses(logits), hits.sum(1) / self.rows, f1)


def _softmax(logits: Floats) -> Floats:
    logits -= logits.max(-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(-1, keepdims=True)
    return logits


def _cross_entropy(logits: Floats, labels: Indices) -> Floats:
    top = logits.max(-1)
    own = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return np.asarray(np.log(np.exp(logits - top[..., None]).sum(-1)) + top - own, np.float32)
