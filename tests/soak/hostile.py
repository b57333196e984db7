"""Hostile messages: real ones of every kind, altered, to CS and to clients. They get named refusals only.

An outsider alters bytes. Someone who can open envelopes alters what is in them, but cannot sign. An enrolled
client alters what it says and signs it: that may be taken, since a client may say what it likes, but it must
not break anything.
"""

import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from dapfl.federation.messages import (
    VERSION,
    Delivery,
    Refusal,
    Sealed,
    Signed,
    associated_data,
    decode_client_body,
    decode_delivery,
    decode_sealed,
    decode_server_body,
    encode,
)
from dapfl.federation.transport import ClientId
from tests.attacks.test_tampering import altered as altered_fields
from tests.federation.small import Recording, Small, kind_of

SLOW = 1.0  # seconds that no message may take


@dataclass
class Tally:
    """What came of hostile messages."""

    messages: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0


@dataclass(frozen=True)
class Scene:
    """A federation in the middle of a round, and real messages to start from."""

    small: Small
    to_server: list[tuple[ClientId, bytes]]
    to_client: list[tuple[ClientId, bytes]]


def played(decryption: Literal["shared", "committee"]) -> Scene:
    """Three rounds, with notices and refusals among the messages, and an open fourth."""
    clients = 6 if decryption == "committee" else 4
    small = Small(
        clients=clients,
        decryption=decryption,
        min_cohort=3,
        budgets={4: 1.0},
        wrap=lambda _, transport: Recording(transport),
    )
    small.play(3)
    recording: Any = small.transport
    up = [pair for exchange in recording.replies for pair in exchange.items()]
    down = [pair for exchange in recording.sent for pair in exchange.items()]
    up.append((1, small.parts[1].handle(b"junk")))
    small.server.open_round(3, range(1, clients + 1))
    return Scene(small, up, down)


scene = cache(played)


def altered(data: bytes, rng: np.random.Generator, others: list[bytes]) -> bytes:
    """Bytes like these, but not these."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(len(changed) + 1))
        match int(rng.integers(7)):
            case 0 if changed:
                changed[place % len(changed)] ^= 1 << int(rng.integers(8))
            case 1 if changed:
                changed[place % len(changed)] = int(rng.choice([0, 0x7F, 0x80, 0xC0, 0xC4, 0xDD, 0xFF]))
            case 2:
                del changed[place:]
            case 3:
                changed[place:place] = rng.bytes(int(rng.integers(1, 40)))
            case 4:
                del changed[place : place + int(rng.integers(1, 40))]
            case 5:
                other = others[int(rng.integers(len(others)))]
                start = int(rng.integers(len(other) + 1))
                changed[place:] = other[start : start + len(data)]
            case _:
                changed[place:place] = bytes([0xDD, 0xFF, 0xFF, 0xFF, 0xFF])  # an array of 4 billion
    return bytes(changed)


def attack(tally: Tally, seed: int, count: int, decryption: Literal["shared", "committee"]) -> None:
    """Sends `count` hostile messages, half of them each way."""
    stage, rng = scene(decryption), np.random.default_rng(seed)
    small = stage.small
    for number in range(count):
        began = time.perf_counter()
        if number % 2:
            _to_server(tally, stage, rng)
        else:
            _to_client(tally, stage, rng)
        spent = time.perf_counter() - began
        tally.messages += 1
        tally.slowest = max(tally.slowest, spent)
        if len(small.server.memory.ledger.rejections) > 1000:
            small.server.memory.ledger.rejections.clear()


def _to_server(tally: Tally, stage: Scene, rng: np.random.Generator) -> None:
    small, server = stage.small, stage.small.server
    client, message = stage.to_server[int(rng.integers(len(stage.to_server)))]
    others = [data for _, data in stage.to_server]
    how = ("bytes", "unsigned", "signed")[int(rng.integers(3))]
    if how == "bytes":
        hostile = altered(message, rng, others)
        tally.kinds[f"up/{how}"] += 1
    else:
        hostile, kind = _altered_inside(small, client, message, rng, signed=how == "signed")
        tally.kinds[f"up/{how}/{kind}"] += 1
    before, rejected = server.saved_state(), len(server.rejections)
    counted = {name: tuple(each.senders) for name, each in server._partial_sums.items()}
    try:
        server.receive(client, hostile)
    except Exception as error:
        tally.problems.append(f"CS raised {type(error).__name__} for {hostile.hex()[:200]}")
        return
    reasons = [each.reason for each in server.rejections[rejected:]]
    tally.outcomes[reasons[0] if reasons else "taken"] += 1
    if "internal-error" in reasons:
        tally.problems.append(f"internal-error at CS for {how} {hostile.hex()[:200]}")
    if how != "signed" and hostile != message:
        after = {name: tuple(each.senders) for name, each in server._partial_sums.items()}
        if not reasons or server.saved_state() != before or after != counted:
            tally.problems.append(f"a forgery was taken: {how} {hostile.hex()[:200]}")


def _altered_inside(
    small: Small, client: ClientId, message: bytes, rng: np.random.Generator, *, signed: bool
) -> tuple[bytes, str]:
    """A client's message with other contents in its envelope; signed again, or with the old signature."""
    assert small.keys is not None
    box = decode_sealed(message, len(message)).box
    opened = small.server_suite().open(client, box, associated_data(small.federation_id, client))
    (part, *_) = decode_delivery(opened, len(opened)).parts
    said = decode_client_body(part.body)
    body, kind = _altered_body(said, part.body, rng, fields=signed), kind_of(said)
    suite = small.client_suite(client)
    signature = suite.sign(body) if signed else part.signature
    delivery = encode(Delivery(VERSION, (Signed(body, signature),)))
    sealed = suite.seal(delivery, associated_data(small.federation_id, client))
    return encode(Sealed(VERSION, client, sealed)), kind


