"""A task of your own: your model, your data, your loss, in one file.

Run it with

    dapfl run --task examples/own_task.py:rings

The data here are points in the plane, drawn from three noisy rings; the model is a small
network. Replace both by yours: read files, download, decode; whatever returns arrays will do.
"""

import numpy as np
from torch import nn

from dapfl import Dataset, Task


def load_rings() -> Dataset:
    """Points on three rings, labelled by ring. Every process must get the same data: fix the seed."""
    rng = np.random.default_rng(2024)
    rings = rng.integers(0, 3, 16_000)
    angles = rng.uniform(0, 2 * np.pi, len(rings))
    radii = 1.0 + rings + rng.normal(0, 0.15, len(rings))
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1).astype(np.float32)
    return Dataset(points[:14_000], rings[:14_000], points[14_000:], rings[14_000:], classes=3)


def build_model() -> nn.Module:
    """A network that takes a point (two numbers) and returns a logit for each ring."""
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))


rings = Task(
    "rings",
    build_model,
    load_rings,
    loss=nn.CrossEntropyLoss(label_smoothing=0.05),  # the default is the plain cross-entropy
)
