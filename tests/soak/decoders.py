"""Whatever Dap-FL reads from a disk, damaged or made up: it is refused by name, or read.

`corpus/KIND/` keeps inputs: `seed-…` are good ones, the others were altered and each reached another place in
the code, or got another answer. `python -m tests.soak.decoders` makes the seeds anew; the soak's part
`decoders` alters what is in the corpus, and keeps what is new.
"""

import hashlib
import io
import json
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from dapfl.config import AgentConfig, CryptoConfig, PolicyConfig, ResourceConfig, load
from dapfl.crypto.keys import keyfile
from dapfl.engines.flower.deployment.folders import ClientFolder
from dapfl.errors import DapflError
from dapfl.federation.keys.bundles import load_bundle, load_bundles, save_bundle, save_bundles
from dapfl.federation.keys.kdc import generate
from dapfl.federation.keys.roster import SignedRoster
from dapfl.federation.keys.run_id import begin_run, uses_of
from dapfl.federation.keys.updates import ServerPart, ServerUpdate
from dapfl.learning.datasets.frames import read_frames
from dapfl.resources import MeasuredResources, TraceResources
from dapfl.runs.directory import Checkpoint, RunDirectory
from dapfl.runs.manifest import Manifest
from dapfl.runs.monitoring.devices import fleet_path, read_fleet
from dapfl.runs.results import RoundsReader, read_model
from dapfl.system.files import with_checksum
from dapfl.tuning import weights
from dapfl.tuning.build import build_policy
from tests.fake_runs import manifest, rounds
from tests.federation.small import Small, insecure_keys
from tests.learning.datasets.pickled_frames import frame, pickled
from tests.soak.hostile import altered, extreme

CORPUS = Path(__file__).parent / "corpus"
MOST = 16  # inputs of a kind that are kept
LARGEST = 12_000  # bytes of an input that is kept
SLOW = 2.0  # seconds of CPU that no file of these sizes may take
Form = Literal["json", "msgpack", "text", "bytes"]


@dataclass(frozen=True)
class Decoder:
    """How a kind of file is read, and what it is made of inside."""

    read: Callable[[Path], object]
    form: Form = "bytes"


@cache
def _small() -> Small:
    """A federation with the keys of the corpus, so that its saved states are of this federation."""
    return Small(standalone=True, keys=load_bundles(CORPUS / "keys", allow_insecure_small_keys=True))


def _policy() -> Any:
    return build_policy(PolicyConfig(kind="ddpg", agent=AgentConfig(hidden=(2,), warm_start=None)), 0, 1)


def _checkpoint(path: Path) -> None:
    directory = RunDirectory(path.parent)
    directory.checkpoint_path.parent.mkdir(exist_ok=True)
    directory.checkpoint_path.write_bytes(with_checksum(path.read_bytes()))
    directory.load()


def _at(name: str, read: Callable[[Path], object]) -> Callable[[Path], object]:
    """Reads a file that is found by its name in a folder."""

    def reader(path: Path) -> object:
        (path.parent / name).write_bytes(path.read_bytes())
        return read(path.parent)

    return reader


def _trace(path: Path) -> object:
    return TraceResources(path, 1).at(0)


def _measured(path: Path) -> object:
    resources = MeasuredResources(ResourceConfig(source="measured"))
    resources.restore(path.read_bytes())
    return resources.at(0)


