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
from dapfl.federation.assembly import client_names
from dapfl.learning.layout import Layout
from dapfl.learning.runtime import build_model
from dapfl.learning.tasks import get_task
from dapfl.provenance import cpu_name, source_commit
from dapfl.runs.fingerprint import fingerprint_of
from dapfl.runs.manifest import Host, Manifest, TaskFacts
from dapfl.runs.settings import Resolved


def describe(config: RunConfig, resolved: Resolved, deployed: Deployed | None = None) -> Manifest:
    """Everything that will later tell where the results of this run come from."""
    model = build_model(get_task(config.task), config.seed)
    return Manifest(
        dapfl=__version__,
        command=tuple(sys.argv),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config=msgspec.to_builtins(config),
        policy=msgspec.to_builtins(resolved.policy),
        host=_host(config),
        commit=source_commit(),
        task=TaskFacts(config.task, type(model).__name__, Layout.of(model).size),
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
