"""Where a figure comes from: the machine and the source that made it."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path


def cpu_name() -> str:
    """What this machine's processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def installed_version() -> str | None:
    """The version of dapfl on this machine; None if it runs from a source tree that was never installed."""
    try:
        return importlib.metadata.version("dapfl")
    except importlib.metadata.PackageNotFoundError:
        return None


def source_commit() -> str | None:
    """The commit of the source tree that this package runs from, if it runs from one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
