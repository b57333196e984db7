"""Hostile messages: real ones of every kind, altered, to CS and to clients. They get named refusals only.

bytes       an outsider alters bytes, cuts, joins, repeats an old message, sends it to somebody else, or back
unsigned    someone who can open envelopes alters what is in them, but cannot sign
numbers     the same in signatures and envelopes: numbers that careless arithmetic trips over
recombined  signed parts of several messages, in other numbers and another order
signed      an enrolled client, or CS, alters what it says and signs it: that may be taken, since it may say
            what it likes, but it must not break anything
"""

import math
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from dapfl.federation.messages import (
    PARTS,
    VERSION,
    Delivery,
    Refusal,
    Sealed,
    Signed,
    associated_data,
    decode_client_body,
    decode_delivery,
    decode_server_body,
    encode,
)
from dapfl.federation.transport import ClientId
from tests.attacks.test_tampering import altered as altered_fields
from tests.federation.small import kind_of
from tests.soak.numbers import replaced, replaced_within
from tests.soak.scenes import BEHIND, KEY_BITS, SCENES, Scene, scene

SLOW = 1.0  # seconds of CPU that no message may take; nor may a group of them
GROUP = 10  # reading the clock of the CPU takes as long as half a message
MEMORY = 64 * 2**20  # bytes that no batch of messages may need beyond what the process has
EXTREMES: tuple[Any, ...] = (
    *(0, -1, 1, 2**31, 2**53 - 1, 2**53, 2**63 - 1, 2**64 - 1, -(2**63), True, None, (), {}),
    *(0.0, -1.0, 1e-320, 1.7e308, math.inf, -math.inf, math.nan),
    *(b"", bytes(32), bytes(4000), "", "x" * 4000, "\x1b]0;x\x07", "<a href='x'>", "\ud7ff", [[[[]]]]),
)
HOWS = ("bytes", "bytes", "unsigned", "numbers", "recombined", "signed")


@dataclass
class Tally:
    """What came of hostile messages."""

    messages: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0


@dataclass(frozen=True)
class Hostile:
    """A hostile message; `forged` if nobody has signed what it says."""

    client: ClientId
    data: bytes
    kind: str
    forged: bool


def attack(tally: Tally, seed: int, count: int, bits: int = KEY_BITS) -> None:
    """Sends `count` hostile messages to one federation, half of them each way."""
    stage, rng = scene(*SCENES[seed % len(SCENES)], bits), np.random.default_rng(seed)
    group = GROUP if bits == KEY_BITS else 1
    with limited_memory():
        for first in range(0, count, group):
            began = time.process_time()
            for number in range(first, min(first + group, count)):
                if number % 2:
                    _to_server(tally, stage, rng)
                else:
                    _to_client(tally, stage, rng)
                tally.messages += 1
            spent = time.process_time() - began
            tally.slowest = max(tally.slowest, spent)
            if spent > SLOW:
                tally.problems.append(f"messages from {first} of seed {seed} took {spent:.2f} s of CPU")


