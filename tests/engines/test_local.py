"""The local engine delivers messages, keeps states, and restarts workers that die."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from dapfl.engines import local
from dapfl.engines.local import ClientFactory, WorkerPool
from dapfl.errors import DataError
from tests.engines.handlers import (
    Counter,
    Fragile,
    Keeping,
    Mortal,
    Opening,
    Raising,
    Shared,
    Slow,
    ends_while_it_answers,
    ends_while_it_reads,
    without_data,
)

CLIENTS = range(1, 6)


def counters(kind: type[Counter] = Counter, **options: object) -> dict[int, partial[Counter]]:
    return {client: partial(kind, client, **options) for client in CLIENTS}


def to_all(message: bytes) -> dict[int, bytes]:
    return dict.fromkeys(CLIENTS, message)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_client_answers_its_own_message_whatever_the_number_of_workers(workers: int) -> None:
    with WorkerPool(counters(), Shared, workers=workers) as pool:
        replies, failures = pool.exchange({client: b"m%d" % client for client in CLIENTS}, timeout=60)
        assert failures == {}
        assert replies == {client: b"%d:1:m%d" % (client, client) for client in CLIENTS}
        assert pool.states() == dict.fromkeys(CLIENTS, b"1")
        assert pool.exchange({2: b"again"}, timeout=60) == ({2: b"2:2:again"}, {})


def test_a_worker_keeps_nothing_of_an_answer_that_it_has_sent() -> None:
    with WorkerPool({1: partial(Keeping, 1)}, Shared, workers=1) as pool:
        pool.exchange({1: b"large"}, timeout=60)
        assert pool.exchange({1: b"large"}, timeout=60).replies == {1: b"held by 0 large"}


def test_clients_with_much_work_do_not_share_a_worker() -> None:
    work = {1: 9, 2: 1, 3: 9, 4: 1, 5: 2}
    with WorkerPool(counters(), Shared, workers=2, work=work) as pool:
        loads = [sum(work[c] for c in CLIENTS if pool._worker_of[c] == worker) for worker in (0, 1)]
        replies, failures = pool.exchange(to_all(b"x"), timeout=60)
    assert loads == [11, 11]
    assert failures == {}
    assert replies == {client: b"%d:1:x" % client for client in CLIENTS}


def test_clients_continue_from_given_states() -> None:
    with WorkerPool(counters(), Shared, workers=2, states={1: b"7", 4: b"9"}) as pool:
        replies, _ = pool.exchange(to_all(b"x"), timeout=60)
    assert replies[1] == b"1:8:x"
    assert replies[4] == b"4:10:x"
    assert replies[5] == b"5:1:x"


def test_a_killed_worker_is_restarted_and_its_clients_lose_nothing() -> None:
    with WorkerPool(counters(), Shared, workers=2) as pool:
        pool.exchange(to_all(b"x"), timeout=60)
        for process in [worker.process for worker in pool._workers]:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        replies, failures = pool.exchange(to_all(b"y"), timeout=60)
    assert failures == {}
    assert replies == {client: b"%d:2:y" % client for client in CLIENTS}


def test_a_client_that_kills_its_worker_once_is_redone(tmp_path: Path) -> None:
    factories = counters() | {3: partial(Mortal, 3, folder=tmp_path, deaths=1)}
    with WorkerPool(factories, Shared, workers=1) as pool:
        replies, failures = pool.exchange(to_all(b"die"), timeout=60)
    assert failures == {}
    assert replies == {client: b"%d:1:die" % client for client in CLIENTS}


def test_a_worker_that_was_killed_between_two_exchanges_is_no_fault_of_the_next_message(
    tmp_path: Path,
) -> None:
    factories = counters() | {1: partial(Mortal, 1, folder=tmp_path, deaths=1)}
    with WorkerPool(factories, Shared, workers=1) as pool:
        pool.exchange(to_all(b"first"), timeout=60)
        (worker,) = pool._workers
        assert worker.process.pid is not None
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.join()
        replies, failures = pool.exchange(to_all(b"die"), timeout=60)  # and then its message kills one, once
    assert failures == {}
    assert replies == {client: b"%d:2:die" % client for client in CLIENTS}


def test_a_worker_that_is_killed_before_it_has_read_a_message_is_no_fault_of_that_message(
    tmp_path: Path,
) -> None:
    """Not even if it was alive when the message was sent, as far as anybody could know."""
    factories: dict[int, ClientFactory] = {
        1: partial(Mortal, 1, folder=tmp_path, deaths=1),
        2: partial(Counter, 2),
    }
    with WorkerPool(factories, Shared, workers=2) as pool:
        worker = pool._workers[0].process
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        os.waitpid(worker.pid, os.WUNTRACED)
        replies: dict[int, bytes] = {}

        def arrived(client: int, reply: bytes) -> None:
            replies[client] = reply
            if client == 2:  # so the other message is on its way, too, to a worker that does not read it
                worker.kill()

        _, failures = pool.exchange(dict.fromkeys((1, 2), b"die"), timeout=60, arrived=arrived)
    assert failures == {}
    assert replies == {1: b"1:1:die", 2: b"2:1:die"}  # although then the message killed a worker, once


def test_a_message_that_no_worker_lives_to_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be too large for the machine's memory."""
    monkeypatch.setattr(local, "_serve", ends_while_it_reads)
    with WorkerPool({1: partial(Counter, 1)}, Shared, workers=1) as pool:
        assert pool.exchange({1: b"large"}, timeout=60) == ({}, {1: "worker-died"})


