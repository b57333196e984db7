import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapfl.errors import ConfigError
from dapfl.learning.data import NaturalClients
from dapfl.learning.partition import chosen_clients, partition

LABELS = np.arange(60_000, dtype=np.uint8) % 10


@pytest.mark.parametrize("scheme", ["iid", "dirichlet:0.3", "dirichlet:0.001", "dirichlet:100"])
def test_shares_are_disjoint_and_of_the_sizes_drawn(scheme: str) -> None:
    shares = partition(LABELS, 20, seed=3, scheme=scheme)
    together = np.concatenate(shares)
    assert len(np.unique(together)) == len(together)
    assert [len(share) for share in shares] == [len(share) for share in partition(LABELS, 20, seed=3)]


def test_sizes_follow_the_normal_distribution_of_the_paper() -> None:
    sizes = np.array([len(share) for share in partition(LABELS, 2000, seed=0, scheme="resampled")])
    assert abs(sizes.mean() - 600) < 15
    assert abs(sizes.std() - 200) < 15
    assert sizes.min() >= 32


@pytest.mark.parametrize("scheme", ["iid", "dirichlet:0.3", "resampled"])
def test_the_seed_decides(scheme: str) -> None:
    first, again, other = (partition(LABELS, 5, seed, scheme) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_small_concentration_skews_labels_and_a_large_one_does_not() -> None:
    def largest_class(scheme: str) -> float:
        shares = partition(LABELS, 20, seed=1, scheme=scheme)
        return float(np.mean([np.bincount(LABELS[share]).max() / len(share) for share in shares]))

    assert largest_class("dirichlet:0.1") > 0.6
    assert largest_class("dirichlet:1000") < 0.2


def test_resampled_clients_share_samples_and_none_has_one_twice() -> None:
    shares = partition(LABELS[:1000], 50, seed=0, scheme="resampled", mean=200, std=10)
    assert all(len(np.unique(share)) == len(share) for share in shares)
    assert len(np.unique(np.concatenate(shares))) <= 1000 < sum(map(len, shares))


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 30),
    samples=st.integers(32, 1000),
    scheme=st.sampled_from(["iid", "dirichlet:0.05", "dirichlet:5"]),
    classes=st.integers(1, 10),
)
def test_a_set_too_small_shrinks_the_shares_but_not_below_the_minimum(
    clients: int, samples: int, scheme: str, classes: int
) -> None:
    labels = np.arange(samples) % classes
    if clients * 32 > samples:
        with pytest.raises(ConfigError, match="use fewer clients"):
            partition(labels, clients, 0, scheme)
        return
    shares = partition(labels, clients, 0, scheme)
    together = np.concatenate(shares)
    assert len(np.unique(together)) == len(together) <= samples
    assert min(map(len, shares)) >= 32


@pytest.mark.parametrize(
    "scheme",
    ["", "uniform", "dirichlet", "dirichlet:", "dirichlet:x", "dirichlet:0", "dirichlet:inf", "iid:3"],
)
def test_an_unknown_scheme_is_named(scheme: str) -> None:
    with pytest.raises(ConfigError, match=f"no partition '{scheme}'"):
        partition(LABELS, 3, 0, scheme)


def test_a_minimum_of_no_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one sample"):
        partition(LABELS, 3, 0, minimum=0)


def test_a_device_with_data_of_its_own_keeps_them_all() -> None:
    shares = partition(LABELS[:20], 3, 0, "own")
    assert [share.tolist() for share in shares] == [list(range(20))] * 3


NATURAL = NaturalClients(("Ann", "Bob", "Cy"), np.array([0, 2, -1, 1, 0, 2, 2]), np.array([0]))


def test_natural_clients_have_all_of_their_own_samples() -> None:
    shares = partition(np.zeros(7, int), 3, 0, "natural", natural=NATURAL)
    assert [share.tolist() for share in shares] == [[0, 4], [3], [1, 5, 6]]


def test_the_seed_chooses_among_more_natural_clients_than_are_asked_for() -> None:
    chosen = {tuple(chosen_clients(NATURAL, 2, seed)) for seed in range(20)}
    assert chosen == {(0, 1), (0, 2), (1, 2)}
    assert chosen_clients(NATURAL, 2, 5) == chosen_clients(NATURAL, 2, 5)
    shares = partition(np.zeros(7, int), 2, 5, "natural", natural=NATURAL)
    assert [share.tolist() for share in shares] == [
        np.flatnonzero(NATURAL.train == client).tolist() for client in chosen_clients(NATURAL, 2, 5)
    ]


def test_more_natural_clients_than_there_are_cannot_be_had() -> None:
    with pytest.raises(
        ConfigError, match="have 3 natural clients: --clients can be at most that many, not 4"
    ):
        partition(np.zeros(7, int), 4, 0, "natural", natural=NATURAL)


def test_data_without_natural_clients_have_no_natural_partition() -> None:
    with pytest.raises(ConfigError, match="no natural clients"):
        partition(LABELS, 3, 0, "natural")


def test_rows_of_labels_have_no_dirichlet_partition() -> None:
    with pytest.raises(ConfigError, match="many labels"):
        partition(np.zeros((400, 8), int), 3, 0, "dirichlet:1")
