"""Crashes of the server, of clients and of everything, at any step."""

import msgspec
import numpy as np
import pytest

from dapfl.errors import ProtocolError
from dapfl.federation.messages import VERSION, Aggregate, Context, Signed, digest, encode
from dapfl.federation.server_state.model_history import Head
from dapfl.federation.server_state.state_file import StateFile
from dapfl.federation.transport import EVERYONE, SERVER, Exchange
from tests.federation.small import Small, insecure_keys


class Crash(Exception):
    """The process dies here."""


class Crashing:
    """A transport whose n-th exchange kills the server, before or after the clients have seen it."""

    def __init__(self, inner, exchange: int, after: bool) -> None:
        self.inner, self.left, self.after = inner, exchange, after

    def exchange(self, messages, timeout, arrived=None) -> Exchange:
        self.left -= 1
        if self.left == -1 and not self.after:
            raise Crash
        outcome = self.inner.exchange(messages, timeout)
        if self.left == -1:
            raise Crash
        return outcome


def lines(records) -> list:
    return [msgspec.structs.replace(record, seconds={}) for record in records]


@pytest.mark.parametrize("codec", ["exact", "compact"])
@pytest.mark.parametrize("encryption", ["paillier", "none"])
@pytest.mark.parametrize("one_exchange_per_round", [False, True])
def test_a_run_restored_from_its_states_gives_the_same_lines(codec, encryption, one_exchange_per_round):
    options = {"codec": codec, "encryption": encryption, "one_exchange_per_round": one_exchange_per_round}
    expected = lines(Small(**options).play(5))
    for stop in (1, 3):
        first = Small(**options)
        rounds = first.federation.rounds(5)
        records = [next(rounds) for _ in range(stop)]
        state = first.federation.saved_state()
        states = {client: part.saved_state() for client, part in first.parts.items()}

        spare = Small(**options)
        spare.federation.restore(state)
        second = Small(**options, primer=spare.federation.primer())
        second.federation.restore(state)
        for client, saved in states.items():
            second.parts[client].restore(saved)
        records += second.federation.rounds(5)
        assert lines(records) == expected
        np.testing.assert_array_equal(second.federation.weights, _final_weights(**options))


def _final_weights(**options):
    small = Small(**options)
    small.play(5)
    return small.federation.weights


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("encryption", "one_exchange_per_round", "crash_at"),
    [
        *(("none", False, exchange) for exchange in range(8)),
        *(("none", True, exchange) for exchange in range(5)),
        ("paillier", False, 3),
        ("paillier", True, 2),
    ],
)
def test_a_server_that_crashes_goes_on_from_its_state_file(
    tmp_path, encryption, one_exchange_per_round, crash_at, after
):
    """Its clients live on, and keep what they have done."""
    expected = Small(one_exchange_per_round=one_exchange_per_round, encryption=encryption)
    wanted = expected.play(4)

    small = Small(
        one_exchange_per_round=one_exchange_per_round,
        encryption=encryption,
        standalone=True,
        state_file=StateFile(tmp_path / "server.state"),
        wrap=lambda _, transport: Crashing(transport, crash_at, after),
    )
    records = {}
    with pytest.raises(Crash):
        records.update((record.round, record) for record in small.federation.rounds(4))

    again = Small(
        one_exchange_per_round=one_exchange_per_round,
        encryption=encryption,
        standalone=True,
        state_file=StateFile(tmp_path / "server.state"),
    )
    again.local.clients.update(small.parts)
    if (state := again.state_file.read()) is not None:
        again.federation.restore(state)
    records.update((record.round, record) for record in again.federation.rounds(4))

    np.testing.assert_array_equal(again.federation.weights, expected.federation.weights)
    assert sorted(records) == [0, 1, 2, 3]
    for record in wanted:
        assert records[record.round].cohort == (1, 2, 3, 4), "no client is lost, and none counts twice"
        assert records[record.round].loss == record.loss


def test_an_aggregate_is_on_the_disk_before_anyone_is_sent_it(tmp_path):
    state_file = StateFile(tmp_path / "server.state")
    kept = []

    class Watching:
        def __init__(self, inner):
            self.inner = inner

        def exchange(self, messages, timeout, arrived=None):
            kept.append((next(iter(messages.values())), state_file.read() or b""))
            return self.inner.exchange(messages, timeout)

    small = Small(state_file=state_file, wrap=lambda _, transport: Watching(transport))
    small.play(2)
    head = small.server.memory.history.head.signed.body
    message, state = kept[-1]
    assert head in message
    assert head in state


def test_a_client_whose_memory_is_restored_is_not_counted_twice():
    small = Small()
    small.federation.run_round(0)
    states = {client: part.saved_state() for client, part in small.parts.items()}
    second = small.federation.run_round(1)
    for client in small.parts:
        small.local.clients[client] = small.client(client)
        small.local.clients[client].restore(states[client])
    third = small.federation.run_round(2)
    assert second.cohort == third.cohort == (1, 2, 3, 4)


@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_a_client_restored_while_an_aggregate_is_no_model_goes_on_from_the_one_before(codec):
    expected, small = Small(codec=codec), Small(codec=codec)
    expected.play(3)
    small.play(2)
    history = small.server.memory.history
    context = Context(VERSION, small.scope, 2, SERVER, EVERYONE, history.head.name)
    junk = encode(Aggregate(context, (1, 2, 3), b"junk", b"junk"))
    history.advance(Head(digest(junk), history.head.name, Signed(junk, small.server_suite().sign(junk))))
    restored = Small(codec=codec, primer=small.federation.primer()).parts[1]
    restored.restore(small.parts[1].saved_state())
    history.withdraw()
    small.local.clients[1] = restored
    assert small.federation.run_round(2).cohort == (1, 2, 3, 4)
    np.testing.assert_array_equal(small.federation.weights, expected.federation.weights)


def test_states_that_do_not_fit_are_refused():
    small, other = Small(), Small(keys=insecure_keys(federation=1))
    small.play(1)
    with pytest.raises(ProtocolError, match="another federation"):
        other.federation.restore(small.federation.saved_state())
    for junk in (b"", b"junk", small.parts[1].saved_state()):
        with pytest.raises(ProtocolError, match="damaged"):
            other.federation.restore(junk)
        with pytest.raises(ProtocolError, match="damaged"):
            other.server.restore(junk)


def test_a_state_saved_by_version_0_1_can_be_restored():
    """Its fields are the same, but for the memory of a server step and the run's id."""
    small = Small(encryption="none", standalone=True, run=b"")
    again = Small(encryption="none", standalone=True)
    expected = Small(encryption="none")
    expected.play(3)
    small.play(2)
    old = msgspec.msgpack.decode(small.server.saved_state())
    assert (old.pop("run"), old.pop("roster")) == (b"", 0)
    assert set(old) == {"federation", "round", "acknowledged", "counts", "lineage", "commitments"}
    assert old["lineage"]["latest"].pop("memory") == b""
    again.server.restore(msgspec.msgpack.encode(old))
    again.federation.next_round = 2
    for client, part in small.parts.items():
        saved = msgspec.msgpack.decode(part.saved_state())
        assert saved.pop("memory") == saved.pop("run") == b""
        again.parts[client].restore(msgspec.msgpack.encode(saved))
    assert again.federation.run_round(2).participants == 4
    np.testing.assert_array_equal(again.federation.weights, expected.federation.weights)
