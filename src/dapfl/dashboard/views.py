"""What the live page receives: views of a run that are small and never hold a secret.

A view is built from the manifest and the records of rounds.jsonl by naming each field it takes. Whatever
else a run directory holds (keys, checkpoints) has no way into a view.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from dapfl.config import CryptoConfig
from dapfl.federation.keys.kdc import committee_of
from dapfl.federation.records import ClientRecord, RoundRecord, Status
from dapfl.reporting.palette import PHASES, STATUSES, Ink, capability_inks
from dapfl.runs.manifest import Manifest
from dapfl.runs.monitoring.devices import Device, Fleet
from dapfl.runs.monitoring.lost_work import by_reason
from dapfl.runs.results import resume_command

MOST_CLIENTS = 200  # that are sent; if there are more, those whose contribution was lost come first


class Facts(Struct, frozen=True):
    """What stays the same during a run, and its status."""

    directory: str
    status: str
    task: str
    setting: str
    seed: int
    planned_rounds: int | None
    clients: int | None
    created: str
    client_names: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]


class Event(Struct, frozen=True):
    """A message that was refused: when, whose, why, and by whom."""

    round: int
    client: int
    reason: str
    at: str


class Choice(Struct, frozen=True):
    """What the clients of one capability chose in a round, on average; None: all clients of a run on devices,
    which have no such figure."""

    capability: float | None
    eta: float | None
    alpha: float | None


class RoundView(Struct, frozen=True):
    """One round in the curves of the page."""

    round: int
    loss: float | None
    accuracy: float | None
    f1: float | None
    worst_accuracy: float | None
    metrics: dict[str, float | None]
    participants: int
    of: int
    violations: int
    rejected: int
    bytes_up: int
    bytes_down: int
    simulated_seconds: float | None
    epochs: int
    wasted_epochs: int
    decrypted_by: tuple[int, ...]
    seconds: dict[str, float]
    statuses: dict[str, int]
    lost: dict[str, int]
    choices: tuple[Choice, ...]
    events: tuple[Event, ...]


class ClientView(Struct, frozen=True):
    """One client's card."""

    id: int
    status: str
    capability: float | None
    samples: int | None
    eta: float | None
    alpha: int | None
    planned_alpha: int | None
    lambda_: float | None
    reward: float | None
    budget: float | None
    cost: float | None
    accuracy: float | None
    software: str | None
    device: Device | None = None  # in a deployment that is running
    last_contact: str | None = None


class Palette(Struct, frozen=True):
    """The colours that the page shares with the report."""

    statuses: dict[str, Ink]
    phases: tuple[Ink, ...]
    capabilities: dict[str, Ink]


def facts_of(directory: Path, manifest: Manifest) -> Facts:
    """The facts of a run that the page shows."""
    config, host = manifest.config, manifest.host
    crypto: Mapping[str, Any] = config.get("crypto") or {}
    parameters = manifest.task.parameters
    protection = "none (trial run)"
    if crypto.get("encryption", "paillier") == "paillier":
        protection = f"Paillier, {crypto.get('key_bits', '?')} bits, {crypto.get('envelope', '?')} envelope"
    adversaries = config.get("adversaries") or ()
    committee = crypto.get("decryption") == "committee" and protection.startswith("Paillier")
    rows = {
        "Continue": resume_command(directory) if manifest.status == "stopped" else "",
        "Model": f"{parameters:,} weights" if parameters else "",
        "Encryption": protection,
        "Decryption": _committee(config, crypto) if committee else "",
        "Codec": crypto.get("codec"),
        "Partition": config.get("partition"),
        "Clients per round": config.get("per_round"),
        "Engine": config.get("engine"),
        "Adversaries": ", ".join(adversaries),
        "Started": manifest.created.replace("T", " ").partition("+")[0],
        "Processor": host.cpu,
        "Cores": host.cores,
        "Python": host.python,
        "PyTorch": host.torch,
        "Dap-FL": f"{manifest.dapfl} {f'({manifest.commit})' if manifest.commit else ''}",
    }
    return Facts(
        directory=directory.name,
        status=manifest.status,
        task=Path(manifest.task_name).name,
        setting=manifest.setting,
        seed=manifest.seed,
        planned_rounds=manifest.planned_rounds,
        clients=config.get("clients") if isinstance(config.get("clients"), int) else None,
        created=manifest.created,
        client_names=manifest.client_names,
        rows=tuple((name, str(value).strip()) for name, value in rows.items() if value),
    )


def _committee(config: Mapping[str, Any], crypto: Mapping[str, Any]) -> str:
    """How a run's committee decrypts, in a few words."""
    names = ("committee_members", "committee_threshold")
    shape = CryptoConfig(**{name: crypto[name] for name in names if name in crypto})
    members, threshold = committee_of(config.get("clients", shape.committee_members), shape)
    return f"by any {threshold} of {members} clients"


def round_view(record: RoundRecord, capabilities: Mapping[int, float]) -> RoundView:
    """A round as the page's curves need it; `capabilities` is what clients reported in any round."""
    statuses: dict[str, int] = defaultdict(int)
    groups: dict[float | None, list[ClientRecord]] = defaultdict(list)
    for client in record.clients:
        statuses[client.status.kind.value] += 1
        if client.id in capabilities or not capabilities:
            groups[capabilities.get(client.id)].append(client)
    choices = tuple(
        Choice(
            capability,
            _geometric_mean([client.eta for client in groups[capability]]),
            _mean([client.alpha for client in groups[capability]]),
        )
        for capability in sorted(groups, key=lambda each: each or 0.0, reverse=True)
    )
    return RoundView(
        **{name: getattr(record, name) for name in RoundView.__struct_fields__ if hasattr(record, name)},
        of=len(record.clients),
        statuses=dict(statuses),
        lost=dict(by_reason([record])),
        choices=choices,
        events=tuple(Event(record.round, each.client, each.reason, each.at) for each in record.rejections),
    )


def _mean(values: list[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _geometric_mean(values: list[float | None]) -> float | None:
    known = [math.log(value) for value in values if value is not None and value > 0]
    return math.exp(sum(known) / len(known)) if known else None


def client_views(
    record: RoundRecord, capabilities: Mapping[int, float], fleet: Fleet | None = None, running: bool = False
) -> list[ClientView]:
    """The cards of the clients after a round, ordered by number."""
    devices = {device.client: device for device in fleet.devices} if fleet else {}
    order = {Status.ACCEPTED: 1, Status.UNSELECTED: 2}  # all others first: they are what one looks for
    clients = sorted(record.clients, key=lambda client: (order.get(client.status, 0), client.id))
    return [
        ClientView(
            **{
                name: getattr(client, name)
                for name in ClientView.__struct_fields__
                if name not in ("capability", "device", "last_contact") and hasattr(client, name)
            },
            capability=capabilities.get(client.id),
            device=devices.get(client.id) if running else None,  # nobody watches the devices of another run
            last_contact=devices[client.id].last_contact if client.id in devices else None,
        )
        for client in sorted(clients[:MOST_CLIENTS], key=lambda client: client.id)
    ]


def palette_of(capabilities: Mapping[int, float]) -> Palette:
    """The colours of a run's charts."""
    steps = capability_inks(sorted(set(capabilities.values())) or [1.0])
    named = {f"{step:g}" if capabilities else "all": ink for step, ink in steps.items()}
    return Palette(STATUSES, PHASES, named)
