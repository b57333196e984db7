"""Nothing is lost without a word: who lost what, why, and what to do."""

import errno
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dapfl.config import RunConfig, override
from dapfl.errors import ConfigError, DataError, NothingLearned, RunDirectoryError, StorageError
from dapfl.federation.records import ClientRecord, RoundRecord, Status
from dapfl.learning.tasks import Task, register
from dapfl.reporting.closing import closing_rows
from dapfl.reporting.measures import grouped
from dapfl.reporting.tables import tables_of
from dapfl.runs.monitoring.lost_work import by_reason, lost_work, rounds_without_model
from dapfl.runs.monitoring.reasons import explain
from dapfl.runs.results import read_run
from dapfl.runs.session import resume, start
from dapfl.system import files
from tests.engines.tiny_task import TASK
from tests.fake_runs import write_run
from tests.federation.small import Diverging, Dropping, Learner, Small
from tests.runs.faulty_tasks import NAN_DATA, NAN_LOSS, TOO_LARGE

SMALL = override(
    RunConfig(),
    {"clients": 3, "rounds": 2, "mean_samples": 60, "std_samples": 5, "crypto.encryption": "none"},
)


def small(task: Task, **changes: object) -> RunConfig:
    return override(SMALL, {"task": register(task), **changes})


def record(t: int, *statuses: str) -> RoundRecord:
    clients = tuple(ClientRecord(id=i, status=Status(each)) for i, each in enumerate(statuses, start=1))
    return RoundRecord(round=t, participants=statuses.count("accepted"), clients=clients)


ROUNDS = [
    record(0, "accepted", "failed:late", "unselected", "rejected:bad-signature"),
    record(1, "accepted", "failed:late", "over-budget", "accepted"),
    record(2, "failed:min-cohort", "failed:offline", "unselected", "accepted"),
]


def test_every_lost_client_is_listed_with_how_often_and_why() -> None:
    found = {lost.client: (lost.times, lost.called, lost.why) for lost in lost_work(ROUNDS)}
    assert found == {
        1: (1, 3, "min-cohort 1"),
        2: (3, 3, "late 2, offline 1"),
        3: (1, 1, "over-budget 1"),
        4: (1, 3, "bad-signature 1"),
    }
    assert lost_work(ROUNDS)[0].client == 2
    assert {lost.client for lost in lost_work(ROUNDS, last=3)} == {1, 2, 3}


def test_a_client_that_came_later_is_listed_too_but_attackers_are_not(tmp_path: Path) -> None:
    """Attackers have the numbers after those of the clients; so do clients that `deploy add` has added."""
    path = write_run(tmp_path / "run", count=0)
    (path / "rounds.jsonl").write_bytes(b"".join(each.to_json() + b"\n" for each in ROUNDS))
    found = read_run(path)
    for adversaries, lines in (((), 4), (("nan",), 3)):
        config = found.manifest.config | {"clients": 3, "adversaries": adversaries}
        run = replace(found, manifest=msgspec.structs.replace(found.manifest, config=config))
        rows = [row for row in closing_rows(run, 1.0) if row[0].startswith("lost: ")]
        assert len(rows) == lines
        called = next(row[1] for row in closing_rows(run, 1.0) if row[0] == "contributions")
        assert called == f"4 of {7 if adversaries else 10}"


def test_the_sums_agree() -> None:
    assert by_reason(ROUNDS) == Counter(
        {"late": 2, "offline": 1, "over-budget": 1, "bad-signature": 1, "min-cohort": 1}
    )
    assert by_reason(ROUNDS).total() == sum(lost.times for lost in lost_work(ROUNDS))
    assert rounds_without_model([record(0, "accepted"), record(1, "failed:late")]) == [1]


def test_every_reason_has_some_explanation() -> None:
    assert explain("late").remedy and explain("never-heard-of").meaning


