"""What a run was: configuration, versions and host, as manifest.json tells it."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from dapfl import __version__
from dapfl.config import RunConfig
from dapfl.crypto.engine import engine_named
from dapfl.experiments.settings import Resolved
from dapfl.learning.sgd import initial_weights
from dapfl.learning.tasks import get_task


def describe(config: RunConfig, resolved: Resolved) -> dict[str, Any]:
    """The manifest of a run that begins now, on this machine."""
    return {
        "dapfl": __version__,
        "command": sys.argv,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": msgspec.to_builtins(config),
        "policy": msgspec.to_builtins(resolved.policy),
        "host": _host(config),
        "commit": source_commit(),
        "task": {"name": config.task, "parameters": len(initial_weights(get_task(config.task), config.seed))},
        "status": "running",
    }


def _host(config: RunConfig) -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "engine": engine_named(config.crypto.engine).name,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def source_commit() -> str | None:
    """The commit of the source tree that this package runs from, if it runs from one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
