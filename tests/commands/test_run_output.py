"""What `dapfl run` says before its first round."""

from pathlib import Path

import pytest

from dapfl.commands.run import _tell_of_unused_data
from dapfl.config import RunConfig

TASK = f"{Path(__file__).parents[1] / 'engines' / 'tiny_task.py'}:TASK"


def told(capsys: pytest.CaptureFixture[str], **config: object) -> str:
    _tell_of_unused_data(RunConfig(task=TASK, clients=3, **config))  # type: ignore[arg-type]
    return " ".join(capsys.readouterr().err.split())


def test_data_of_an_own_task_are_not_left_out_silently(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, mean_samples=40, std_samples=0)
    assert "The clients have 120 of the" in text and "mean_samples" in text


def test_nothing_is_said_when_all_data_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, mean_samples=1e6, std_samples=0) == ""
