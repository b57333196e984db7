"""What a run was: configuration, versions and host, as manifest.json tells it."""

import os
import platform
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import torch

from dapfl import __version__
from dapfl.config import RunConfig
from dapfl.crypto.engine import engine_named
from dapfl.experiments.settings import Resolved
from dapfl.learning.layout import Layout
from dapfl.learning.tasks import get_task
from dapfl.learning.workshop import build_model
from dapfl.provenance import cpu_name, source_commit


def describe(config: RunConfig, resolved: Resolved) -> dict[str, Any]:
    """The manifest of a run that begins now, on this machine."""
    model = build_model(get_task(config.task), config.seed)
    return {
        "dapfl": __version__,
        "command": sys.argv,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": msgspec.to_builtins(config),
        "policy": msgspec.to_builtins(resolved.policy),
        "host": _host(config),
        "commit": source_commit(),
        "task": {
            "name": config.task,
            "model": type(model).__name__,
            "parameters": Layout.of(model).size,
        },
        "status": "running",
    }


def _host(config: RunConfig) -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "engine": engine_named(config.crypto.engine).name,
    }
