"""Whether a run that goes on is still the same run: its data, its files, its configuration."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dapfl.config import RunConfig, relocated
from dapfl.learning.runtime import task_runtime
from dapfl.learning.tasks import get_task
from dapfl.runs.manifest import Fingerprint
from dapfl.system.plugins import companions

# What may differ from session to session: it changes how long a run goes on, not what it computes.
_MAY_CHANGE = ("rounds", "workers", "log", "round_timeout", "wait")


def fingerprint_of(config: RunConfig) -> Fingerprint:
    """Of the task's training and test data, and of the user's own files (task, policy, weights, trace)."""
    data = task_runtime(get_task(config.task)).data
    hashed = hashlib.sha256()
    for array in (data.train_images, data.train_labels, data.test_images, data.test_labels):
        hashed.update(f"{array.dtype}{array.shape}".encode())
        for rows in (array[start : start + 4096] for start in range(0, len(array), 4096)):
            hashed.update(rows.tobytes())  # in parts: the data may be larger than memory
    files: dict[str, str] = {}

    def note(path: Path) -> Path:
        if path.is_file():
            for each in companions(path) if path.suffix == ".py" else (path,):
                files[str(each)] = hashlib.sha256(each.read_bytes()).hexdigest()
        return path

    relocated(config, note)
    return Fingerprint(hashed.hexdigest(), files)


def differences(then: Fingerprint, config: RunConfig) -> list[str]:
    """What has changed since the fingerprint was taken, in words."""
    if not then.data:
        return []
    now = fingerprint_of(config)
    changed = [f"the data of task {config.task}"] if now.data != then.data else []
    return changed + [path for path, digest in then.files.items() if now.files.get(path) != digest]


def config_hash(config: Mapping[str, Any]) -> bytes:
    """The hash of a configuration as the manifest keeps it, but for what may change."""
    kept = {name: value for name, value in msgspec.to_builtins(config).items() if name not in _MAY_CHANGE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).digest()
