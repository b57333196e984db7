"""What processes compute together is what one computes alone, whatever happens to the others."""

import threading

import numpy as np
import pytest

from dapfl.crypto.engines import teamwork
from dapfl.crypto.engines.teamwork import Team, together
from dapfl.system.processes import WORKERS

COUNT, WIDTH = 100, 4
EXPECTED = np.arange(COUNT * WIDTH, dtype=np.uint32).astype(np.uint8).reshape(COUNT, WIDTH)
NAME, OTHER = b"a" * 32, b"b" * 32


def counted(done: list[slice]):
    def work(part: slice):
        done.append(part)
        return EXPECTED[part]

    return work


def test_two_members_share_the_parts():
    team, done, results = Team(), [], {}
    meet = threading.Barrier(2)

    def slow(part: slice):
        if not done:
            meet.wait(10)  # nobody finishes a part before both have one
        return counted(done)(part)

    def member(index: int) -> None:
        results[index] = team.compute(NAME, COUNT, WIDTH, slow)

    threads = [threading.Thread(target=member, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((results[index] == EXPECTED).all() for index in range(2))
    assert sorted(part.start for part in done) == list(range(0, COUNT, 8))  # each part once


def test_who_comes_late_finds_it_done():
    team, done = Team(), []
    team.compute(NAME, COUNT, WIDTH, counted(done))
    before = len(done)
    assert (team.compute(NAME, COUNT, WIDTH, counted(done)) == EXPECTED).all()
    assert len(done) == before
    team.compute(OTHER, COUNT, WIDTH, counted(done))
    assert len(done) == 2 * before


def test_a_part_that_another_never_finishes_is_computed_again():
    team, done = Team(), []
    batch = teamwork._Batch(team, NAME, COUNT, WIDTH)
    with batch.locked(begin=True):
        pass
    assert batch.take(13) == 0  # and its process dies
    assert (team.compute(NAME, COUNT, WIDTH, counted(done)) == EXPECTED).all()
    assert [part.start for part in done][-1] == 0


def test_a_member_that_dies_with_the_lock_stops_nobody(monkeypatch):
    monkeypatch.setattr(teamwork, "_LOCK_SECONDS", 0.01)
    team, done = Team(), []
    team._lock.acquire()
    assert (team.compute(NAME, COUNT, WIDTH, counted(done)) == EXPECTED).all()
    assert done == [slice(0, COUNT)]


def test_a_team_that_goes_on_leaves_nobody_with_wrong_rows():
    team, done = Team(), []

    def work(part: slice):
        if len(done) == 3:
            team.compute(OTHER, COUNT, WIDTH, lambda part: EXPECTED[part] + 1)
        return counted(done)(part)

    assert (team.compute(NAME, COUNT, WIDTH, work) == EXPECTED).all()
    assert done[-1] == slice(0, COUNT)


def test_an_error_is_everyone_s_own():
    team = Team()

    def broken(part: slice):
        raise ValueError("not a ciphertext")

    for _ in range(2):
        with pytest.raises(ValueError, match="not a ciphertext"):
            team.compute(NAME, COUNT, WIDTH, broken)
    assert (team.compute(NAME, COUNT, WIDTH, counted([])) == EXPECTED).all()


def test_small_and_huge_batches_are_computed_alone(monkeypatch):
    done: list[slice] = []
    Team().compute(NAME, 5, WIDTH, counted(done))
    assert done == [slice(0, 5)]
    monkeypatch.setattr(teamwork, "_MEMORY", 50)
    Team().compute(NAME, COUNT, WIDTH, counted(done))
    assert done[1:] == [slice(0, COUNT)]
    together(NAME, COUNT, WIDTH, counted(done))  # this process is in no team
    assert done[2:] == [slice(0, COUNT)]


def _help(team: Team, connection) -> None:
    teamwork.join(team)
    connection.send(together(NAME, COUNT, WIDTH, lambda part: EXPECTED[part]).tobytes())


@pytest.mark.processes
def test_a_team_is_of_processes():
    team, done = Team(), []
    team.compute(NAME, COUNT, WIDTH, counted(done))
    ours, theirs = WORKERS.Pipe()
    process = WORKERS.Process(target=_help, args=(team, theirs))
    process.start()
    found = ours.recv()
    process.join()
    assert found == EXPECTED.tobytes()
