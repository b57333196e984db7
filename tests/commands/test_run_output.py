"""What `dapfl run` says before its first round and after each."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dapfl import cli
from dapfl.commands.run import _how_good, _tell_of_slow_code, _tell_of_unused_data
from dapfl.config import RunConfig
from dapfl.federation.records import RoundRecord
from dapfl.federation.run_terms import Shared, bounds_of, samples_used
from dapfl.learning.data import Dataset
from dapfl.learning.runtime import task_runtime
from dapfl.learning.tasks import get_task
from dapfl.runs import session
from dapfl.system import console

TASK = f"{Path(__file__).parents[1] / 'engines' / 'tiny_task.py'}:TASK"


def data_of(task: str) -> Dataset:
    return task_runtime(get_task(task)).data


def told(capsys: pytest.CaptureFixture[str], **config: object) -> str:
    _tell_of_unused_data(RunConfig(task=TASK, clients=3, **config))  # type: ignore[arg-type]
    return " ".join(capsys.readouterr().err.split())


def test_data_of_an_own_task_are_not_left_out_silently(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, mean_samples=40, std_samples=0)
    assert "The clients have 120 of the" in text and "mean_samples" in text


def test_data_of_an_own_task_are_all_shared_out_by_default() -> None:
    for clients in (3, 7):
        used, there = samples_used(RunConfig(task=TASK, clients=clients))
        assert used == there > 0
    shares = [len(share) for share in Shared(RunConfig(task=TASK, clients=7)).partition]
    assert max(shares) - min(shares) <= 1
    assert bounds_of(RunConfig(task=TASK, clients=7), data_of(TASK)).max_samples >= max(shares)


def test_clients_with_much_data_of_their_own_can_afford_to_train() -> None:
    """A unit of work is an epoch over what a client usually has, not over the paper's 600 samples."""
    rings = f"{Path(__file__).parents[2] / 'examples' / 'own_task.py'}:rings"
    assert Shared(RunConfig(task=rings, clients=5)).usual_samples == 14_000 / 5
    assert Shared(RunConfig(task=TASK, clients=5)).usual_samples == 600
    assert Shared(RunConfig()).usual_samples == 600


def test_a_device_with_more_than_its_share_uses_a_part_of_it() -> None:
    config = RunConfig(task=TASK, clients=3, partition="own", mean_samples=50, std_samples=0)
    first, again = (Shared(config).partition for _ in range(2))
    assert {len(np.unique(share)) for share in first} == {50}
    assert np.array_equal(first[0], again[0])


def test_nothing_is_said_when_all_data_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, mean_samples=1e6, std_samples=0) == ""


def test_an_installation_without_native_code_says_what_that_costs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    _tell_of_slow_code(RunConfig())
    text = " ".join(capsys.readouterr().err.split())
    assert "built without a C compiler: encryption is about five times slower" in text


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        (RoundRecord(round=1, loss=0.5, accuracy=0.25), "accuracy 0.2500"),
        (RoundRecord(round=1, loss=0.5), "loss 0.5000"),  # of a task without classes
        (RoundRecord(round=1), "accuracy ?"),  # no model yet
    ],
)
def test_progress_shows_how_good_the_model_is(record: RoundRecord, shown: str) -> None:
    assert _how_good(record) == shown


def test_a_name_between_colons_is_no_picture() -> None:
    for each in (console.out, console.err):
        shown = Console(file=StringIO(), emoji=each._emoji)
        shown.print("task.py:cancer: 3 clients")
        assert shown.file.getvalue() == "task.py:cancer: 3 clients\n"


def test_a_stop_before_a_run_goes_on_tells_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "resume", stopped)
    assert cli.main(["run", "--resume", "my run", "--rounds", "9", "--accept-changes"]) == 130
    command = "To go on: dapfl run --resume 'my run' --rounds 9 --accept-changes"
    assert command in capsys.readouterr().err
