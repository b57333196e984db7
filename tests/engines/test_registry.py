"""The table of engines."""

import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from dapfl.config import RunConfig
from dapfl.engines.inline import InlineEngine
from dapfl.engines.registry import ENGINES
from dapfl.errors import ConfigError
from dapfl.runs.session import start
from tests.engines.handlers import Counter


def test_every_engine_that_a_configuration_can_name_has_a_row() -> None:
    assert set(get_args(get_type_hints(RunConfig)["engine"])) == set(ENGINES) - {"inline"}


def test_the_table_can_be_read_without_flower() -> None:
    code = (
        "import sys; sys.modules['flwr'] = None; from dapfl.engines.registry import ENGINES; print(*ENGINES)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["local", "inline", "flower"]


def test_inline_clients_continue_from_given_states_and_give_them_back() -> None:
    engine = InlineEngine({client: Counter(client, None) for client in (1, 2)}, {2: b"7"})
    assert engine.exchange({1: b"x", 2: b"x"}, timeout=1).replies == {1: b"1:1:x", 2: b"2:8:x"}
    assert engine.states() == {1: b"1", 2: b"8"}


def test_a_missing_flower_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Flower, which is not installed: .*'\.\[flower\]'"):
        start(RunConfig(engine="flower"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
