"""What Dap-FL adds to a round on Flower, beside a trivial app on the same nodes in the same run.

    python benchmarks/flower_overhead.py [--clients 3] [--rounds 5] [--task cnn-mnist] [--key-bits 2048]

Rounds of Dap-FL take turns with exchanges of an app whose clients send back what they get. What is left of a
round after that floor and after the slowest client's own work (which it reports) is overhead.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from dapfl.config import RunConfig, override
from dapfl.engines.flower.bridge import Bridge
from dapfl.engines.flower.control import APP
from dapfl.engines.flower.engine import FlowerEngine, open_here
from dapfl.experiments.settings import resolve
from dapfl.federation.assembly import Keys, build_federation, make_keys
from dapfl.federation.records import RoundRecord

TRIVIAL = {
    "pyproject.toml": APP["pyproject.toml"]
    .replace(b'"dapfl-run"', b'"floor"')
    .replace(b"dapfl.engines.flower.client_app:app", b"floor.client:app"),
    "floor/__init__.py": b"",
    "floor/client.py": b"""\
from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
""",
}


def floor_of(bridge: Bridge, clients: int) -> float:
    """Seconds of one exchange with clients that do nothing."""
    began = time.perf_counter()
    replies, failures = bridge.exchange(dict.fromkeys(range(1, clients + 1), b"nothing"), 300)
    assert len(replies) == clients, failures
    return time.perf_counter() - began


def work_of(record: RoundRecord, clients: int) -> float:
    """The clients' own seconds: they share this machine's cores, so all of them count towards a round."""
    spent = sum(seconds for phase, seconds in record.seconds.items() if phase.startswith("client_"))
    return spent / min(clients, 2)


def measure(config: RunConfig, engine: FlowerEngine, keys: Keys, trivial: Bridge) -> dict[str, float]:
    """Medians in seconds."""
    federation = build_federation(config, "all", keys.server, engine, carried=True)
    floors, exchanges, works = [], [], []
    floor_of(trivial, config.clients)  # Flower installs the app at its first message
    for record in federation.rounds(config.rounds):
        floors.append(floor_of(trivial, config.clients))
        exchanges.append(record.seconds["exchange"])
        works.append(work_of(record, config.clients))
        print(
            f"round {record.round}: {exchanges[-1]:.2f} s, work {works[-1]:.2f} s, floor {floors[-1]:.2f} s"
        )
    # The first round starts the workers, the last is scored in an exchange of its own.
    inner = slice(1, -1)
    floor, exchange, work = (statistics.median(each[inner]) for each in (floors, exchanges, works))
    return {"floor": floor, "exchange": exchange, "work": work, "overhead": exchange - floor - work}


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--task", default="cnn-mnist")
    parser.add_argument("--key-bits", type=int, default=2048)
    args = parser.parse_args()
    changes = {
        "clients": args.clients,
        "rounds": args.rounds,
        "task": args.task,
        "crypto.key_bits": args.key_bits,
    }
    config = override(RunConfig(), changes | {"engine": "flower"})
    keys = make_keys(config)
    with tempfile.TemporaryDirectory() as folder:
        engine = open_here(Path(folder), config, resolve(config).policy, keys.clients)
        with engine, Bridge(engine.server.bridge) as trivial:
            engine.control.start(engine.server, TRIVIAL)
            trivial.accept(120)
            print(json.dumps(measure(config, engine, keys, trivial)))


if __name__ == "__main__":
    main()
