"""The socket between a run and its ServerApp."""

import stat
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from dapfl.engines.flower.bridge import Bridge, serve
from dapfl.errors import TransportError
from dapfl.federation.transport import ClientId, Exchange


class Carrier:
    """Answers like a FlowerTransport with clients 1 to 3 online."""

    def __init__(self) -> None:
        self.seen: list[Mapping[ClientId, bytes]] = []

    def wait_for(self, clients: set[ClientId], timeout: float) -> set[ClientId]:
        return clients - {1, 2, 3}

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float) -> Exchange:
        self.seen.append(messages)
        if b"broken" in messages.values():
            raise OSError("http://10.0.0.7 and other details")
        if b"refused" in messages.values():
            raise TransportError("The SuperLink did not take the round's messages.")
        return Exchange({c: m[::-1] for c, m in messages.items() if c < 3}, dict.fromkeys([3], "late"))


@contextmanager
def server_app(address: Path, carrier: Carrier):
    thread = threading.Thread(target=serve, args=(address, carrier))
    thread.start()
    try:
        yield
    finally:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_an_exchange_crosses_the_bridge(tmp_path: Path) -> None:
    carrier = Carrier()
    bridge = Bridge(tmp_path / "bridge.json")
    with server_app(tmp_path / "bridge.json", carrier), bridge:
        bridge.accept(timeout=10)
        assert bridge.wait_for({1, 2, 9}, timeout=1) == {9}
        assert bridge.exchange({1: b"abc", 2: b"abc", 3: b"xyz"}, 5) == ({1: b"cba", 2: b"cba"}, {3: "late"})
    assert carrier.seen == [{1: b"abc", 2: b"abc", 3: b"xyz"}]


def test_what_the_server_app_cannot_do_is_an_error_of_the_run(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path / "bridge.json")
    with server_app(tmp_path / "bridge.json", Carrier()), bridge:
        bridge.accept(timeout=10)
        with pytest.raises(TransportError, match="did not take"):
            bridge.exchange({1: b"refused"}, 5)
        with pytest.raises(TransportError, match=r"OSError.*--resume"):
            bridge.exchange({1: b"broken"}, 5)
        assert bridge.exchange({1: b"fine"}, 5).replies == {1: b"enif"}


def test_the_address_is_for_its_owner_only(tmp_path: Path) -> None:
    with Bridge(tmp_path / "bridge.json"):
        assert stat.S_IMODE((tmp_path / "bridge.json").stat().st_mode) == 0o600


def test_a_server_app_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="no run behind"):
        serve(tmp_path / "bridge.json", Carrier())
    Bridge(tmp_path / "bridge.json").close()
    with pytest.raises(TransportError, match="no run behind"):
        serve(tmp_path / "bridge.json", Carrier())


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
