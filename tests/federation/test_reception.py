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

    def open_each(self, messages: list[tuple[int, bytes]]) -> list[Any]:
        self.batches.append(len(messages))
        return [ProtocolError("malformed") for _ in messages]

    def take(self, sender: int, opened: Any) -> None: ...


@pytest.mark.parametrize(("size", "batches"), [(1000, [8, 8, 4]), (2**22, [1] * 20), (2**21, [2] * 10)])
def test_large_uploads_are_opened_one_by_one(size: int, batches: list[int]) -> None:
    server: Any = Opener()
    with Reception(server, range(1, 21)) as reception:
        for client in range(1, 21):
            reception.arrived(client, bytes(size))
        reception.finish({})
    assert server.batches == batches
