"""Under load: what hostile uploads cost an honest round.

All clients and CS live in one process, and CPU time is measured, which other programs on the machine change
little. On two cores the clients share the cores, while CS opens uploads on one of them: so the CPU time
that hostile uploads take is compared with half of that of an honest round.
"""

import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from dapfl.config import RunConfig, override
from dapfl.crypto.envelope import envelope_named
from dapfl.engines.inline import InlineEngine
from dapfl.federation.keys.bundles import load_bundles
from dapfl.federation.messages import (
    VERSION,
    Delivery,
    Sealed,
    Signed,
    Upload,
    associated_data,
    encode,
)
from dapfl.federation.protection.paillier import PaillierClientSuite
from dapfl.federation.transport import Exchange
from dapfl.runs.session import start
from tests.soak.hostile import altered

FIRST = 2  # the first round that is attacked
KINDS = ("altered on the way", "of the round before", "signed by another", "signed, of another size")


@dataclass(frozen=True)
class Load:
    """CPU seconds of an honest round, and of the hostile uploads of a round."""

    honest: float
    hostile: float
    uploads: int
    upload_bytes: int
    refused: dict[str, int]

    @property
    def slowdown(self) -> float:
        """By how much the uploads prolong a round on two cores."""
        return self.hostile / (self.honest / 2)


def hostile_uploads(task: str, count: int, *, clients: int = 20, rounds: int = 4, **changes: Any) -> Load:
    """Rounds of a task at the default key size; from the third on each gets `count` hostile uploads."""
    config = override(
        RunConfig(),
        {
            "task": task,
            "setting": "fixed-capped",
            "eta": 0.05,
            "alpha": 1,
            "clients": clients,
            "rounds": rounds,
            **changes,
        },
    )
    honest: list[float] = []
    hostile: list[float] = []
    refused: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, start(config, Path(folder) / "run", inline=True) as session:
        federation: Any = session._federation
        server, engine = federation._server, cast(Any, session._engine)
        _, bundles = load_bundles(Path(folder) / "run" / "keys")
        suites = {
            client: PaillierClientSuite(
                bundle, envelope_named(config.crypto.envelope), server._parameters.codec
            )
            for client, bundle in bundles.items()
        }
        kept: dict[int, bytes] = {}  # what clients have uploaded in the round before
        attacked: set[int] = set()
        aside = 0.0  # CPU seconds of this round that are not those of an honest one

        def exchange(messages: Any, timeout: float, *_: Any) -> Exchange:
            nonlocal aside
            if server.round >= FIRST and server.round not in attacked:
                attacked.add(server.round)
                began = time.process_time()
                attempts = _uploads(server, suites, kept, count)
                rejected, made = len(server.rejections), time.process_time()
                for client, data in attempts:
                    server.receive(client, data)
                hostile.append(time.process_time() - made)
                refused.update(rejection.reason for rejection in server.rejections[rejected:])
                aside = time.process_time() - began
            replies, failures = InlineEngine.exchange(engine, messages, timeout)
            if server.round not in uploads:
                uploads.add(server.round)
                kept.update(replies)
            return Exchange(replies, failures)

        uploads: set[int] = set()
        engine.exchange = exchange
        began = time.process_time()
        for _ in session:
            honest.append(time.process_time() - began - aside)
            began, aside = time.process_time(), 0.0
        size = max(map(len, kept.values()))
    assert sum(refused.values()) == count * len(hostile), "a hostile upload was taken"
    return Load(float(np.median(honest[1:])), float(np.median(hostile)), count, size, dict(refused))


def _uploads(server: Any, suites: Any, kept: dict[int, bytes], count: int) -> list[tuple[int, bytes]]:
    """A quarter of each kind."""
    rng, made = np.random.default_rng(0), []
    clients = list(kept)
    opened = {client: server.opened(client, data) for client, data in kept.items()}
    for number in range(count):
        client = clients[number % len(clients)]
        other = clients[(number + 1) % len(clients)]
        data = kept[client]
        match number // len(clients) % len(KINDS):
            case 0:
                made.append((client, altered(data, rng, [data])[: len(data)]))
            case 1:
                made.append((client, data))
            case 2:
                parts = tuple(Signed(signed.body, suites[other].sign(b"x")) for signed, _ in opened[client])
                made.append((client, _sealed(server, suites[client], client, parts)))
            case _:
                made.append(
                    (
                        client,
                        _sealed(
                            server, suites[client], client, _resized(server, suites[client], opened[client])
                        ),
                    )
                )
    return made


def _resized(server: Any, suite: Any, opened: Any) -> tuple[Signed, ...]:
    """This client's last upload, for the open round, with a contribution that is one row short."""
    parts = []
    for signed, body in opened:
        if isinstance(body, Upload):
            context = msgspec.structs.replace(body.context, round=server.round)
            changed = encode(
                msgspec.structs.replace(
                    body, context=context, contribution=body.contribution[: -server.row_bytes]
                )
            )
            parts.append(Signed(changed, suite.sign(changed)))
        else:
            parts.append(signed)
    return tuple(parts)


def _sealed(server: Any, suite: Any, client: int, parts: tuple[Signed, ...]) -> bytes:
    box = suite.seal(encode(Delivery(VERSION, parts)), associated_data(server._federation, client))
    return encode(Sealed(VERSION, client, box))


if __name__ == "__main__":
    import json
    import logging
    import sys

    from dapfl.crypto.engines.base import set_threads

    logging.disable(logging.CRITICAL)
    set_threads(1)
    for name in sys.argv[1:]:
        load = hostile_uploads(name, 1000)
        print(name, json.dumps(vars(load)), f"slowdown {load.slowdown:.3f}", flush=True)
