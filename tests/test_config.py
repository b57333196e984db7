"""The configuration is strict, and the only place of defaults."""

from pathlib import Path

import pytest

from dapfl.config import PolicyConfig, RunConfig, load, override, parse, relocated, relocated_policy
from dapfl.errors import ConfigError


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('task = "cnn-fashion"\n[crypto]\nkey_bits = 3072\n')
    assert load(file) == override(RunConfig(), {"task": "cnn-fashion", "crypto.key_bits": 3072})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("taks = 'cnn-mnist'", "taks"),
        ("[crypto]\nkeybits = 2048", "there is no key crypto.keybits"),
        ("rounds = 'ten'", "rounds must be a whole number, not a text"),
        ("rounds = 0", "rounds must be at least 1"),
        ("[crypto]\nencryption = 'rot13'", "crypto.encryption cannot be 'rot13'"),
        ("[crypto]\nkey_bits = 1024", "insecure"),
        ("rounds = ", "not valid TOML"),
        ("[resources]\nbudget = -1.0", "resources.budget must be more than 0"),
        ("eta = 'fast'", "eta must be a number, not a text"),
        ("[resources]\njump_probability = 2.0", "resources.jump_probability must be at most 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")


def test_a_configuration_survives_the_manifest() -> None:
    import msgspec

    config = override(RunConfig(), {"adversaries": ["replay"], "crypto.codec": "compact", "eta": 0.1})
    assert parse(msgspec.json.decode(msgspec.json.encode(config))) == config


def test_every_file_that_a_run_names_can_be_put_elsewhere() -> None:
    def place(file: Path) -> Path:
        return Path("/there") / file

    config = override(
        RunConfig(),
        {
            "task": "own.py:TASK",
            "setting": "below/own.py:Policy",
            "resources.trace": "trace.csv",
            "policy": {"source": "own.py:Other", "agent": {"warm_start": "weights", "steps": 3}},
        },
    )
    found = relocated(config, place)
    assert (found.task, found.setting) == ("/there/own.py:TASK", "/there/below/own.py:Policy")
    assert found.resources.trace == "/there/trace.csv"
    assert found.policy == {
        "source": "/there/own.py:Other",
        "agent": {"warm_start": "/there/weights", "steps": 3},
    }
    assert relocated(RunConfig(), place) == RunConfig()
    assert relocated_policy(PolicyConfig(), place) == PolicyConfig()
