"""A resumed run is the same run, or says that it is not."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from dapfl.config import RunConfig, override
from dapfl.errors import ConfigError, DamagedFile, NothingLearned, RunDirectoryError
from dapfl.federation.server_state.state_file import StateFile
from dapfl.learning.tasks import Task, register
from dapfl.runs.directory import RunDirectory
from dapfl.runs.session import resume, start
from dapfl.system import files
from dapfl.system.files import TwoGenerations
from tests.engines.tiny_task import TASK, load
from tests.runs.faulty_tasks import NAN_LOSS

SMALL = override(
    RunConfig(),
    {"clients": 3, "rounds": 4, "mean_samples": 60, "std_samples": 5, "crypto.encryption": "none"},
)
ENCRYPTED = {
    "crypto.encryption": "paillier",
    "crypto.key_bits": 512,
    "crypto.allow_insecure_small_keys": True,
}


def config(task: Task = TASK, **changes: object) -> RunConfig:
    return override(SMALL, {"task": register(task), **changes})


def run(chosen: RunConfig, path: Path, until: int | None = None) -> Path:
    """A run, stopped after so many rounds."""
    with start(chosen, path, inline=True) as session:
        for record in session:
            if record.round + 1 == until:
                break
    return path


def resumed(path: Path, **options: object) -> Path:
    with resume(path, inline=True, **options) as session:
        list(session)
    return path


def model(path: Path) -> bytes:
    with np.load(path / "model.npz") as tensors:
        return b"".join(tensors[name].tobytes() for name in tensors.files)


def lines(path: Path) -> list[dict[str, object]]:
    found = [json.loads(line) for line in (path / "rounds.jsonl").read_bytes().splitlines()]
    return [{**line, "seconds": None} for line in found]


def history(path: Path) -> str:
    return "\n".join(event.what for event in RunDirectory(path).read_manifest().history)


@pytest.mark.parametrize(
    "changes",
    [
        {"setting": "dap-fl-paper"},
        {"setting": "dap-fl-paper", "crypto.codec": "compact", **ENCRYPTED},
        {"setting": "ddpg-client", "per_round": None},
        {"setting": "fixed-capped", "eta": 0.1, "alpha": 2, "per_round": 2, "min_cohort": 2},
    ],
    ids=["agents", "encrypted", "selection", "few a round"],
)
def test_an_extended_run_is_a_longer_run_from_the_start(changes: dict[str, object], tmp_path: Path) -> None:
    chosen = config(**changes)
    whole = run(override(chosen, {"rounds": 6}), tmp_path / "whole")
    path = run(override(chosen, {"rounds": 2}), tmp_path / "run")
    resumed(path, rounds=3)
    resumed(path, rounds=6)
    assert model(path) == model(whole)
    assert lines(path) == lines(whole)
    assert history(path).splitlines() == ["extended from 2 to 3 rounds", "extended from 3 to 6 rounds"]


def test_a_running_federation_is_extended_too(tmp_path: Path) -> None:
    whole = run(config(setting="dap-fl-paper", rounds=5), tmp_path / "whole")
    path = run(config(setting="dap-fl-paper"), tmp_path / "run", until=2)
    assert model(resumed(path, rounds=5)) == model(whole)


def test_what_is_over_says_how_to_extend_it(tmp_path: Path) -> None:
    path = run(config(rounds=2), tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=r"finished after 2 rounds.*--resume .* --rounds 4"):
        resume(path)
    with pytest.raises(RunDirectoryError, match="finished after 2 rounds"):
        resume(path, rounds=2)
    with pytest.raises(ConfigError, match="2 rounds already"):
        resume(path, rounds=1)


def test_a_failed_run_can_be_tried_further(tmp_path: Path) -> None:
    with pytest.raises(NothingLearned, match="None of the 2"):
        run(config(NAN_LOSS, rounds=2), tmp_path / "run")
    with pytest.raises(NothingLearned, match="None of the 3"):
        resumed(tmp_path / "run", rounds=3)


def test_a_run_whose_newest_checkpoint_is_damaged_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = run(config(), tmp_path / "whole")
    path = run(config(), tmp_path / "run", until=3)
    checkpoint = RunDirectory(path).checkpoint_path
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 8
    checkpoint.write_bytes(content)
    assert model(resumed(path)) == model(whole)
    assert lines(path) == lines(whole)
    assert "checksum" in history(path)


def changed_data() -> Task:
    data = load()
    data.test_images[0] += 1
    return dataclasses.replace(TASK, load_data=lambda: data)


def test_data_that_changed_are_refused_unless_that_is_accepted(tmp_path: Path) -> None:
    path = run(config(), tmp_path / "run", until=2)
    register(changed_data())
    try:
        with pytest.raises(RunDirectoryError, match=r"the data of task tiny changed.*--accept-changes"):
            resume(path, inline=True)
        resumed(path, accept_changes=True)
        assert "although the data of task tiny changed" in history(path)
    finally:
        register(TASK)


def test_code_that_changed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text("from tests.engines.tiny_task import TASK\n")
    path = run(override(SMALL, {"task": f"{file}:TASK"}), tmp_path / "run", until=2)
    file.write_text("from tests.engines.tiny_task import TASK  # changed\n")
    with pytest.raises(RunDirectoryError, match=f"{file} changed"):
        resume(path, inline=True)


def test_a_configuration_that_changed_is_named(tmp_path: Path) -> None:
    path = run(config(), tmp_path / "run", until=2)
    manifest = path / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace('"batch_size": 32,\n    "eta"', '"batch_size": 16,\n    "eta"')
    )
    with pytest.raises(RunDirectoryError, match=r"the configuration in manifest\.json changed"):
        resume(path, inline=True)


def test_a_run_without_its_keys_cannot_go_on(tmp_path: Path) -> None:
    path = run(config(**ENCRYPTED), tmp_path / "run", until=2)
    for file in (path / "keys").iterdir():
        file.unlink()
    with (
        pytest.raises(RunDirectoryError, match="keys of this run are not in"),
        resume(path, inline=True),
    ):
        pass
    assert RunDirectory(path).read_manifest().status == "stopped"


# Files with checksums ---------------------------------------------------------------------------


def test_a_state_file_notices_damage(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state")
    assert file.read() is None
    file.write(b"the state")
    assert file.read() == b"the state"
    file.path.write_bytes(file.path.read_bytes().replace(b"state", b"State"))
    with pytest.raises(DamagedFile, match="checksum"):
        file.read()


def test_two_generations_survive_the_loss_of_either(tmp_path: Path) -> None:
    file = TwoGenerations(tmp_path / "client.state")
    assert file.load() is None
    file.save(b"first")
    file.save(b"second")
    loaded = file.load()
    assert loaded is not None and (loaded.content, loaded.fault) == (b"second", None)
    assert file.path.stat().st_mode & 0o777 == file.previous.stat().st_mode & 0o777 == 0o600
    file.path.unlink()
    loaded = file.load()
    assert loaded is not None and loaded.content == b"first" and "missing" in str(loaded.fault)
    file.save(b"third")
    file.save(b"fourth")
    for path in (file.path, file.previous):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match=r"client\.state is damaged.*client\.previous\.state is damaged"):
        file.load()


def test_a_damaged_generation_never_takes_the_place_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if the next version cannot be written."""
    file = TwoGenerations(tmp_path / "client.state")
    for content in (b"first", b"second"):
        file.save(content)
    file.path.write_bytes(file.path.read_bytes()[:-1])
    for fault in ("damaged", "missing"):  # as long as nothing newer was saved, there is a fault
        loaded = file.load()
        assert loaded is not None and loaded.content == b"first" and fault in str(loaded.fault)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(files, "replacing", full_disk)
        file.save(b"third")
    loaded = file.load()
    assert loaded is not None and loaded.content == b"first"
    file.save(b"third")
    file.path.unlink()
    loaded = file.load()
    assert loaded is not None and loaded.content == b"first"


def full_disk(path: Path, mode: int) -> None:
    raise OSError("the disk is full")