def test_a_worker_that_dies_in_the_middle_of_its_answer_is_replaced_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers are larger than what the system keeps of them, so a kill can leave half of one."""
    monkeypatch.setattr(local, "_serve", ends_while_it_answers)
    with WorkerPool({1: partial(Counter, 1)}, Shared, workers=1) as pool:
        assert pool.exchange({1: b"x"}, timeout=60) == ({}, {1: "worker-died"})


def test_a_client_that_keeps_killing_its_worker_fails_and_the_others_go_on(tmp_path: Path) -> None:
    factories = counters() | {3: partial(Mortal, 3, folder=tmp_path, deaths=99)}
    with WorkerPool(factories, Shared, workers=1) as pool:
        replies, failures = pool.exchange(to_all(b"die"), timeout=60)
        assert failures == {3: "worker-died"}
        assert sorted(replies) == [1, 2, 4, 5]
        assert pool.exchange(to_all(b"ok"), timeout=60)[1] == {}


def test_a_worker_that_dies_again_while_it_is_restarted_loses_no_message(tmp_path: Path) -> None:
    factories = counters() | {3: partial(Fragile, 3, folder=tmp_path, deaths=1)}
    with WorkerPool(factories, Shared, workers=1) as pool:
        replies, failures = pool.exchange(to_all(b"die") | {5: b"other"}, timeout=60)
    assert failures == {}
    assert replies == {client: b"%d:1:die" % client for client in CLIENTS} | {5: b"5:1:other"}
    assert len(list(tmp_path.glob("build-*"))) == 3


def test_replies_are_in_the_order_of_the_clients_whichever_worker_is_faster(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    factories = {1: partial(Slow, 1, gate=gate), 2: partial(Opening, 2, gate=gate)}
    with WorkerPool(factories, Shared, workers=2) as pool:
        replies, _ = pool.exchange({1: b"slow", 2: b"slow"}, timeout=60)
    assert list(replies) == [1, 2]


def test_an_exception_leaves_the_worker_only_as_a_code() -> None:
    with WorkerPool(counters() | {2: partial(Raising, 2)}, Shared, workers=1) as pool:
        replies, failures = pool.exchange(to_all(b"x"), timeout=60)
    assert failures == {2: "client-error"}
    assert sorted(replies) == [1, 3, 4, 5]


def test_a_late_client_is_left_out_and_its_late_answer_does_not_count_for_the_next_round(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    factories = counters() | {1: partial(Slow, 1, gate=gate)}
    with WorkerPool(factories, Shared, workers=5) as pool:
        replies, failures = pool.exchange(to_all(b"slow"), timeout=3.0)
        assert failures == {1: "late"}
        assert sorted(replies) == [2, 3, 4, 5]
        gate.touch()
        replies, failures = pool.exchange(to_all(b"next"), timeout=60)
    assert failures == {}
    assert replies[1] == b"1:2:next"


def test_a_client_that_cannot_be_built_raises_its_own_error() -> None:
    with pytest.raises(DataError, match="mnist is not there"):
        WorkerPool({1: without_data}, Shared, workers=2)
