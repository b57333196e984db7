"""The configuration is strict, and the only place of defaults."""

from pathlib import Path

import pytest

from dapfl.config import RunConfig, load, override, parse
from dapfl.errors import ConfigError


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('task = "cnn-fashion"\n[crypto]\nkey_bits = 3072\n')
    assert load(file) == override(RunConfig(), {"task": "cnn-fashion", "crypto.key_bits": 3072})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("taks = 'cnn-mnist'", "taks"),
        ("[crypto]\nkeybits = 2048", "keybits"),
        ("rounds = 'ten'", "rounds"),
        ("rounds = 0", "rounds"),
        ("[crypto]\nencryption = 'rot13'", "encryption"),
        ("[crypto]\nkey_bits = 1024", "insecure"),
        ("rounds = ", "not valid TOML"),
        ("[resources]\nbudget = -1.0", "budget"),
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