def _altered_body(body: Struct, data: bytes, rng: np.random.Generator, *, fields: bool) -> bytes:
    """Other bytes; or, where they will be signed, mostly a body of the right form with another field."""
    if not fields or rng.integers(4) == 0:
        return altered(data, rng, [data])
    choices = [changed for _, changed in altered_fields(body)]
    try:
        return encode(choices[int(rng.integers(len(choices)))])
    except (OverflowError, ValueError, TypeError):
        return altered(data, rng, [data])


def _to_client(tally: Tally, stage: Scene, rng: np.random.Generator) -> None:
    small = stage.small
    client, message = stage.to_client[int(rng.integers(len(stage.to_client)))]
    others = [data for _, data in stage.to_client]
    how = ("bytes", "unsigned", "signed")[int(rng.integers(3))]
    kind = "delivery"
    if how == "bytes":
        hostile = altered(message, rng, others)
    else:
        parts = list(decode_delivery(message, len(message)).parts)
        place = int(rng.integers(len(parts)))
        said = decode_server_body(parts[place].body)
        body, kind = _altered_body(said, parts[place].body, rng, fields=how == "signed"), kind_of(said)
        signature = small.server_suite().sign(body) if how == "signed" else parts[place].signature
        parts[place] = Signed(body, signature)
        hostile = encode(Delivery(VERSION, tuple(parts)))
    tally.kinds[f"down/{how}/{kind}"] += 1
    victim = small.parts[client]
    latest, model = dict(victim._latest), victim._model
    reply = victim.handle(hostile)
    victim._refused.clear()
    if not reply:
        tally.problems.append(f"client {client} could not even refuse {hostile.hex()[:200]}")
        return
    bodies = small.server.open(client, reply)
    reason = bodies[0].reason if isinstance(bodies[0], Refusal) else "taken"
    tally.outcomes[f"client: {reason}"] += 1
    if reason == "internal-error":
        tally.problems.append(f"internal-error at a client for {how} {hostile.hex()[:200]}")
    if how != "signed" and hostile != message and (reason == "taken" or victim._model is not model):
        tally.problems.append(f"a client took a forgery: {hostile.hex()[:200]}")
    if how == "signed":  # what CS has signed may be obeyed; the next victim begins as this one did
        victim._latest, victim._model = latest, model


def peak_megabytes() -> float:
    """The largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