@pytest.mark.parametrize(
    ("task", "words"), [(NAN_DATA, "bad-data 6"), (NAN_LOSS, "diverged 6"), (TOO_LARGE, "diverged 6")]
)
def test_a_run_that_aggregates_nothing_fails_and_leaves_no_model(
    task: Task, words: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(NothingLearned, match=f"None of the 2 rounds was aggregated.*{words}.*means that"),
        start(small(task), tmp_path / "run", inline=True) as session,
    ):
        list(session)
    run = read_run(tmp_path / "run")
    assert run.manifest.status == "failed"
    assert not (tmp_path / "run" / "model.npz").exists()
    assert not session.can_resume
    rows = {name: (figure, more) for name, figure, more in closing_rows(run, 1.0)}
    assert rows["no new model"][0] == "2 of 2 rounds"
    assert all(rows[f"lost: client {i}"][0] == "2 of 2 rounds" for i in (1, 2, 3))
    (table,) = [table for table in tables_of(grouped([run])) if table.title == "Lost contributions"]
    assert table.rows[0][1:3] == tuple(words.split())
    with pytest.raises(RunDirectoryError, match="failed"):
        resume(tmp_path / "run", inline=True)


def test_bad_data_are_found_before_training_and_are_no_security_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        pytest.raises(NothingLearned),
        start(small(NAN_DATA), tmp_path / "run", inline=True) as session,
    ):
        records = list(session)
    records = read_run(tmp_path / "run").rounds
    assert {client.status for record in records for client in record.clients} == {"failed:bad-data"}
    assert sum(record.epochs for record in records) == 0
    assert all(not record.rejections for record in records)
    said = [entry.getMessage() for entry in caplog.records if "cannot take part" in entry.getMessage()]
    assert len(said) == 3  # once a client, not once a round
    assert "NaN or infinity" in said[0] and "nan-data" in said[0]


def test_a_client_with_more_samples_than_declared_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"600 samples.*at most 90.*--own-data"):
        start(small(TASK, partition="own"), tmp_path / "run", inline=True)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_names_the_file_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with start(small(TASK), tmp_path / "run", inline=True) as session:
        rounds = iter(session)
        next(rounds)
        with monkeypatch.context() as patch:
            patch.setattr(files.os, "fsync", full)
            with pytest.raises(StorageError, match=r"checkpoint.* No space left on device\. Free some space"):
                next(rounds)
    assert read_run(tmp_path / "run").manifest.status == "stopped"
    with resume(tmp_path / "run", inline=True) as session:
        assert [each.round for each in session] == [1]


# A device says in its own log what became of its work ------------------------------------------


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if "contribution" in entry.getMessage()]


def test_a_device_logs_that_its_work_is_not_in_the_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dapfl.client")

    class Losing:
        """Loses what client 2 has sent in round 1, after it has trained."""

        def __init__(self, inner):
            self.inner, self.exchanges = inner, 0

        def exchange(self, messages, timeout, arrived=None):
            replies, failures = self.inner.exchange(messages, timeout)
            self.exchanges += 1
            if self.exchanges == 3:  # round 0 and its recovery came before
                replies.pop(2)
                failures[2] = "late"
            return replies, failures

    federation = Small(wrap=lambda _, transport: Losing(transport))
    federation.play(3)
    assert [line[:60] for line in lost(caplog)] == [
        "client 2: its contribution to round 1 is not in the model: C"
    ]


def test_a_device_logs_that_a_round_made_no_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dapfl.client")
    federation = Small(
        wrap=lambda _, transport: Dropping(transport, lambda _, client: "late" if client < 3 else None)
    )
    federation.play(2)
    assert set(lost(caplog)) >= {"client 3: round 0 made no new model, and its contribution is lost"}


def test_a_device_whose_work_is_taken_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dapfl.client")
    Small(learners={2: Diverging(2)}, clients=4).play(3)
    assert lost(caplog) == []


def test_a_data_fault_does_not_stand_in_the_way_of_others(caplog: pytest.LogCaptureFixture) -> None:
    class Unreadable(Learner):
        def evaluate(self, weights):
            raise DataError("row 7 is not a number")

    records = Small(learners={1: Unreadable(1)}).play(2)
    assert [each.participants for each in records] == [3, 3]
    assert records[1].clients[0].status == "failed:bad-data"
    assert records[1].rejections == ()
