"""Below the minimum cohort a deployment waits instead of spending its rounds."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from dapfl.engines.base import WaitingEngine
from dapfl.engines.flower.host import engine as host
from dapfl.engines.flower.host.engine import FlowerEngine
from dapfl.errors import TransportError
from dapfl.federation.transport import Exchange
from tests.federation.small import Small


class Clock:
    """Time passes only while the bridge waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class FakeBridge:
    """Client 3 comes online at a moment of its own."""

    def __init__(self, clock: Clock, back_at: float) -> None:
        self._clock, self._back_at = clock, back_at

    def wait_for(self, clients: set[int], timeout: float) -> set[int]:
        self._clock.now += timeout
        return {3, 4} if self._clock.now < self._back_at else {4}


def engine_with(monkeypatch: pytest.MonkeyPatch, back_at: float) -> tuple[FlowerEngine, Clock]:
    clock = Clock()
    monkeypatch.setattr(host.time, "monotonic", clock.monotonic)
    engine = object.__new__(FlowerEngine)
    engine._bridge = FakeBridge(clock, back_at)  # type: ignore[assignment]
    engine._node_keys = dict  # type: ignore[assignment]
    engine._registered = {}
    return engine, clock


def test_a_round_begins_at_once_if_enough_clients_are_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, clock = engine_with(monkeypatch, back_at=0)
    assert isinstance(engine, WaitingEngine)
    engine.await_clients([1, 2, 3, 4], 3, limit=100)
    assert clock.now == 0
    assert capsys.readouterr().err == ""


def test_a_round_waits_for_the_minimum_cohort_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, clock = engine_with(monkeypatch, back_at=1300)
    engine.await_clients([1, 2, 3, 4], 3, limit=5000)
    assert 1300 <= clock.now < 1310
    said = capsys.readouterr().err
    assert said.count("Waiting: 2 of 4 clients are online, and a round needs 3. Missing: [3, 4].") == 3
    assert "Enough clients are online again" in said


def test_waiting_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, clock = engine_with(monkeypatch, back_at=1e9)
    with pytest.raises(TransportError, match=r"waited 60 s \(--wait\)\. Missing: \[3, 4\]\..*--resume"):
        engine.await_clients([1, 2, 3, 4], 3, limit=60)
    assert clock.now == pytest.approx(60)


def test_waiting_ends_when_others_take_the_places_of_the_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, clock = engine_with(monkeypatch, back_at=1e9)
    registered: list[dict[bytes, int]] = []
    engine._control = SimpleNamespace(register=registered.append)  # type: ignore[assignment]
    engine._node_keys = lambda: {b"new": 3} if clock.now > 20 else {}  # type: ignore[assignment]
    engine.await_clients([1, 2, 3, 4], 3, limit=5000)
    assert registered == [{b"new": 3}] and clock.now < 40


def test_no_round_is_spent_on_waiting() -> None:
    """Two of four clients are lost for a while: every round that is played has a model."""
    away = {3, 4}
    waited: list[int] = []

    class Network:
        def __init__(self, inner) -> None:
            self.inner = inner

        def exchange(self, messages: Mapping[int, bytes], timeout: float, arrived: object = None) -> Exchange:
            here = {client: data for client, data in messages.items() if client not in away}
            replies, failures = self.inner.exchange(here, timeout)
            return Exchange(replies, {**failures, **dict.fromkeys(messages.keys() & away, "offline")})

    def before_round(clients, least: int) -> None:
        if len(set(clients) - away) < least:
            waited.append(least)
            away.discard(3)  # it comes back while the round waits

    small = Small(wrap=lambda _, transport: Network(transport), options={"before_round": before_round})
    records = small.play(3)
    assert waited == [3]
    assert [record.participants for record in records] == [3, 3, 3]
    assert records[0].clients[3].status == "failed:offline"
