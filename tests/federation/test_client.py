import msgspec
import numpy as np
import pytest

from dapfl.config import ActionSpace, AgentConfig, PolicyConfig, ResourceConfig
from dapfl.errors import ProtocolError
from dapfl.federation.client import Client
from dapfl.federation.global_model.models import commitment_of
from dapfl.federation.messages import (
    VERSION,
    Aggregate,
    Answer,
    Call,
    Context,
    Delivery,
    Notice,
    Refusal,
    Request,
    Signed,
    Upload,
    decode_delivery,
    decode_report,
    decode_server_body,
    digest,
    encode,
)
from dapfl.federation.transport import SERVER
from dapfl.resources import MeasuredResources
from dapfl.tuning.policy import Choice, HyperparameterPolicy
from tests.federation.small import Learner, Recording, Small, initial_weights


def reply(small: Small, client: int, message: bytes):
    """What a client makes of a message, as CS reads it."""
    (body,) = small.server.open(client, small.parts[client].handle(message))
    return body


def test_a_call_is_answered_by_a_contribution_bound_to_it():
    small = Small()
    message = small.server.open_round(0, [1])[1]
    body = reply(small, 1, message)
    assert isinstance(body, Upload)
    assert body.context == Context(VERSION, small.scope, 0, 1, SERVER, small.server.memory.history.head.name)
    assert body.answers == digest(decode_delivery(message, 10**6).parts[-1].body)
    assert body.commitment == commitment_of(initial_weights())
    assert decode_report(body.report).refused == ()
    assert {"open", "evaluate", "agent", "train", "encode", "encrypt"} == set(
        decode_report(body.report).seconds
    )


def test_what_leaves_a_client_is_sealed_and_holds_no_weights():
    small = Small()
    sealed = small.parts[1].handle(small.server.open_round(0, [1])[1])
    for weights in (initial_weights(), Learner(1).target):
        assert weights[:2].tobytes() not in sealed


def test_a_call_is_obeyed_once():
    small = Small()
    message = small.server.open_round(0, [1])[1]
    assert isinstance(reply(small, 1, message), Upload)
    body = reply(small, 1, message)
    assert isinstance(body, Refusal)
    assert body.reason == "replayed"


def test_a_standalone_client_gives_the_same_answer_again():
    small = Small(standalone=True)
    message = small.server.open_round(0, [1])[1]
    first = small.parts[1].handle(message)
    assert small.parts[1].handle(message) == first
    restored = small.client(1)
    restored.restore(small.parts[1].saved_state())
    assert restored.handle(message) == first


def test_calls_come_in_order_of_rounds():
    small = Small()
    late, early = (small.server.open_round(t, [1])[1] for t in (5, 3))
    assert isinstance(reply(small, 1, late), Upload)
    assert reply(small, 1, early).reason == "replayed"


def test_refusals_are_reported_with_the_next_contribution():
    small = Small()
    small.parts[1].handle(b"junk")
    small.parts[1].handle(b"")
    body = reply(small, 1, small.server.open_round(0, [1])[1])
    assert decode_report(body.report).refused == ("malformed", "malformed")
    body = reply(small, 1, small.server.open_round(1, [1])[1])
    assert decode_report(body.report).refused == ()


def test_refusals_do_not_pile_up_without_end():
    small = Small()
    for _ in range(40):
        small.parts[1].handle(b"junk")
    body = reply(small, 1, small.server.open_round(0, [1])[1])
    assert decode_report(body.report).refused == ("malformed",) * 16


def test_the_global_model_is_shown_to_cs_only_when_asked():
    small = Small(wrap=lambda _, transport: Recording(transport))
    small.play(1)
    calls, requests = small.transport.replies
    assert all(isinstance(small.server.open(c, data)[0], Upload) for c, data in calls.items())
    (whole,), *witnesses = (small.server.open(client, data) for client, data in requests.items())
    assert isinstance(whole, Answer)
    assert np.frombuffer(whole.weights, "<f4").tobytes() == small.federation.weights.tobytes()
    assert len(witnesses) == 3
    for (witness,) in witnesses:
        assert isinstance(witness, Answer)
        assert witness.weights == b""
        assert witness.commitment == whole.commitment == commitment_of(small.federation.weights)


def test_a_plan_over_the_budget_is_told_without_a_contribution():
    small = Small(budgets={1: 2.5})
    body = reply(small, 1, small.server.open_round(0, [1])[1])
    assert isinstance(body, Notice)
    assert body.outcome == "over-budget"
    assert decode_report(body.report).cost == 5.0
    assert decode_report(body.report).epochs == 0


def test_a_client_with_more_samples_than_declared_says_so_itself():
    small = Small(learners={1: Learner(1, sample_count=101)})
    body = reply(small, 1, small.server.open_round(0, [1])[1])
    assert isinstance(body, Refusal)
    assert body.reason == "absurd-size"


def test_an_aggregate_below_the_minimum_cohort_is_refused_by_clients():
    careless = Small(min_cohort=1)
    careful = Small(min_cohort=3)
    for client in (1, 2, 3, 4):
        careful.parts[client].handle(careless.server.open_round(0, [client])[client])
    messages = careless.server.open_round(0, [1])
    careless.server.receive(1, careless.parts[1].handle(messages[1]))
    assert careless.server.aggregate() == (1,)
    message = careless.server.open_round(1, [2])[2]
    assert reply(careful, 2, message).reason == "below-min-cohort"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scope": bytes(16)}, "wrong-federation"),
        ({"sender": 2}, "wrong-sender"),
        ({"recipient": 2}, "wrong-recipient"),
        ({"version": 2}, "wrong-version"),
        ({"model": bytes(32)}, "unknown-model"),
    ],
)
def test_what_cs_signs_in_another_context_is_refused_by_name(change, reason):
    small = Small()
    parts = decode_delivery(small.server.open_round(0, [1])[1], 10**6).parts
    call = decode_server_body(parts[-1].body)
    other = encode(Call(msgspec.structs.replace(call.context, **change)))
    signed = Signed(other, small.server_suite().sign(other))
    assert reply(small, 1, encode(Delivery(VERSION, (*parts[:-1], signed)))).reason == reason


