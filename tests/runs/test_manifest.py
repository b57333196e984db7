"""manifest.json is read and written in one place, and old ones stay readable."""

import json
from pathlib import Path

import msgspec
import pytest

from dapfl.config import RunConfig
from dapfl.engines.base import Deployed
from dapfl.errors import RunDirectoryError
from dapfl.runs.description import describe
from dapfl.runs.manifest import FORMAT, Manifest
from dapfl.runs.settings import resolve
from tests.fake_runs import manifest

PATH = Path("run/manifest.json")


def read(content: object) -> Manifest:
    return Manifest.from_json(json.dumps(content).encode(), PATH)


def test_what_is_read_is_written_back_byte_for_byte() -> None:
    for facts in (manifest(), {**manifest(), "deployment": {"superlink": "host:9", "folder": "/there"}}):
        assert read(facts).to_json() == json.dumps(facts, indent=2).encode() + b"\n"


def test_a_new_run_says_where_it_comes_from() -> None:
    config = RunConfig(task="logistic-mnist", seed=3)
    deployed = Deployed("127.0.0.1:8000", "/server")
    found = describe(config, resolve(config), deployed)
    assert Manifest.from_json(found.to_json(), PATH).to_json() == found.to_json()
    assert list(json.loads(found.to_json())) == [*manifest(), "deployment", "fingerprint"]
    assert (found.task_name, found.setting, found.seed) == ("logistic-mnist", "dap-fl", 3)
    assert (found.task.parameters, found.status, found.deployment) == (7850, "running", deployed)
    assert None not in msgspec.structs.astuple(found.host)


def test_an_old_manifest_needs_no_more_than_a_configuration() -> None:
    found = read({"config": {"task": "cnn-mnist"}})
    assert (found.format, found.task_name, found.setting) == (FORMAT, "cnn-mnist", "unknown setting")
    assert (found.seed, found.planned_rounds, found.host.cpu) == (0, None, None)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"config": 3}', '{"config": {}, "status": "lost"}']
)
def test_a_damaged_manifest_says_what_was_expected(content: str) -> None:
    with pytest.raises(RunDirectoryError, match=r"run/manifest\.json is not .* run .*dapfl run --out DIR"):
        Manifest.from_json(content.encode(), PATH)


@pytest.mark.parametrize("content", [{**manifest(), "format": 2}, {"format": 99, "setup": "of the future"}])
def test_an_unknown_format_asks_for_an_upgrade(content: dict[str, object]) -> None:
    with pytest.raises(RunDirectoryError, match="reads format 1: upgrade dapfl"):
        read(content)