DECODERS: Mapping[str, Decoder] = {
    "bundle": Decoder(lambda path: load_bundle(path, allow_insecure_small_keys=True), "json"),
    "private-key": Decoder(
        lambda path: keyfile.private_from_text(
            path.read_text("utf-8", "replace"), allow_insecure_small_keys=True
        ),
        "json",
    ),
    "public-key": Decoder(
        lambda path: keyfile.public_from_text(
            path.read_text("utf-8", "replace"), allow_insecure_small_keys=True
        ),
        "json",
    ),
    "checkpoint": Decoder(_checkpoint, "msgpack"),
    "manifest": Decoder(lambda path: Manifest.from_json(path.read_bytes(), path), "json"),
    "rounds": Decoder(lambda path: RoundsReader(path).read_new(), "json"),
    "devices": Decoder(_at(fleet_path(Path()).name, read_fleet), "json"),
    "model": Decoder(read_model),
    "configuration": Decoder(load, "text"),
    "client-settings": Decoder(_at("client.toml", lambda folder: ClientFolder(folder).settings()), "text"),
    "server-state": Decoder(lambda path: _small().server.restore(path.read_bytes()), "msgpack"),
    "federation-state": Decoder(lambda path: _small().federation.restore(path.read_bytes()), "msgpack"),
    "client-state": Decoder(lambda path: _small().parts[1].restore(path.read_bytes()), "msgpack"),
    "agent-state": Decoder(lambda path: _policy().restore(path.read_bytes()), "msgpack"),
    "agent-weights": Decoder(lambda path: weights.load.__wrapped__(str(path)), "msgpack"),
    "measurements": Decoder(_measured, "json"),
    "trace": Decoder(_trace, "text"),
    "roster": Decoder(lambda path: SignedRoster.from_bytes(path.read_bytes()), "msgpack"),
    "server-update": Decoder(ServerUpdate.read, "msgpack"),
    "bundle-uses": Decoder(_at("server.keys.runs", lambda folder: uses_of(folder / "server.keys")), "json"),
    "data-pickled-frames": Decoder(lambda path: read_frames(io.BytesIO(path.read_bytes()))),
}


# Trying --------------------------------------------------------------------------------------------


def inputs(kind: str) -> list[Path]:
    """What the corpus has of a kind of file."""
    return sorted((CORPUS / kind).iterdir())


def outcome(kind: str, data: bytes, folder: Path) -> str:
    """What comes of a file with this content: "read", or where and how it was refused.

    Any error but those with a sentence of our own is raised.
    """
    path = folder / "file"
    path.write_bytes(data)
    began = time.process_time()
    try:
        DECODERS[kind].read(path)
        said = "read"
    except DapflError as error:
        if len(str(error)) > 2000 or "Traceback" in str(error):
            raise AssertionError(f"no sentence for a person: {str(error)[:300]!r}") from error
        place = [f for f in traceback.extract_tb(error.__traceback__) if "/dapfl/" in f.filename][-1]
        text = re.sub(r"[0-9]+|'.*'|\".*\"", "#", str(error).replace(str(folder), ""))[:60]
        said = f"{Path(place.filename).name}:{place.lineno} {type(error).__name__} {text}"
    assert (spent := time.process_time() - began) < SLOW, f"{spent:.1f} s of CPU"
    return said


def mutated(kind: str, data: bytes, rng: np.random.Generator) -> bytes:
    """Other bytes; or, half of the time, a value of the right form with another one in it."""
    form = DECODERS[kind].form
    if rng.integers(2) and form in ("json", "msgpack"):
        try:
            if form == "msgpack":
                return msgspec.msgpack.encode(extreme(msgspec.msgpack.decode(data), rng))
            lines = data.splitlines() if kind == "rounds" else [data]
            place = int(rng.integers(len(lines)))
            lines[place] = json.dumps(_plain(extreme(json.loads(lines[place]), rng))).encode()
            return b"\n".join(lines) + b"\n"
        except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
            pass
    if rng.integers(2) and form == "text":
        lines = data.split(b"\n")
        place = int(rng.integers(len(lines)))
        key, mark, _ = lines[place].partition(b"=" if b"=" in data else b",")
        value = (
            b"-1",
            b"1e999",
            b"nan",
            b"[]",
            b"{}",
            b'""',
            b"9" * 30,
            b'"\\u0000"',
            b"true",
            b"2000-01-01",
        )
        lines[place] = key + mark + value[int(rng.integers(len(value)))]
        return b"\n".join(lines)
    return altered(data, rng, [data])


