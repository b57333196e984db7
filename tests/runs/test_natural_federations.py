"""Runs whose clients have names, and of whom only some take part in a round."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dapfl.config import RunConfig, override
from dapfl.errors import ConfigError
from dapfl.federation.assembly import check
from dapfl.federation.run_terms import bounds_of
from dapfl.reporting.closing import closing_rows
from dapfl.reporting.measures import grouped
from dapfl.reporting.tables import tables_of
from dapfl.runs.results import read_run
from dapfl.runs.session import Session, resume, start

TASK = f"{Path(__file__).parents[1] / 'engines' / 'natural_task.py'}:TASK"
BASE = override(
    RunConfig(),
    {"task": TASK, "clients": 7, "rounds": 8, "seed": 3, "partition": "natural", "crypto.encryption": "none"},
)


def play(session: Session, rounds: int = 99) -> list[dict[str, Any]]:
    """Plays so many rounds; the lines of all that there are, without what a clock decides."""
    with session:
        for record in session:
            if record.round + 1 >= rounds:
                break
    lines = [json.loads(line) for line in (session.path / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return lines


def run(tmp_path: Path, name: str = "run", **changes: Any) -> list[dict[str, Any]]:
    return play(start(override(BASE, changes), tmp_path / name, inline=True))


def selected(line: dict[str, Any]) -> set[int]:
    return {client["id"] for client in line["clients"] if client["status"] != "unselected"}


def test_each_round_calls_so_many_clients_drawn_anew(tmp_path: Path) -> None:
    lines = run(tmp_path, per_round=3)
    calls = [selected(line) for line in lines]
    assert [len(each) for each in calls] == [3] * 8
    assert len({frozenset(each) for each in calls}) > 3
    assert set.union(*calls) == set(range(1, 8))
    assert all(set(line["cohort"]) == each for line, each in zip(lines, calls, strict=True))


def test_the_seed_decides_who_is_called(tmp_path: Path) -> None:
    first, again = (run(tmp_path, name, per_round=3) for name in ("first", "again"))
    other = run(tmp_path, "other", per_round=3, seed=4)
    assert first == again
    assert [selected(line) for line in first] != [selected(line) for line in other]


@pytest.mark.parametrize("codec", ["exact", "compact"])
@pytest.mark.parametrize("setting", ["dap-fl", "ddpg-client"])
def test_a_stopped_run_of_few_a_round_resumes_to_the_result_of_one_never_stopped(
    tmp_path: Path, codec: str, setting: str
) -> None:
    """Agents that were away when it stopped go on from the same memory, and so do those that come back."""
    changes = {"per_round": 3, "crypto.codec": codec, "setting": setting}
    whole = run(tmp_path, "whole", **changes)
    play(start(override(BASE, changes), tmp_path / "stopped", inline=True), rounds=4)
    assert play(resume(tmp_path / "stopped", inline=True)) == whole
    with np.load(tmp_path / "whole/model.npz") as a, np.load(tmp_path / "stopped/model.npz") as b:
        assert all(np.array_equal(a[name], b[name]) for name in a.files)


def test_an_agent_that_was_away_learns_from_the_round_it_was_last_in(tmp_path: Path) -> None:
    lines = run(tmp_path, per_round=3, rounds=12)
    for client in range(7):
        rewards = [
            line["clients"][client]["reward"]
            for line in lines
            if line["clients"][client]["status"] == "accepted"
        ]
        assert rewards[0] is None  # nothing to be rewarded for yet
        assert all(reward is not None for reward in rewards[1:])


def test_the_minimum_cohort_is_one_of_those_that_are_called(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="minimum cohort of 3 can never be reached by 2 clients"):
        check(override(BASE, {"per_round": 2}))
    with pytest.raises(ConfigError, match="cannot call 8 clients: the federation has 7"):
        check(override(BASE, {"per_round": 8}))


def test_bounds_follow_the_largest_natural_client_and_those_called() -> None:
    from dapfl.learning.runtime import task_runtime
    from dapfl.learning.tasks import get_task

    data = task_runtime(get_task(TASK)).data
    bounds = bounds_of(override(BASE, {"per_round": 3}), data)
    assert (bounds.max_samples, bounds.max_clients) == (80, 3)


def test_clients_are_named_and_the_one_who_is_served_worst_is_shown(tmp_path: Path) -> None:
    lines = run(tmp_path, setting="fixed", eta=0.3, alpha=3)
    found = read_run(tmp_path / "run")
    assert found.manifest.client_names == ("Ann", "Bob", "Cy", "Dee", "Eve", "Flo", "Guy")
    last = lines[-1]
    accuracies = [client["accuracy"] for client in last["clients"]]
    assert min(accuracies) == accuracies[4] < 0.4  # Eve, the other way round
    assert last["worst_accuracy"] == accuracies[4]  # a tenth of seven is one
    assert last["accuracy_spread"] == pytest.approx(np.std(accuracies))
    worst = next(table for table in tables_of(grouped([found])) if "serves worst" in table.title)
    assert worst.rows[0][0] == "Eve"
    closing = {row[0]: row[1:] for row in closing_rows(found, 1.0)}
    assert closing["worst tenth"][0] == f"{100 * accuracies[4]:.2f} %"


def test_clients_that_are_not_called_are_scored_as_well(tmp_path: Path) -> None:
    assert all(
        client["accuracy"] is not None for line in run(tmp_path, per_round=3) for client in line["clients"]
    )


def test_fewer_clients_than_the_data_have_are_chosen_by_the_seed(tmp_path: Path) -> None:
    run(tmp_path, clients=4, rounds=1)
    names = read_run(tmp_path / "run").manifest.client_names
    assert len(set(names)) == 4
    assert names == tuple(sorted(names))


def test_clients_of_a_drawn_partition_have_numbers_and_accuracies(tmp_path: Path) -> None:
    lines = run(tmp_path, partition="iid", clients=4, mean_samples=100, std_samples=0)
    manifest = read_run(tmp_path / "run").manifest
    assert manifest.client_names == ()
    assert manifest.client_name(2) == "client 2"
    for client in lines[-1]["clients"]:
        assert client["accuracy"] == pytest.approx(lines[-1]["accuracy"], abs=0.05)
