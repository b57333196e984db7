"""manifest.json: what a run is, where it came from, and whether it is still running.

Everything but the configuration has a default, so that the manifests of older versions stay readable. The
configuration stays as it was written: `dapfl.config.parse` turns it into a `RunConfig` where a run goes on.
"""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dapfl.engines.base import Deployed
from dapfl.errors import RunDirectoryError

FORMAT = 1
RunStatus = Literal["running", "finished", "stopped", "failed"]
"""`failed`: it went through its rounds, but nothing was ever aggregated, so there is no trained model."""
EXPECTED = "a run directory holds manifest.json and rounds.jsonl, as 'dapfl run --out DIR' writes them"


class TaskFacts(Struct, frozen=True, omit_defaults=True):
    """The task of a run, the class of its model, how many weights that has, and the training samples.

    `samples` is how many there are, `used` how many of them the clients have; none where only devices know.
    """

    name: str = ""
    model: str | None = None
    parameters: int | None = None
    samples: int | None = None
    used: int | None = None


class Host(Struct, frozen=True, omit_defaults=True):
    """The machine of a run and the versions of what it ran on; `engine` is the engine of the cryptography."""

    cpu: str | None = None
    cores: int | None = None
    platform: str | None = None
    python: str | None = None
    torch: str | None = None
    numpy: str | None = None
    engine: str | None = None


class Fingerprint(Struct, frozen=True, omit_defaults=True):
    """Hashes of what a run computes with, besides its configuration; empty for runs of version 0.1."""

    data: str = ""
    files: dict[str, str] = {}


class Event(Struct, frozen=True):
    """Something that happened to a run besides its rounds: extended, repaired, changed."""

    at: str
    what: str


class Manifest(Struct, frozen=True, kw_only=True):
    """The content of manifest.json."""

    format: int = FORMAT
    dapfl: str = ""
    command: tuple[str, ...] = ()
    created: str = ""
    config: dict[str, Any]
    policy: dict[str, Any] = {}
    host: Host = Host()
    commit: str | None = None
    task: TaskFacts = TaskFacts()
    client_names: tuple[str, ...] = ()
    status: RunStatus = "running"
    deployment: Deployed | None = None
    fingerprint: Fingerprint = Fingerprint()
    history: tuple[Event, ...] = ()

    @property
    def task_name(self) -> str:
        """The learning task, for instance `cnn-mnist`."""
        return self.task.name or str(self.config.get("task", "unknown task"))

    @property
    def setting(self) -> str:
        """The row of Table I, for instance `dap-fl`."""
        return str(self.config.get("setting", "unknown setting"))

    @property
    def seed(self) -> int:
        """The seed of every random stream of the run."""
        return int(self.config.get("seed", 0))

    @property
    def planned_rounds(self) -> int | None:
        """How many rounds the run was asked for."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def last_client(self) -> int | None:
        """Where there are attackers, they have the numbers after this one; None where all are clients, also
        those who came later."""
        clients = self.config.get("clients")
        return clients if self.config.get("adversaries") and isinstance(clients, int) else None

    def client_name(self, client: int) -> str:
        """What people call a client: by its name where the data have one, otherwise by its number."""
        named = 1 <= client <= len(self.client_names)
        return self.client_names[client - 1] if named else f"client {client}"

    def to_json(self) -> bytes:
        """The file's content."""
        values = msgspec.to_builtins(self)
        for name in ("deployment", "fingerprint", "history"):
            if not values[name]:
                del values[name]
        return json.dumps(values, indent=2).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes, path: Path) -> "Manifest":
        """The manifest that was read from `path`, which errors name."""
        try:
            written = msgspec.json.decode(content, type=_Format).format
            if written == FORMAT:
                return msgspec.json.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RunDirectoryError(f"{path} is not the manifest of a run ({error}): {EXPECTED}.") from None
        raise RunDirectoryError(
            f"{path} has format {written}, but this version of dapfl reads format {FORMAT}: upgrade dapfl."
        )


class _Format(Struct):
    """The one field that every format has."""

    format: int = FORMAT
