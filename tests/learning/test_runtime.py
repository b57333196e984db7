"""What a process keeps of its clients' samples."""

import torch

from dapfl.learning.runtime import SampleCache, Samples


def samples(rows: int) -> Samples:
    return torch.zeros(rows, 9), torch.zeros(rows)  # 40 bytes a row


def test_samples_are_made_once_while_they_fit_and_the_longest_unused_go_first() -> None:
    cache, made = SampleCache(limit=1000), []

    def get(owner: str, rows: int) -> Samples:
        return cache.get(owner, lambda: made.append(owner) or samples(rows))  # type: ignore[func-returns-value]

    first = get("a", 10)
    get("b", 10)
    assert get("a", 10) is first
    get("c", 10)  # 1,200 bytes: b is the one that was not asked for again
    get("a", 10)
    assert made == ["a", "b", "c"]
    get("b", 10)
    assert made == ["a", "b", "c", "b"]


def test_what_is_used_now_stays_however_large() -> None:
    cache = SampleCache(limit=1000)
    cache.get("small", lambda: samples(1))
    large = cache.get("large", lambda: samples(100))
    assert cache.get("large", lambda: samples(1)) is large
