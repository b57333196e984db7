"""CS opens replies a few in one go, but never holds many large ones."""

from typing import Any

import pytest

from dapfl.errors import ProtocolError
from dapfl.federation.server.reception import Reception


class Opener:
    """A CS that only counts."""

    batch = 8

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.taken: list[tuple[int, str]] = []

    def open_each(self, messages: list[tuple[int, bytes]]) -> list[Any]:
        self.batches.append(len(messages))
        return [ProtocolError("malformed") for _ in messages]

    def take(self, sender: int, opened: Any) -> None:
        self.taken.append((sender, opened.reason))


@pytest.mark.parametrize(("size", "batches"), [(1000, [8, 8, 4]), (2**22, [1] * 20), (2**21, [2] * 10)])
def test_large_uploads_are_opened_one_by_one(size: int, batches: list[int]) -> None:
    server: Any = Opener()
    with Reception(server, range(1, 21)) as reception:
        for client in range(1, 21):
            reception.arrived(client, bytes(size))
        reception.finish({})
    assert server.batches == batches


def test_what_nobody_asked_for_is_refused_by_name_and_never_opened() -> None:
    server: Any = Opener()
    with Reception(server, (1, 2)) as reception:
        for client in (1, 1, 1, 7, 2, 7, 1):
            reception.arrived(client, b"x")
        reception.finish({2: b"again"})
    assert server.batches == [2]
    assert server.taken == [
        (1, "malformed"),
        (2, "malformed"),
        (1, "duplicate"),
        (2, "duplicate"),
        (7, "not-asked"),
    ]


def test_a_flood_of_strangers_leaves_a_short_record() -> None:
    server: Any = Opener()
    with Reception(server, (1,)) as reception:
        for stranger in range(2, 5000):
            reception.arrived(stranger, b"x")
        reception.finish({1: b"x"})
    assert server.batches == [1] and server.taken[0] == (1, "malformed")
    assert len(server.taken) <= 101