def test_a_delivery_without_an_order_or_with_two_is_refused():
    small = Small()
    model, call = decode_delivery(small.server.open_round(0, [1])[1], 10**6).parts
    assert reply(small, 1, encode(Delivery(VERSION, (model,)))).reason == "malformed"
    assert reply(small, 1, encode(Delivery(VERSION, (model, call, call)))).reason == "duplicate"
    body = encode(Request(Context(VERSION, small.scope, 0, SERVER, 1, bytes(32)), whole=True))
    other = Signed(body, small.server_suite().sign(body))
    assert reply(small, 1, encode(Delivery(VERSION, (model, call, other)))).reason == "malformed"


def test_a_refused_message_leaves_no_trace_in_the_model():
    small = Small()
    small.play(1)
    before = small.parts[1].saved_state()
    small.parts[1].handle(b"junk")
    after = small.parts[1].saved_state()
    a, b = (msgspec.msgpack.decode(state) for state in (before, after))
    assert b.pop("refused") == ["malformed"]
    a.pop("refused")
    assert a == b


def test_state_of_another_client_or_damaged_is_refused():
    small = Small()
    with pytest.raises(ProtocolError, match="state of client 1, not 2"):
        small.parts[2].restore(small.parts[1].saved_state())
    with pytest.raises(ProtocolError, match="damaged"):
        small.parts[2].restore(b"junk")


def test_a_client_that_cannot_even_refuse_stays_silent(monkeypatch, caplog):
    small = Small()

    def fail(*_):
        raise RuntimeError("no key")

    monkeypatch.setattr(Client, "_seal", fail)
    assert small.parts[1].handle(b"junk") == b""


class Counting(HyperparameterPolicy):
    """Sees what a policy sees."""

    needs_local_loss = True

    def __init__(self):
        self.seen = []

    def choose(self, situation):
        self.seen.append(situation)
        return Choice(eta=np.float32(0.1), alpha=2, batch_size=8, planned_alpha=2)

    def observe(self, outcome):
        self.seen.append(outcome)


def test_the_policy_sees_the_state_the_resources_and_what_came_of_it():
    small = Small()
    policy = small.parts[1]._training.policy = Counting()
    body = reply(small, 1, small.server.open_round(0, [1])[1])
    situation, outcome = policy.seen
    state = Learner(1).evaluate(initial_weights())
    assert (situation.loss, situation.accuracy, situation.f1) == (state.loss, state.accuracy, state.f1)
    assert (situation.round, situation.rounds, situation.samples) == (0, 10, 25)
    assert (situation.budget, situation.epoch_cost, situation.transfer_cost) == (20.0, 1.0, 1.0)
    assert outcome.completed
    assert outcome.loss_after == decode_report(body.report).local_loss < state.loss


def test_measured_resources_learn_from_the_training_and_survive():
    small = Small()
    training = small.parts[1]._training
    training.resources = MeasuredResources(ResourceConfig(source="measured"), battery=lambda: None)
    guess = training.resources.at(0)
    assert isinstance(reply(small, 1, small.server.open_round(0, [1])[1]), Upload)
    small.parts[1].record_transfer(0.25)
    measured = training.resources.at(1)
    assert measured.epoch_cost < guess.epoch_cost
    assert measured.transfer_cost == 0.25
    again = small.client(1)
    again._training.resources = MeasuredResources(ResourceConfig(source="measured"), battery=lambda: None)
    again.restore(small.parts[1].saved_state())
    assert again._training.resources.at(1) == measured


def test_an_agent_goes_on_exactly_where_it_was_saved():
    agent = AgentConfig(warm_start=None)  # the search for the unit goes over several rounds here
    policy = PolicyConfig(kind="ddpg", space=ActionSpace(), agent=agent)
    whole, parted = Small(policy=policy, encryption="none"), Small(policy=policy, encryption="none")
    records = whole.play(4)
    first = list(parted.federation.rounds(2))
    resumed = Small(policy=policy, encryption="none")
    for client, part in parted.parts.items():
        resumed.parts[client].restore(part.saved_state())
    resumed.federation.restore(parted.federation.saved_state())
    second = list(resumed.federation.rounds(4))
    for a, b in zip(records, first + second, strict=True):
        assert msgspec.structs.replace(a, seconds={}) == msgspec.structs.replace(b, seconds={})


@pytest.mark.parametrize("codec", ["exact", "compact"])
def test_a_process_keeps_one_model_and_one_message_however_many_rounds(codec: str):
    """Each is as large as the model, and waits while a client trains on a device with little memory."""
    small = Small(codec=codec, one_exchange_per_round=True, wrap=lambda _, inner: Recording(inner))
    small.play(4)
    (opened,) = small.store._deliveries._values.items()
    message, parts = opened
    (aggregate,) = (part.body for part in parts if isinstance(part.body, Aggregate))
    assert aggregate.contributions.obj is message
    assert list(small.store._models._values.values()) == [small.parts[1]._model]
