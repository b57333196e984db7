"""What docs/tuning.md shows works as shown."""

import re
import tomllib
from pathlib import Path

import pytest

from dapfl.config import parse
from dapfl.experiments.settings import SETTINGS, resolve

TEXT = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_of_the_page_runs(block: str) -> None:
    space: dict[str, object] = {}
    exec(block, space)
    assert "choice" in space or "Plateau" in space


def test_toml_of_the_page_is_a_configuration() -> None:
    (block,) = blocks("toml")
    policy = resolve(parse(tomllib.loads(block))).policy
    assert policy.agent.steps == 16 and policy.space.batch_size.pinned is None


def test_every_setting_is_described() -> None:
    named = set(re.findall(r"`([a-z-]+(?:\*)?)`", TEXT))
    assert set(SETTINGS) <= named
