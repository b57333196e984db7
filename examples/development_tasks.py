"""Ten tasks on which the agent is developed. They appear in no result, and are no built-in tasks.

    dapfl compare --task examples/development_tasks.py:pictures --settings dap-fl --seeds 1 --out trial

`motion` and `modules` have clients of their own: `--partition natural`. Digits come with scikit-learn;
`modules` is the text of Python's own library, so it differs a little from one version of Python to the next;
all others are made up from fixed seeds. `patterns_*` and `long_table` have 600 samples for each of 20
clients, as the built-in tasks have: there an epoch is a large part of a weak client's budget.
"""

import sysconfig
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dapfl import Dataset, Task
from dapfl.learning.data import NaturalClients

CHARACTERS = "\n abcdefghijklmnopqrstuvwxyz_()[]{}=.,:#\"'+-*/<>!@%0123456789?"
MODULES = (
    "argparse ast bdb calendar codecs configparser csv dataclasses datetime decimal difflib dis "
    "doctest enum fileinput fractions functools gettext gzip heapq imaplib inspect ipaddress locale "
    "mailbox mimetypes netrc optparse os pathlib pdb pickle pickletools platform plistlib poplib "
    "pprint profile pydoc random shutil smtplib socket socketserver ssl statistics subprocess tarfile "
    "tempfile textwrap threading tokenize trace traceback turtle typing uuid warnings weakref zipfile"
)


def owned(owners: Sequence[int], kind: str, tests: int) -> NaturalClients:
    """Every training sample belongs to somebody, and no test sample does."""
    names = tuple(f"{kind} {i}" for i in range(max(owners) + 1))
    return NaturalClients(names, np.asarray(owners), np.full(tests, -1))


def patterns(
    seed: int, colours: int, kinds: int, reach: int, strength: float, noise: float, altered: bool, count: int
) -> Dataset:
    """16 × 16: 10 classes of some arrangements of blobs, moved by up to `reach`, noisy; 12,000 for training.
    If `altered`, mirrored and lit differently as well."""
    rng = np.random.default_rng(seed)
    classes = 10
    blobs = rng.normal(size=(classes, kinds, colours, 6, 6)).repeat(2, axis=3).repeat(2, axis=4)
    labels, kind = rng.integers(0, classes, count), rng.integers(0, kinds, count)
    grain = rng.normal(size=(count, colours, 16, 16)).astype(np.float32)
    images = rng.normal(size=(count, colours, 4, 4)).repeat(4, axis=2).repeat(4, axis=3)
    places = 2 + rng.integers(-reach, reach + 1, (count, 2))
    mirrored = rng.random(count) < (0.5 if altered else 0)
    for image, label, number, (x, y), mirror in zip(images, labels, kind, places, mirrored, strict=True):
        pattern = blobs[label, number]
        image[:, x : x + 12, y : y + 12] += strength * (pattern[:, :, ::-1] if mirror else pattern)
        if altered:
            image *= rng.uniform(0.6, 1.4)
    images = images.astype(np.float32) + np.float32(noise) * grain
    images = (images - images.mean()) / images.std()
    train = 12_000
    return Dataset(images[:train], labels[:train], images[train:], labels[train:], classes=classes)


def load_pictures() -> Dataset:
    """In colour, hard."""
    return patterns(11, 3, 6, 2, strength=0.9, noise=0.7, altered=True, count=14_000)


def load_faint_patterns() -> Dataset:
    """Faint: easily learned by heart."""
    return patterns(21, 1, 2, 1, strength=0.9, noise=1.0, altered=False, count=16_000)


def load_clear_patterns() -> Dataset:
    """Clear."""
    return patterns(22, 1, 3, 2, strength=1.1, noise=0.7, altered=False, count=16_000)