def _plain(value: Any) -> Any:
    """What JSON can say: bytes become text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


@dataclass
class Fuzzed:
    """What came of a fuzz."""

    inputs: int = 0
    new: int = 0
    problems: tuple[str, ...] = ()


def fuzz(kind: str, seed: int, count: int, keep: bool = True) -> Fuzzed:
    """Alters what the corpus has, and keeps what gets an answer that nothing in the corpus gets."""
    rng, known = np.random.default_rng(seed), [path.read_bytes() for path in inputs(kind)]
    problems: list[str] = []
    new = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen = {outcome(kind, data, folder) for data in known}
        for _ in range(count):
            data = mutated(kind, known[int(rng.integers(len(known)))], rng)
            try:
                said = outcome(kind, data, folder)
            except Exception as error:
                said = f"{type(error).__name__} at {traceback.extract_tb(error.__traceback__)[-1]}"
                problems.append(f"{kind}: {type(error).__name__}: {str(error)[:140]} for {data[:60].hex()}")
            if said not in seen and len(data) < LARGEST:
                seen.add(said)
                new += 1
                known.append(data)
                if keep and len(known) <= MOST:
                    (CORPUS / kind / f"found-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)
    return Fuzzed(count, new, tuple(problems))


# Seeds ---------------------------------------------------------------------------------------------


def make_seeds() -> None:
    """Good files of every kind, under keys that are too small for any use."""
    save_bundles(CORPUS / "keys", *insecure_keys(4, bits=256))
    small = _small()
    small.play(2)
    assert small.keys is not None
    policy, pickles = _policy(), {1: [frame({"x": np.array([0.5, 1.5]), "label": np.array([3, 4])})]}
    committee = generate(
        4, CryptoConfig(key_bits=256, allow_insecure_small_keys=True, decryption="committee")
    )
    learned = weights.Weights(
        state="paper", hidden=(2,), activation="relu", axes={}, actor=bytes(8), critics=(bytes(8),)
    )
    model = io.BytesIO()
    np.savez(model, **{"linear.weight": np.ones((2, 3), np.float32), "linear.bias": np.zeros(2, np.float32)})
    config = b'task = "logistic-mnist"\nrounds = 3\n[crypto]\nkey_bits = 2048\n[policy]\nkind = "fixed"\n'
    seeds: dict[str, list[bytes]] = {
        "checkpoint": [
            msgspec.msgpack.encode(Checkpoint(1, b"server", {1: b"client"}, [b'{"round":0}'])),
        ],
        "manifest": [json.dumps(manifest()).encode()],
        "rounds": [b"".join(json.dumps(line).encode() + b"\n" for line in rounds(count=2, clients=2))],
        "devices": [
            b'{"at":"2026-11-18T00:00:00+00:00","devices":[{"client":1,"doing":"training","since":"2026-11-18"}]}'
        ],
        "model": [model.getvalue()],
        "configuration": [config],
        "client-settings": [b"client = 1\n[run]\n" + config.split(b"[")[0] + b'[policy]\nkind = "fixed"\n'],
        "server-state": [small.server.saved_state()],
        "federation-state": [small.federation.saved_state()],
        "client-state": [small.parts[1].saved_state()],
        "agent-state": [policy.saved_state()],
        "agent-weights": [msgspec.msgpack.encode(learned)],
        "measurements": [b'{"epoch_seconds": [0.5, 1.0], "transfer_seconds": [0.25]}'],
        "trace": [b"round,client,budget,epoch_cost,transfer_cost\n0,1,20,1,1\n1,1,10,1,1\n"],
        "roster": [SignedRoster(b"a roster" * 4, b"a signature" * 4).to_bytes()],
        "data-pickled-frames": [pickled(pickles)],
        "server-update": [
            ServerUpdate(
                roster=b"roster", server=ServerPart(decryption={"pk_cs_enc": "text"}, keys={5: "text"})
            ).to_bytes()
        ],
        "private-key": [keyfile.to_text(small.keys[0].sk_cs_sign).encode()],
        "public-key": [keyfile.to_text(small.keys[0].pk_cs_enc).encode()],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = folder / "server.keys"
        contents = []
        for each in (small.keys[0], small.keys[1][1], committee[0], committee[1][1]):
            save_bundle(bundle, each)
            contents.append(bundle.read_bytes())
        seeds["bundle"] = contents
        begin_run(bundle)
        seeds["bundle-uses"] = [next(p for p in folder.iterdir() if p != bundle).read_bytes()]
    for kind, found in seeds.items():
        (CORPUS / kind).mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(found):
            (CORPUS / kind / f"seed-{number}").write_bytes(data)


if __name__ == "__main__":
    make_seeds()
    sys.exit(0)
