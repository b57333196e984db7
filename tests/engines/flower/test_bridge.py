"""The socket between a run and its ServerApp."""

import stat
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from dapfl.engines.flower.apps.bridge import Bridge, serve
from dapfl.errors import TransportError
from dapfl.federation.transport import Arrival, ClientId, Exchange


class FakeTransport:
    """Answers like a FlowerTransport with clients 1 to 3 online."""

    def __init__(self) -> None:
        self.seen: list[Mapping[ClientId, bytes]] = []

    def wait_for(self, clients: set[ClientId], timeout: float) -> set[ClientId]:
        return clients - {1, 2, 3}

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        self.seen.append(messages)
        if b"broken" in messages.values():
            raise OSError("http://10.0.0.7 and other details")
        if b"refused" in messages.values():
            raise TransportError("The SuperLink did not accept the round's messages.")
        return Exchange({c: messages[c][::-1] for c in (2, 1) if c in messages}, dict.fromkeys([3], "late"))


@contextmanager
def server_app(address: Path, transport: FakeTransport):
    thread = threading.Thread(target=serve, args=(address, transport))
    thread.start()
    try:
        yield
    finally:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_an_exchange_crosses_the_bridge(tmp_path: Path) -> None:
    transport = FakeTransport()
    bridge = Bridge(tmp_path / "bridge.json")
    with server_app(tmp_path / "bridge.json", transport), bridge:
        bridge.accept(timeout=10)
        assert bridge.wait_for({1, 2, 9}, timeout=1) == {9}
        replies, failures = bridge.exchange({1: b"abc", 2: b"abc", 3: b"xyz"}, 5)
        assert list(replies.items()) == [(1, b"cba"), (2, b"cba")]  # client 2 was faster
        assert failures == {3: "late"}
    assert transport.seen == [{1: b"abc", 2: b"abc", 3: b"xyz"}]


def test_a_failure_in_the_server_app_is_an_error_of_the_run(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path / "bridge.json")
    with server_app(tmp_path / "bridge.json", FakeTransport()), bridge:
        bridge.accept(timeout=10)
        with pytest.raises(TransportError, match="did not accept"):
            bridge.exchange({1: b"refused"}, 5)
        with pytest.raises(TransportError, match=r"OSError.*--resume"):
            bridge.exchange({1: b"broken"}, 5)
        assert bridge.exchange({1: b"fine"}, 5).replies == {1: b"enif"}


def test_only_its_owner_can_read_the_address(tmp_path: Path) -> None:
    with Bridge(tmp_path / "bridge.json"):
        assert stat.S_IMODE((tmp_path / "bridge.json").stat().st_mode) == 0o600


def test_a_server_app_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="does not lead to a run"):
        serve(tmp_path / "bridge.json", FakeTransport())
    Bridge(tmp_path / "bridge.json").close()
    with pytest.raises(TransportError, match="does not lead to a run"):
        serve(tmp_path / "bridge.json", FakeTransport())


def test_waiting_ends_when_flower_has_died(tmp_path: Path) -> None:
    def check() -> None:
        raise TransportError("Flower's superlink has ended.")

    with Bridge(tmp_path / "bridge.json", check) as bridge, pytest.raises(TransportError, match="has ended"):
        bridge.accept(timeout=10)


def test_a_server_app_that_never_comes_is_an_error(tmp_path: Path) -> None:
    with Bridge(tmp_path / "bridge.json") as bridge:
        with pytest.raises(TransportError, match="did not start the ServerApp"):
            bridge.accept(timeout=0)
        with pytest.raises(TransportError, match="No ServerApp"):
            bridge.exchange({1: b""}, 1)