def load_digits_as_images() -> Dataset:
    """8 × 8, one colour, 0 to 16."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(3).permutation(len(labels))
    images = images.reshape(-1, 1, 8, 8).astype(np.float32)[order]
    labels = labels[order].astype(np.int64)
    return Dataset(images[:1400], labels[:1400], images[1400:], labels[1400:], classes=10)


def load_digits_as_rows() -> Dataset:
    """The same as 64 numbers."""
    data = load_digits_as_images()
    rows = (images.reshape(-1, 64) for images in (data.train_images, data.test_images))
    train, test = rows
    return Dataset(train, data.train_labels, test, data.test_labels, classes=10)


def load_motion() -> Dataset:
    """Six kinds of motion of 25 people, who differ in speed and strength and wear the sensor differently."""
    rng = np.random.default_rng(5)
    inputs, labels, people = [], [], []
    kinds = [(rng.uniform(1, 9, 3), rng.normal(size=(3, 3)), rng.normal(size=3)) for _ in range(6)]
    time = np.linspace(0, 1, 64)
    for person in range(25):
        turn = np.linalg.qr(rng.normal(size=(3, 3)) + 2.5 * np.eye(3))[0]
        speed, strength = rng.uniform(0.7, 1.4), rng.uniform(0.6, 1.6)
        for _ in range(300):
            kind = int(rng.integers(6))
            pace, weights, lean = kinds[kind]
            phase = rng.uniform(0, 2 * np.pi, 3)
            wave = np.sin(2 * np.pi * speed * pace[:, None] * time + phase[:, None])
            signal = strength * (weights @ wave) * 0.5 + lean[:, None] + 1.1 * rng.normal(size=(3, 64))
            inputs.append(turn @ signal)
            labels.append(kind)
            people.append(person)
    train, test = slice(0, 20 * 300), slice(20 * 300, None)
    data, kinds_of = np.array(inputs, np.float32), np.array(labels)
    natural = owned(people[train], "person", 5 * 300)
    return Dataset(data[train], kinds_of[train], data[test], kinds_of[test], classes=6, natural=natural)


def load_modules() -> Dataset:
    """The next character of passages of 80; every sixth module is for the test."""
    number = {letter: i for i, letter in enumerate(CHARACTERS)}
    rows: list[np.ndarray] = []
    test: list[np.ndarray] = []
    owners: list[int] = []
    for i, name in enumerate(MODULES.split()):
        text = (Path(sysconfig.get_path("stdlib")) / f"{name}.py").read_text("utf-8").lower()
        codes = np.array([number.get(letter, len(CHARACTERS)) for letter in text], np.int64)
        passages = [codes[80 * k : 80 * k + 81] for k in range(min(80, (len(codes) - 1) // 80))]
        if i % 6 == 5:
            test += passages
        else:
            rows += passages
            owners += [i - i // 6] * len(passages)
    known, unseen = np.array(rows), np.array(test)[:600]
    return Dataset(
        known[:, :-1], known[:, 1:], unseen[:, :-1], unseen[:, 1:], classes=len(CHARACTERS) + 1,
        natural=owned(owners, "module", len(unseen)),
    )  # fmt: skip


def load_table() -> Dataset:
    """Few rows, many columns: easily learned by heart."""
    rng = np.random.default_rng(9)
    hidden = rng.normal(size=(5_000, 8))
    rows = (hidden @ rng.normal(size=(8, 60)) + 1.5 * rng.normal(size=(5_000, 60))).astype(np.float32)
    scores = np.tanh(hidden @ rng.normal(size=(8, 12))) @ rng.normal(size=(12, 4))
    labels = (scores + 0.5 * rng.gumbel(size=(5_000, 4))).argmax(1)
    return Dataset(rows[:2_000], labels[:2_000], rows[2_000:], labels[2_000:], classes=4)


def load_long_table() -> Dataset:
    """Many rows of noisy labels."""
    rng = np.random.default_rng(29)
    hidden = rng.normal(size=(16_000, 12))
    rows = (hidden @ rng.normal(size=(12, 60)) + rng.normal(size=(16_000, 60))).astype(np.float32)
    scores = np.tanh(hidden @ rng.normal(size=(12, 16))) @ rng.normal(size=(16, 5))
    labels = (scores + 0.5 * rng.gumbel(size=(16_000, 5))).argmax(1)
    return Dataset(rows[:12_000], labels[:12_000], rows[12_000:], labels[12_000:], classes=5)


def convolutions(colours: int, side: int) -> nn.Module:
    """Three convolutions with group normalisation."""
    layers: list[nn.Module] = []
    for before, after in ((colours, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * (side // 8) ** 2, 10))


def dense(*widths: int, activation: type[nn.Module]) -> nn.Module:
    """Layers of these widths; no activation after the last."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def plain_convolutions() -> nn.Module:
    """Two convolutions without normalisation, for 16 × 16."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def convolutions_over_time() -> nn.Module:
    """Two convolutions, and the means of four parts of the time."""
    return nn.Sequential(
        nn.Conv1d(3, 24, 7, padding=3), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(24, 48, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(192, 6),
    )  # fmt: skip


class Letters(nn.Module):
    """A GRU over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS) + 1, 12)
        self.gru = nn.GRU(12, 96, batch_first=True)
        self.fc = nn.Linear(96, len(CHARACTERS) + 1)

    def forward(self, passages: Tensor) -> Tensor:
        """Logits (batch, characters, place)."""
        hidden: Tensor = self.fc(self.gru(self.embedding(passages))[0])
        return hidden.transpose(1, 2)


pictures = Task("pictures", lambda: convolutions(3, 16), load_pictures)
digits = Task("digits", lambda: convolutions(1, 8), load_digits_as_images)
deep = Task("deep", lambda: dense(64, 64, 64, 64, 64, 10, activation=nn.Tanh), load_digits_as_rows)
motion = Task("motion", convolutions_over_time, load_motion)
modules = Task("modules", Letters, load_modules)
table = Task("table", lambda: dense(60, 64, 64, 4, activation=nn.ReLU), load_table)
patterns_linear = Task(
    "patterns_linear", lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), load_faint_patterns
)
patterns_dense = Task(
    "patterns_dense",
    lambda: nn.Sequential(nn.Flatten(), dense(256, 64, 10, activation=nn.ReLU)),
    load_clear_patterns,
)
patterns_convolutions = Task("patterns_convolutions", plain_convolutions, load_clear_patterns)
long_table = Task("long_table", lambda: dense(60, 64, 5, activation=nn.ReLU), load_long_table)
