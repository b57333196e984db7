"""A run directory is consistent at every moment at which a run can be killed."""

import json
import multiprocessing
from pathlib import Path

import pytest

from dapfl.errors import RunDirectoryError
from dapfl.experiments.store import Checkpoint, RunDirectory


def line(number: int) -> bytes:
    return json.dumps({"round": number, "accuracy": number / 10}).encode()


def checkpoint(rounds: int) -> Checkpoint:
    return Checkpoint(rounds, b"server %d" % rounds, {1: b"client"}, [line(rounds - 1)])


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", {"status": "running"})


def rounds_of(directory: RunDirectory) -> list[int]:
    return [json.loads(each)["round"] for each in directory.rounds_path.read_bytes().splitlines()]


def test_what_was_saved_is_loaded(directory: RunDirectory) -> None:
    assert directory.load() is None
    directory.save(checkpoint(1))
    directory.save(checkpoint(2))
    assert directory.load() == checkpoint(2)
    assert rounds_of(directory) == [0, 1]


def test_killed_after_the_checkpoint_and_before_its_line(directory: RunDirectory) -> None:
    directory.save(checkpoint(1))
    before = directory.rounds_path.read_bytes()
    directory.save(checkpoint(2))
    directory.rounds_path.write_bytes(before)
    directory.load()
    assert rounds_of(directory) == [0, 1]


def test_killed_in_the_middle_of_a_line(directory: RunDirectory) -> None:
    directory.save(checkpoint(1))
    directory.save(checkpoint(2))
    whole = directory.rounds_path.read_bytes()
    directory.rounds_path.write_bytes(whole[:-9])
    directory.load()
    assert directory.rounds_path.read_bytes() == whole


def test_lines_without_a_checkpoint_are_taken_back(directory: RunDirectory) -> None:
    directory.rounds_path.write_bytes(line(0) + b"\n")
    assert directory.load() is None
    assert rounds_of(directory) == []


def test_a_damaged_checkpoint_is_named(directory: RunDirectory) -> None:
    directory.save(checkpoint(1))
    directory.checkpoint_path.write_bytes(directory.checkpoint_path.read_bytes()[:-3])
    with pytest.raises(RunDirectoryError, match=r"checkpoint\.msgpack is damaged"):
        directory.load()


def test_checkpoints_are_for_their_owner_only(directory: RunDirectory) -> None:
    directory.save(checkpoint(1))
    assert directory.checkpoint_path.stat().st_mode & 0o777 == 0o600


def _try_lock(path: Path, answer: "multiprocessing.connection.Connection") -> None:
    try:
        with RunDirectory(path).lock():
            answer.send("locked")
    except RunDirectoryError as error:
        answer.send(str(error))


def test_two_processes_cannot_work_on_one_run(directory: RunDirectory) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with directory.lock():
        process = context.Process(target=_try_lock, args=(directory.path, theirs))
        process.start()
        assert "Another process" in ours.recv()
        process.join()
    with directory.lock():
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}'])
def test_a_manifest_that_is_none_is_named(directory: RunDirectory, content: str) -> None:
    directory.manifest_path.write_text(content)
    with pytest.raises(RunDirectoryError, match=r"manifest\.json"):
        directory.read_manifest()


def test_a_directory_without_manifest_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        RunDirectory.open(tmp_path)
