"""A run directory is consistent at every moment at which a run can be killed."""

import json
import multiprocessing
from pathlib import Path

import msgspec
import pytest

from dapfl.errors import RunDirectoryError
from dapfl.runs.directory import Checkpoint, Restored, RunDirectory, records_hash
from dapfl.runs.manifest import Manifest


def line(number: int) -> bytes:
    return json.dumps({"round": number, "accuracy": number / 10}).encode()


def checkpoint(rounds: int) -> Checkpoint:
    return Checkpoint(rounds, b"server %d" % rounds, {1: b"client"}, [line(rounds - 1)])


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", Manifest(config={}))


def rounds_of(directory: RunDirectory) -> list[int]:
    return [json.loads(each)["round"] for each in directory.rounds_path.read_bytes().splitlines()]


def test_what_was_saved_is_loaded(directory: RunDirectory) -> None:
    assert directory.load().checkpoint is None
    directory.save(checkpoint(1))
    directory.save(checkpoint(2))
    assert directory.load() == Restored(checkpoint(2))
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


def saved(directory: RunDirectory, rounds: int) -> RunDirectory:
    """A run directory after so many rounds, as a session writes it."""
    for t in range(rounds):
        records = records_hash(b"", map(line, range(t)))
        directory.save(Checkpoint(t + 1, b"server %d" % t, {}, [line(t)], records))
    return directory


def test_a_missing_checkpoint_is_named_and_nothing_starts_over(directory: RunDirectory) -> None:
    saved(directory, 3)
    for path in directory.checkpoint_path.parent.glob("*.msgpack"):
        path.unlink()
    with pytest.raises(RunDirectoryError, match=r"missing, although 3 rounds are recorded.*another --out"):
        directory.load()


@pytest.mark.parametrize("place", [30, -1])
def test_one_flipped_bit_in_the_checkpoint_is_noticed_and_the_one_before_is_used(
    directory: RunDirectory, place: int
) -> None:
    saved(directory, 3)
    damaged = bytearray(directory.checkpoint_path.read_bytes())
    damaged[place] ^= 1
    directory.checkpoint_path.write_bytes(damaged)
    restored = directory.load()
    assert restored.checkpoint is not None and restored.checkpoint.rounds == 2
    assert "checksum" in restored.notes[0] and "after 2 rounds" in restored.notes[0]
    assert rounds_of(directory) == [0, 1]


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda lines: lines[:3], "has 3 of the 4 lines"),
        (lambda lines: [*lines[:1], b"garbage", *lines[2:]], "Line 2"),
        (lambda lines: [lines[1], *lines[1:]], "Line 1"),
        (lambda lines: [lines[0].replace(b"0.0", b"0.9"), *lines[1:]], "a record was changed"),
        (lambda lines: [], "has 0 of the 4 lines"),
    ],
)
def test_damaged_records_are_restored_from_their_copy_or_refused(
    directory: RunDirectory, damage, fault: str
) -> None:
    saved(directory, 5)
    whole = directory.rounds_path.read_bytes()
    broken = b"".join(each + b"\n" for each in damage(whole.splitlines()))
    directory.rounds_path.write_bytes(broken)
    restored = directory.load()
    assert fault in restored.notes[0] and "restored from its copy" in restored.notes[0]
    assert directory.rounds_path.read_bytes() == whole
    assert directory.load().notes == ()

    directory.rounds_path.write_bytes(broken)
    (directory.checkpoint_path.parent / "rounds.jsonl").write_bytes(broken)
    with pytest.raises(RunDirectoryError, match=f"{fault}.*restore them from a backup"):
        directory.load()
    assert directory.rounds_path.read_bytes() == broken  # nothing is made worse


def test_a_run_of_version_0_1_is_still_read(directory: RunDirectory) -> None:
    for t in range(2):
        directory.save(checkpoint(t + 1))
    old = {"rounds": 2, "federation": b"server", "clients": {}, "lines": [line(1)]}
    directory.checkpoint_path.write_bytes(msgspec.msgpack.encode(old))
    (directory.checkpoint_path.parent / "rounds.jsonl").unlink()
    restored = directory.load()
    assert restored.checkpoint is not None and restored.checkpoint.rounds == 2
    assert restored.notes == ()


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


def test_a_run_directory_is_for_its_owner_only(directory: RunDirectory) -> None:
    directory.save(Checkpoint(1, b"server", {}, [b'{"round": 0}']))
    directory.load()
    with directory.lock():
        pass
    assert directory.path.stat().st_mode & 0o777 == 0o700
    for path in directory.path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


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


def test_a_run_that_nobody_works_on_any_more_is_stopped_whatever_it_last_said(
    directory: RunDirectory,
) -> None:
    assert directory.read_manifest().status == "running"  # without a lock, only what it says is known
    with directory.lock():
        assert directory.read_manifest().status == "running"
    assert directory.read_manifest().status == "stopped"
    directory.set_status("finished")
    assert directory.read_manifest().status == "finished"


def test_a_directory_without_manifest_is_no_run(tmp_path: Path) -> None:
    assert not RunDirectory(tmp_path).begun
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        RunDirectory(tmp_path).read_manifest()
