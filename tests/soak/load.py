"""Under load: what hostile messages cost an honest round, on the way by which engines bring replies to CS.

All clients and CS live in one process, and CPU time is measured, which other programs on the machine change
little. Every second round some enrolled clients and many strangers flood CS; in the others they are silent.
On two cores the clients share the cores, while CS opens uploads on one of them: so the CPU time that hostile
messages take is compared with half of that of an honest round.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from dapfl.config import RunConfig, override
from dapfl.federation.messages import VERSION, Delivery, Sealed, Signed, Upload, associated_data, encode
from dapfl.federation.transport import Arrival, ClientId, Exchange
from dapfl.runs.session import start
from tests.soak.hostile import altered

FLOODERS = 5  # enrolled clients that send nothing but hostile messages, in attacked rounds
STRANGERS = 10**6  # ids from here on are nobody's
LOOKED_AT = 20  # messages of each kind that are opened one by one, to see what that would take
KINDS = ("of strangers", "malformed", "signed", "again")


@dataclass
class Load:
    """Seconds of CPU: of whole honest rounds, and of CS in rounds without and with a flood."""

    messages: int
    honest: list[float] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)
    flooded: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    opened: dict[str, float] = field(default_factory=dict)  # what it takes to open one of each kind

    @property
    def slowdown(self) -> float:
        """By how much the flood prolongs a round on two cores."""
        more = float(np.median(self.flooded) - np.median(self.calm))
        return max(more, 0.0) / (float(np.median(self.honest)) / 2)


class Flood:
    """A transport over which hostile messages come among the honest ones, every second round."""

    def __init__(self, engine: Any, server: Any, honest: int, messages: int) -> None:
        self.engine, self.server, self.messages = engine, server, messages
        self.honest = range(1, honest + 1)
        self.rng = np.random.default_rng(0)
        self.kept: dict[ClientId, bytes] = {}  # the last upload of each client
        self.clients, self.attackers = 0.0, 0.0  # seconds that were theirs

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival) -> Exchange:
        """Clients are called one after the other. The flooders take part in the first round only."""
        began = time.process_time()
        playing = [client for client in messages if client in self.honest or self.server.round == 0]
        replies = {client: self.engine.clients[client].handle(messages[client]) for client in playing}
        self.clients += time.process_time() - began
        events = list(replies.items())
        if is_flooded(self.server.round) and not self.server.memory.ledger.closed:
            began = time.process_time()
            events += [event for kind in KINDS[:-1] for event in self.attack(kind)]
            self.rng.shuffle(cast(Any, events))
            events += self.attack(KINDS[-1])  # after the first: nobody else speaks in a client's name
            self.attackers += time.process_time() - began
        self.kept.update(replies)
        for client, data in events:
            arrived(client, data)
        return Exchange({}, {client: "offline" for client in messages if client not in replies})

    def attack(self, kind: str) -> list[tuple[ClientId, bytes]]:
        """A fourth of the messages."""
        flooders = [client for client in self.kept if client not in self.honest]
        signed = {client: self.resized(client) for client in flooders} if kind == "signed" else {}
        made: list[tuple[ClientId, bytes]] = []
        for number in range(self.messages // len(KINDS)):
            client = flooders[number % len(flooders)]
            data = self.kept[client]
            match kind:
                case "of strangers":
                    made.append((STRANGERS + number, data))
                case "malformed":
                    made.append((client, altered(data, self.rng, [data])[: len(data)]))
                case "signed":
                    made.append((client, signed[client]))
                case _:
                    client = self.honest[number % len(self.honest)]
                    made.append((client, self.kept[client]))
        return made

    def resized(self, client: ClientId) -> bytes:
        """This client's last upload, for the open round, with a contribution that is one row short."""
        suite, parts = self.engine.clients[client]._suite, []
        for signed, body in self.server.opened(client, self.kept[client]):
            if isinstance(body, Upload):
                context = msgspec.structs.replace(body.context, round=self.server.round)
                short = body.contribution[: -self.server.row_bytes]
                changed = encode(msgspec.structs.replace(body, context=context, contribution=short))
                parts.append(Signed(changed, suite.sign(changed)))
            else:
                parts.append(signed)
        delivery = encode(Delivery(VERSION, tuple(parts)))
        box = suite.seal(delivery, associated_data(self.server._federation, client))
        return encode(Sealed(VERSION, client, box))


def is_flooded(t: int) -> bool:
    """Whether a round is attacked: the third, the fifth, ..."""
    return t > 0 and t % 2 == 0


def hostile_messages(task: str, count: int, *, clients: int = 20, rounds: int = 9, **changes: Any) -> Load:
    """Rounds of a task at the default key size; every second one from the third on is flooded."""
    settings = {"setting": "fixed-capped", "eta": 0.05, "alpha": 1, "clients": clients + FLOODERS}
    config = override(RunConfig(), {"task": task, "rounds": rounds, **settings, **changes})
    load = Load(count)
    with tempfile.TemporaryDirectory() as folder, start(config, Path(folder) / "run", inline=True) as session:
        federation, engine = cast(Any, session._federation), cast(Any, session._engine)
        flood = Flood(engine, federation._server, clients, count)
        federation._transport = flood
        began = time.process_time()
        for record in session:
            total = time.process_time() - began - flood.attackers
            of_server = total - flood.clients
            flood.clients = flood.attackers = 0.0
            assert set(record.cohort) >= set(flood.honest), record.rejections
            if is_flooded(record.round):
                assert set(record.cohort) == set(flood.honest), "a hostile upload was taken"
                load.flooded.append(of_server)
                load.refused.update(rejection.reason for rejection in record.rejections)
            elif record.round:
                load.honest.append(total)
                load.calm.append(of_server)
            began = time.process_time()
        for kind in KINDS:
            messages = flood.attack(kind)[:LOOKED_AT]
            began = time.process_time()
            for message in messages:
                federation._server.open_each([message])
            load.opened[kind] = (time.process_time() - began) / len(messages)
    return load


if __name__ == "__main__":
    import json
    import logging
    import sys

    from dapfl.crypto.engines.base import set_threads

    logging.disable(logging.CRITICAL)
    set_threads(1)
    for name in sys.argv[1:]:
        load = hostile_messages(name, 1000)
        print(name, json.dumps(vars(load)), f"slowdown {load.slowdown:.3f}", flush=True)