@contextmanager
def limited_memory() -> Iterator[None]:
    """An allocation beyond `MEMORY` fails, and so becomes an internal-error."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


# Altering -----------------------------------------------------------------------------------------


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


def _altered_body(
    stage: Scene, body: Struct, data: bytes, rng: np.random.Generator, *, fields: bool
) -> bytes:
    """Other bytes; or, where they will be signed, mostly a body of the right form with another field."""
    if not fields or rng.integers(4) == 0:
        return altered(data, rng, [data])
    if rng.integers(3) == 0:
        return replaced_within(data, stage.keys, rng)
    if rng.integers(2) == 0:
        return msgspec.msgpack.encode(extreme(msgspec.msgpack.decode(data), rng))
    choices = [changed for _, changed in altered_fields(body)]
    try:
        return encode(choices[int(rng.integers(len(choices)))])
    except (OverflowError, ValueError, TypeError):
        return altered(data, rng, [data])


def extreme(value: Any, rng: np.random.Generator) -> Any:
    """Values as decoded, one of them replaced by what nobody would send; reports are bytes within a body."""
    if isinstance(value, list | dict) and value and rng.integers(8):
        key = (
            int(rng.integers(len(value)))
            if isinstance(value, list)
            else list(value)[int(rng.integers(len(value)))]
        )
        changed = value.copy()
        changed[key] = extreme(value[key], rng)
        return changed
    if isinstance(value, bytes) and value[:1] >= b"\x80" and rng.integers(4):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            inner = msgspec.msgpack.decode(value)
            if isinstance(inner, dict):
                return msgspec.msgpack.encode(extreme(inner, rng))
    return EXTREMES[int(rng.integers(len(EXTREMES)))]


def _recombined(parts: list[Signed], more: list[Signed], rng: np.random.Generator) -> tuple[Signed, ...]:
    pool = [*parts, *more]
    count = int(rng.choice([1, 2, 3, PARTS, PARTS + 1]))
    return tuple(pool[int(rng.integers(len(pool)))] for _ in range(count))


def _pick(rng: np.random.Generator, fresh: list[tuple[ClientId, bytes]], old: list[tuple[ClientId, bytes]]):
    """Mostly a message that is due."""
    source = old if rng.integers(4) == 0 else fresh
    return source[int(rng.integers(len(source)))]


# To CS --------------------------------------------------------------------------------------------


def _for_server(stage: Scene, rng: np.random.Generator) -> Hostile:
    client, message = _pick(rng, list(stage.fresh_up.items()), stage.old_up)
    how = HOWS[int(rng.integers(len(HOWS)))]
    if how == "bytes":
        others = [data for _, data in (*stage.old_up, *stage.old_down)]
        match int(rng.integers(8)):
            case 0:  # an old one again, or one of the server's own, or another client's
                name, data = [*stage.old_up, *stage.old_down][int(rng.integers(len(others)))]
                return Hostile(name, data, "up/again", forged=True)
            case 1:
                other = 1 + client % len(stage.clients)
                return Hostile(other, message, "up/in another's name", forged=True)
        data = altered(message, rng, others)
        return Hostile(client, data, "up/bytes", forged=data != message)
    suite = stage.client_suite(client)
    parts = list(stage.parts_of(client, message))
    kind = "delivery"
    forged = False
    if how == "recombined":
        giver, old = stage.old_up[int(rng.integers(len(stage.old_up)))]
        parts = list(_recombined(parts, list(stage.parts_of(giver, old)), rng))
    else:
        place = int(rng.integers(len(parts)))
        said = decode_client_body(parts[place].body)
        kind = kind_of(said)
        old = parts[place]
        if how == "numbers":
            parts[place] = Signed(old.body, replaced(old.signature, stage.keys, rng))
        else:
            body = _altered_body(stage, said, old.body, rng, fields=how == "signed")
            parts[place] = Signed(body, suite.sign(body) if how == "signed" else old.signature)
        forged = how != "signed" and parts[place] != old
    delivery = encode(Delivery(VERSION, tuple(parts)))
    box = suite.seal(delivery, associated_data(stage.small.federation_id, client))
    if how == "numbers" and rng.integers(2):
        wrong = replaced(box, stage.keys, rng)
        box, forged = wrong, forged or wrong != box
    return Hostile(client, encode(Sealed(VERSION, client, box)), f"up/{how}/{kind}", forged)


def _to_server(tally: Tally, stage: Scene, rng: np.random.Generator) -> None:
    hostile, server = _for_server(stage, rng), stage.server
    tally.kinds[hostile.kind] += 1
    rejected = len(server.rejections)
    try:
        server.receive(hostile.client, hostile.data)
    except Exception as error:
        tally.problems.append(f"CS raised {type(error).__name__} for {_shown(hostile)}")
        return
    reasons = [each.reason for each in server.rejections[rejected:] if each.at == "server"]
    tally.outcomes[reasons[0] if reasons else "taken"] += 1
    if "internal-error" in reasons:
        tally.problems.append(f"internal-error at CS for {_shown(hostile)}")
    changed = server.saved_state() != stage.state or bool(server._partial_sums)
    if hostile.forged and (not reasons or changed):
        tally.problems.append(f"a forgery was taken: {_shown(hostile)}")
    if not reasons or changed or "bad-report" in reasons:
        stage.forget_server()
    elif len(server.rejections) > 100:
        server.rejections.clear()


# To clients ---------------------------------------------------------------------------------------


def _for_client(stage: Scene, rng: np.random.Generator) -> Hostile:
    client, message = _pick(rng, list(stage.fresh_down.items()), stage.old_down)
    how = HOWS[int(rng.integers(len(HOWS)))]
    if how == "bytes":
        others = [data for _, data in (*stage.old_up, *stage.old_down)]
        if int(rng.integers(8)) == 0:
            _, data = [*stage.old_up, *stage.old_down][int(rng.integers(len(others)))]
            again = (client, data) in stage.old_down and client != BEHIND  # else it is late, not repeated
            return Hostile(client, data, "down/again", forged=again)
        data = altered(message, rng, others)
        return Hostile(client, data, "down/bytes", forged=data != message)
    parts = list(decode_delivery(message, len(message)).parts)
    if how == "recombined":
        _, old = stage.old_down[int(rng.integers(len(stage.old_down)))]
        parts = list(_recombined(parts, list(decode_delivery(old, len(old)).parts), rng))
        return Hostile(client, encode(Delivery(VERSION, tuple(parts))), "down/recombined", forged=False)
    place = int(rng.integers(len(parts)))
    said, old = decode_server_body(parts[place].body), parts[place]
    if how == "numbers":
        parts[place] = Signed(old.body, replaced(old.signature, stage.keys, rng))
    else:
        body = _altered_body(stage, said, old.body, rng, fields=how == "signed")
        parts[place] = Signed(body, stage.server_suite.sign(body) if how == "signed" else old.signature)
    forged = how != "signed" and parts[place] != old
    return Hostile(client, encode(Delivery(VERSION, tuple(parts))), f"down/{how}/{kind_of(said)}", forged)


def _to_client(tally: Tally, stage: Scene, rng: np.random.Generator) -> None:
    hostile = _for_client(stage, rng)
    tally.kinds[hostile.kind] += 1
    victim = stage.clients[hostile.client]
    model, latest = victim._model, dict(victim._latest)
    reply = victim.handle(hostile.data)
    if not reply:
        tally.problems.append(f"client {hostile.client} could not even refuse {_shown(hostile)}")
    refused = victim._refused[-1:]
    reason = refused[0] if refused else "taken"
    if tally.messages % 64 == 0 and refused:  # the refusal itself is a message of the protocol
        (said,) = stage.small.server.open(hostile.client, reply)
        if not isinstance(said, Refusal) or said.reason != reason:
            tally.problems.append(f"{reason} was not said, but {said!r:.200}, for {_shown(hostile)}")
    tally.outcomes[f"client: {reason}"] += 1
    if reason == "internal-error":
        tally.problems.append(f"internal-error at a client for {_shown(hostile)}")
    moved = victim._model is not model or victim._latest != latest
    if hostile.forged and (reason == "taken" or moved):
        tally.problems.append(f"a client took a forgery: {_shown(hostile)}")
    victim._refused.clear()
    if reason == "taken" or moved:
        stage.forget(hostile.client)


def _shown(hostile: Hostile) -> str:
    return f"{hostile.kind} {hostile.data.hex()[:200]}"


def megabytes() -> float:
    """The memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
