"""Files that were damaged, or that somebody has made up, are refused by name."""

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapfl.config import load
from dapfl.errors import DapflError
from dapfl.federation.keys.bundles import load_bundle, save_bundle
from dapfl.federation.keys.roster import SignedRoster
from dapfl.learning.datasets.frames import read_frames
from dapfl.runs.directory import Checkpoint, RunDirectory
from dapfl.runs.manifest import Manifest
from dapfl.runs.results import RoundsReader
from tests.fake_runs import manifest
from tests.federation.small import Small
from tests.learning.datasets.pickled_frames import frame, pickled
from tests.soak.hostile import altered


@cache
def small() -> Small:
    made = Small(standalone=True)
    made.play(1)
    return made


def bundle(path: Path) -> bytes:
    keys = small().keys
    assert keys is not None
    save_bundle(path, keys[1][1])
    return path.read_bytes()


def checkpoint(path: Path) -> None:
    directory = RunDirectory(path.parent)
    directory.checkpoint_path.parent.mkdir(exist_ok=True)
    directory.checkpoint_path.write_bytes(path.read_bytes())
    directory.load()


FILES: dict[str, tuple[Callable[[Path], bytes], Callable[[Path], object]]] = {
    "bundle": (bundle, lambda path: load_bundle(path, allow_insecure_small_keys=True)),
    "checkpoint": (
        lambda _: msgspec.msgpack.encode(Checkpoint(1, b"server", {1: b"client"}, [b'{"round":0}'])),
        checkpoint,
    ),
    "manifest": (
        lambda _: json.dumps(manifest()).encode(),
        lambda path: Manifest.from_json(path.read_bytes(), path),
    ),
    "rounds": (
        lambda _: ROUND,
        lambda path: RoundsReader(path).read_new(),
    ),
    "configuration": (
        lambda _: CONFIGURATION,
        load,
    ),
    "server state": (
        lambda _: small().server.saved_state(),
        lambda path: Small(standalone=True).server.restore(path.read_bytes()),
    ),
    "federation state": (
        lambda _: small().federation.saved_state(),
        lambda path: Small(standalone=True).federation.restore(path.read_bytes()),
    ),
    "client state": (
        lambda _: small().parts[1].saved_state(),
        lambda path: Small(standalone=True).parts[1].restore(path.read_bytes()),
    ),
}
FILES["roster"] = (
    lambda _: SignedRoster(b"a roster" * 20, b"a signature" * 20).to_bytes(),
    lambda path: SignedRoster.from_bytes(path.read_bytes()),
)
FILES["data: pickled frames"] = (
    lambda _: pickled({1: [frame({"x": np.array([0.5, 1.5]), "label": np.array([3, 4])})]}),
    lambda path: read_frames(io.BytesIO(path.read_bytes())),
)
CONFIGURATION = b'task = "logistic-mnist"\nrounds = 3\n[crypto]\nkey_bits = 2048\n'
ROUND = b'{"round":0,"loss":0.5,"seconds":{"total":1.0},"clients":[{"id":1,"status":"accepted","eta":0.1}]}\n'


@pytest.mark.parametrize("name", FILES)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_refused_by_name_or_read(name: str, seed: int, tmp_path: Path) -> None:
    make, read = FILES[name]
    path = tmp_path / "file"
    good = make(path)
    path.write_bytes(altered(good, np.random.default_rng(seed), [good]))
    try:
        read(path)
    except DapflError as error:
        assert len(str(error)) < 2000 and "Traceback" not in str(error)
