"""What docs/tuning.md shows works as shown."""

import re
import tomllib
from pathlib import Path

from dapfl.config import parse
from dapfl.runs.settings import SETTINGS, resolve

TEXT = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def test_toml_of_the_page_is_a_configuration() -> None:
    agent, rival = (resolve(parse(tomllib.loads(block))).policy for block in blocks("toml"))
    assert agent.agent.steps == 16 and agent.space.batch_size.pinned is None
    assert rival.server_step.rate == 0.01 and rival.optimiser.kind == "delta-sgd"


def test_every_setting_is_described() -> None:
    named = set(re.findall(r"`([a-z-]+(?:\*)?)`", TEXT))
    assert set(SETTINGS) <= named
