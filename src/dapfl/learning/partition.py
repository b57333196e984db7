"""Which training samples belong to which client.

|D_i| ~ N(600, 200) in the paper, without overlap. Everything follows from the seed, so that every
process, and every device of a deployment, arrives at the same partition by itself.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dapfl.errors import ConfigError
from dapfl.learning.data import NaturalClients
from dapfl.randomness import stream

Indices = NDArray[np.int32]


def partition(
    labels: NDArray[np.integer],
    clients: int,
    seed: int,
    scheme: str = "iid",
    *,
    mean: float | None = 600.0,
    std: float = 200.0,
    minimum: int = 32,
    natural: NaturalClients | None = None,
) -> list[Indices]:
    """The indices of each client's samples: one array per client, of about `mean` ± `std` samples.

    - `iid`: every client draws from the same distribution. Disjoint.
    - `dirichlet:A`: every client has its own mixture of classes, drawn from a symmetric Dirichlet
      distribution: for A near 0 a client has one or two classes, from 100 on all are alike. Disjoint.
    - `resampled`: every client draws from the whole set, so that clients share samples: for measuring
      federations that are larger than the data set.
    - `natural`: every client is one of the data's own (people, roles), with all of its samples. If the
      data have more of them than `clients`, the seed chooses. `mean`, `std` and `minimum` do not apply.
    - `own`: every client has the whole training set that its process loads: for deployments, where
      each device's task reads the data of that device. `mean`, `std` and `minimum` do not apply.

    Without a `mean` all samples are shared out; with a `std` of 0 the shares are equal.

    Otherwise no client has fewer than `minimum` samples. If the set is too small for the sizes drawn,
    disjoint shares shrink in proportion; if even the minimum does not fit, it is a ConfigError.

    >>> shares = partition(np.arange(1000) % 10, clients=4, seed=7, mean=100, std=20)
    >>> [len(share) for share in shares]
    [83, 111, 105, 136]
    """
    kind, concentration = _parse(scheme)
    if kind == "own":
        return [np.arange(len(labels), dtype=np.int32)] * clients
    if kind == "natural":
        if natural is None:
            raise ConfigError(
                "These data have no natural clients: say iid or dirichlet:A instead of natural."
            )
        chosen = chosen_clients(natural, clients, seed)
        return [np.flatnonzero(natural.train == client).astype(np.int32) for client in chosen]
    if minimum < 1:
        raise ConfigError(f"A client needs at least one sample: the minimum cannot be {minimum}.")
    sizes = _sizes(len(labels), clients, seed, mean, std, minimum)
    if kind == "resampled":
        return _resampled(len(labels), np.minimum(sizes, len(labels)), seed)
    sizes = _fitting(sizes, len(labels), minimum)
    if kind == "dirichlet":
        if not np.issubdtype(labels.dtype, np.integer):
            raise ConfigError("These data have no classes: there is no Dirichlet partition of them. Say iid.")
        if labels.ndim > 1:
            raise ConfigError(
                "A sample of these data has many labels: there is no Dirichlet partition of them. Say iid."
            )
        return _dirichlet(labels, sizes, concentration, stream(seed, "partition", "dirichlet"))
    order = stream(seed, "partition", "order").permutation(len(labels)).astype(np.int32)
    return list(np.split(order[: sizes.sum()], np.cumsum(sizes)[:-1]))


def chosen_clients(natural: NaturalClients, clients: int, seed: int) -> list[int]:
    """The natural clients that take part, by number: all, or as many as asked for, chosen by the seed."""
    there = len(natural.names)
    if clients > there:
        raise ConfigError(
            f"These data have {there} natural clients: --clients can be at most that many, not {clients}."
        )
    return sorted(int(each) for each in stream(seed, "partition", "natural").permutation(there)[:clients])


def _parse(scheme: str) -> tuple[str, float]:
    kind, _, parameter = scheme.partition(":")
    if kind in ("iid", "resampled", "natural", "own") and not parameter:
        return kind, 0.0
    if kind == "dirichlet":
        try:
            concentration = float(parameter)
        except ValueError:
            concentration = math.nan
        if 0 < concentration < math.inf:
            return kind, concentration
    raise ConfigError(
        f"There is no partition '{scheme}': say iid, natural, resampled, own, or dirichlet:A with a number A "
        "above 0, such as dirichlet:0.3."
    )


def _sizes(
    available: int, clients: int, seed: int, mean: float | None, std: float, minimum: int
) -> NDArray[np.int64]:
    """|D_i| of every client, as if there were enough samples."""
    if mean is None and std == 0:
        equal = np.full(clients, available // clients, np.int64)
        equal[: available % clients] += 1
        return np.maximum(minimum, equal)
    centre = available / clients if mean is None else mean
    drawn = stream(seed, "partition", "sizes").normal(centre, std, clients).round()
    return np.maximum(minimum, drawn).astype(np.int64)


def _fitting(sizes: NDArray[np.int64], available: int, minimum: int) -> NDArray[np.int64]:
    """The sizes, or as much of what exceeds the minimum as there are samples for."""
    if sizes.sum() <= available:
        return sizes
    spare = available - minimum * len(sizes)
    if spare < 0:
        raise ConfigError(
            f"{len(sizes):,} clients of at least {minimum} samples need {minimum * len(sizes):,} samples, "
            f"and the training set has {available:,}: use fewer clients, smaller batches, or the partition "
            "'resampled'."
        )
    excess = sizes - minimum
    return minimum + excess * spare // int(excess.sum())


def _resampled(available: int, sizes: NDArray[np.int64], seed: int) -> list[Indices]:
    return [
        stream(seed, "partition", client).choice(available, int(size), replace=False).astype(np.int32)
        for client, size in enumerate(sizes, start=1)
    ]


def _dirichlet(
    labels: NDArray[np.integer], sizes: NDArray[np.int64], concentration: float, rng: np.random.Generator
) -> list[Indices]:
    """Shares of the sizes given; a client whose classes are used up goes on with those that are left."""
    pools = [rng.permutation(np.flatnonzero(labels == label)).astype(np.int32) for label in np.unique(labels)]
    left = np.array([len(pool) for pool in pools])
    mixtures = rng.dirichlet(np.full(len(pools), concentration), len(sizes))
    shares = []
    for size, mixture in zip(sizes, mixtures, strict=True):
        counts = _counts(int(size), mixture, left, rng)
        shares.append(rng.permutation(_take(pools, left, counts)))
        left = left - counts
    return shares


def _counts(
    size: int, mixture: NDArray[np.float64], left: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many samples of each class a client gets: by its mixture, never more than are left."""
    counts = np.zeros_like(left)
    while (short := size - int(counts.sum())) > 0:
        open_classes = counts < left
        weights = np.where(open_classes, mixture, 0.0)
        if weights.sum() < 1e-9:
            weights = np.where(open_classes, left - counts, 0.0).astype(np.float64)
        counts = np.minimum(left, counts + rng.multinomial(short, weights / weights.sum()))
    return counts


def _take(pools: Sequence[Indices], left: NDArray[np.int64], counts: NDArray[np.int64]) -> Indices:
    """The next samples of each class; pools are used from the end."""
    return np.concatenate([pool[n - k : n] for pool, n, k in zip(pools, left, counts, strict=True)])
