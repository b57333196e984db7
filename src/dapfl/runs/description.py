"""The manifest of a run that begins now: its code, its machine and its model."""

import os
import platform
import sys
from datetime import UTC, datetime

import msgspec
import numpy as np
import torch

from dapfl import __version__
from dapfl.config import RunConfig
from dapfl.crypto.engines.base import engine_named
from dapfl.engines.base import Deployed
from dapfl.federation.run_terms import client_names, samples_used
from dapfl.learning.layout import Layout
from dapfl.learning.runtime import build_model
from dapfl.learning.tasks import get_task
from dapfl.runs.fingerprint import fingerprint_of
from dapfl.runs.manifest import Host, Manifest, TaskFacts
from dapfl.runs.settings import Resolved
from dapfl.system.provenance import cpu_name, source_commit


def describe(config: RunConfig, resolved: Resolved, deployed: Deployed | None = None) -> Manifest:
    """Everything that will later tell where the results of this run come from."""
    task = get_task(config.task)
    model = build_model(task, config.seed)
    used, samples = (None, None) if config.partition == "own" else samples_used(config)
    return Manifest(
        dapfl=__version__,
        command=tuple(sys.argv),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config=msgspec.to_builtins(config),
        policy=msgspec.to_builtins(resolved.policy),
        host=_host(config),
        commit=source_commit(),
        task=TaskFacts(task.name, type(model).__name__, Layout.of(model).size, samples, used),
        client_names=client_names(config),
        status="running",
        deployment=deployed,
        fingerprint=fingerprint_of(config),
    )


def _host(config: RunConfig) -> Host:
    return Host(
        cpu=cpu_name(),
        cores=os.cpu_count(),
        platform=platform.platform(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=np.__version__,
        engine=engine_named(config.crypto.engine).name,
    )
