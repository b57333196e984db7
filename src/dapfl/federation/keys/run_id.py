"""Which run of a federation a message belongs to.

The same keys may serve many runs. So every context names the run besides the federation: what was recorded
in one run is worthless in every other. An id begins with the time at which its run was started, so that later
runs have larger ids; a client that has seen a run never goes back to an earlier one.
"""

import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from dapfl.errors import KeyFileError
from dapfl.federation.messages import RUN_BYTES
from dapfl.system.files import replacing

_TIME_BYTES = 8  # microseconds since 1970, big-endian; the rest of an id is random


class BundleUse(msgspec.Struct, frozen=True):
    """A run that the keys of a server have served."""

    run: str
    started: str


def new_run_id(after: bytes = b"") -> bytes:
    """A fresh id, larger than the id of an earlier run even if the clock was set back since.

    >>> first = new_run_id()
    >>> len(first), new_run_id(after=first) > first
    (16, True)
    """
    now = time.time_ns() // 1000
    earliest = int.from_bytes(after[:_TIME_BYTES], "big") + 1
    return max(now, earliest).to_bytes(_TIME_BYTES, "big") + secrets.token_bytes(RUN_BYTES - _TIME_BYTES)


def uses_of(bundle: Path) -> list[BundleUse]:
    """The runs that a server's bundle has served, oldest first."""
    path = _note(bundle)
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[BundleUse])
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise KeyFileError(
            f"{path} is damaged: it lists the runs that {bundle.name} has served. Remove it if the clock of "
            "this machine is right."
        ) from None


def begin_run(bundle: Path) -> bytes:
    """The id of a new run with a server's bundle, noted beside the bundle before anything is signed."""
    uses = uses_of(bundle)
    run = new_run_id(max((bytes.fromhex(use.run) for use in uses), default=b""))
    uses.append(BundleUse(run.hex(), datetime.now(UTC).isoformat(timespec="seconds")))
    with replacing(_note(bundle), mode=0o600) as file:
        file.write(msgspec.json.format(msgspec.json.encode(uses)) + b"\n")
    return run


def _note(bundle: Path) -> Path:
    return bundle.with_name(f"{bundle.name}.runs")
