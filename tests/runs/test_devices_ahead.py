"""Clients on devices of their own live on while the server is killed, and may be ahead of its checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from dapfl.config import RunConfig, override
from dapfl.engines.inline import InlineEngine
from dapfl.engines.registry import ENGINES, EngineSetup
from dapfl.federation.assembly import build_client
from dapfl.federation.client import Client
from dapfl.federation.transport import Arrival, ClientId, Exchange
from dapfl.runs.directory import RunDirectory
from dapfl.runs.session import resume, start
from tests.runs.test_resumption import ENCRYPTED, config, history, lines, model

ROUNDS = 4


class Killed(Exception):
    """The server is killed."""


@dataclass
class Devices:
    """What is left of a run when its server is killed: clients that go on from where they are."""

    killed_at: int | None = None  # the exchange in which the server dies
    before: bool = False  # its messages are sent
    clients: dict[ClientId, Client] = field(default_factory=dict)
    exchanges: int = 0

    def open(self, setup: EngineSetup) -> "Connected":
        build = partial(build_client, setup.config, setup.policy, standalone=True)
        for client, bundle in setup.keys.items():
            if client not in self.clients:
                self.clients[client] = build(client, bundle, setup.shared())
        return Connected(self)


class Connected(InlineEngine):
    def __init__(self, devices: Devices) -> None:
        super().__init__(devices.clients)
        self.devices = devices

    def states(self) -> dict[ClientId, bytes]:
        return {}

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        self.devices.exchanges += 1
        dies = self.devices.exchanges == self.devices.killed_at
        if dies and self.devices.before:
            raise Killed
        done = super().exchange(messages, timeout, arrived)
        if dies:
            raise Killed
        return done


def use(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = replace(ENGINES["inline"], one_exchange_per_round=True, keeps_client_state=True, open=devices.open)
    monkeypatch.setitem(ENGINES, "inline", kind)


def chosen(decryption: str) -> RunConfig:
    return override(config(rounds=ROUNDS, setting="small", **ENCRYPTED), {"crypto.decryption": decryption})


def killed(path: Path, decryption: str) -> None:
    with pytest.raises(Killed), start(chosen(decryption), path, inline=True) as session:
        list(session)


def finished(path: Path) -> Path:
    with resume(path, inline=True) as session:
        list(session)
    return path


def check(path: Path, whole: Path) -> None:
    """Everyone took part in every round, and the model is that of a run without faults."""
    assert [line["cohort"] for line in lines(path)] == [[1, 2, 3]] * ROUNDS
    assert [line["round"] for line in lines(path)] == list(range(ROUNDS))
    assert model(path) == model(whole)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    with start(chosen("shared"), path, inline=True) as session:
        list(session)
    return path


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("decryption", "exchange"),
    [*(("shared", n) for n in range(1, ROUNDS + 2)), *(("committee", n) for n in range(1, 2 * ROUNDS + 1))],
)
def test_a_server_killed_in_any_exchange_loses_nobody(
    decryption: str, exchange: int, before: bool, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Devices(exchange, before), monkeypatch)
    killed(tmp_path / "run", decryption)
    check(finished(tmp_path / "run"), whole)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
@pytest.mark.parametrize(("decryption", "exchange"), [("shared", 4), ("committee", 6), ("committee", 7)])
def test_without_its_newest_checkpoint_the_server_goes_on_from_the_state_that_its_clients_know(
    decryption: str, exchange: int, damage: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Devices(exchange), monkeypatch)
    path = tmp_path / "run"
    killed(path, decryption)
    newest = RunDirectory(path).checkpoint_path
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 8
    newest.unlink()
    if damage == "damaged":
        newest.write_bytes(content)
    check(finished(path), whole)
    assert damage in history(path) and "state of the server" in history(path)


def test_a_changed_record_is_found_even_where_the_newest_checkpoint_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Devices(6), monkeypatch)
    path = tmp_path / "run"
    killed(path, "committee")
    directory = RunDirectory(path)
    directory.checkpoint_path.unlink()
    written = directory.rounds_path.read_bytes()
    changed = written.replace(b'"participants":3', b'"participants":2', 1)
    assert changed != written
    directory.rounds_path.write_bytes(changed)
    first = lines(finished(path))[0]
    assert first["participants"] == 3
