"""How a run and its clients are doing, for the terminal, for scripts, and for Prometheus.

All of it is read from the run directory, so looking never disturbs a run.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from dapfl.federation.records import RoundRecord, Status
from dapfl.runs.monitoring.devices import Device, Fleet, read_fleet
from dapfl.runs.monitoring.lost_work import by_reason, reason_of, rounds_without_model
from dapfl.runs.monitoring.reasons import explain
from dapfl.runs.results import Run, resume_command

ALERT_AFTER = 3  # rounds in a row in which a client is lost
ALERT_SECONDS = 600  # for which a device is gone
Presence = Literal["in", "lost", "not called", "removed"]


class ClientStatus(Struct, frozen=True):
    """One client: what became of its last call, and for how many rounds it has been lost now."""

    client: int
    name: str
    presence: Presence
    reason: str | None
    lost_for: int
    last_in: int | None  # the last round that has a contribution of this client
    contributions: int
    alert: str | None
    software: str | None = None  # the version that its device reports
    device: Device | None = None  # in a deployment, while the run is running
    last_contact: str | None = None


class RunOverview(Struct, frozen=True):
    """A run at one moment."""

    directory: str
    status: str
    task: str
    setting: str
    rounds: int
    planned: int | None
    loss: float | None
    accuracy: float | None
    participants: int
    without_model: int
    rejected: int
    lost: dict[str, int]
    clients: tuple[ClientStatus, ...]
    alerts: tuple[str, ...]
    history: tuple[str, ...]
    to_continue: str | None
    deadline: str | None = None  # until when the devices that train now must have answered


def overview_of(run: Run) -> RunOverview:
    """What the records of a run say about it."""
    manifest, rounds = run.manifest, run.rounds
    fleet = read_fleet(run.path) or Fleet("")
    devices = {device.client: device for device in fleet.devices}
    running = manifest.status == "running"  # else nobody watches the devices
    everyone = sorted({*_clients(run), *devices})
    clients = tuple(_client(run, client, devices.get(client), running) for client in everyone)
    alerts = [client.alert for client in clients if client.alert]
    if manifest.status == "failed":
        alerts.insert(0, "nothing was ever aggregated: there is no trained model")
    if rounds and not rounds[-1].participants:
        alerts.insert(0, "the last round made no new model")
    return RunOverview(
        directory=str(run.path),
        status=manifest.status,
        task=manifest.task_name,
        setting=manifest.setting,
        rounds=len(rounds),
        planned=manifest.planned_rounds,
        loss=next((row.loss for row in reversed(rounds) if row.loss is not None), None),
        accuracy=next((row.accuracy for row in reversed(rounds) if row.accuracy is not None), None),
        participants=rounds[-1].participants if rounds else 0,
        without_model=len(rounds_without_model(rounds)),
        rejected=sum(row.rejected for row in rounds),
        lost=dict(by_reason(rounds, manifest.last_client).most_common()),
        clients=clients,
        alerts=tuple(alerts),
        history=tuple(f"{event.at} {event.what}" for event in manifest.history),
        to_continue=resume_command(run.path) if manifest.status == "stopped" else None,
        deadline=fleet.deadline if running else None,
    )


def _clients(run: Run) -> list[int]:
    """Every client that any round has called; attackers have the numbers after those of the clients."""
    found = {client.id for row in run.rounds for client in row.clients}
    most = run.manifest.last_client
    return sorted(client for client in found if most is None or client <= most)


def _client(run: Run, client: int, device: Device | None, running: bool) -> ClientStatus:
    seen = [(row.round, _status_in(row, client)) for row in run.rounds]
    now = seen[-1][1] if seen else Status.UNSELECTED
    taken = [t for t, status in seen if status == Status.ACCEPTED]
    called = [(t, status) for t, status in seen if status not in (None, Status.UNSELECTED)]
    lost_for = 0
    for _, status in reversed(called):
        if status == Status.ACCEPTED:
            break
        lost_for += 1
    removed = now is None and device is None  # a newcomer is watched before it is first called
    presence: Presence = "removed" if removed else "lost" if lost_for else "in" if taken else "not called"
    last = called[-1][1] if called else None
    reason = reason_of(last) if lost_for and last is not None else None
    name = run.manifest.client_name(client)
    alert = None
    if presence == "lost" and reason and lost_for >= ALERT_AFTER:
        alert = f"{name} has been lost for {lost_for} rounds ({reason}): {explain(reason).remedy}"
    elif device is not None and running and device.doing == "gone" and _age(device.since) >= ALERT_SECONDS:
        alert = f"{name} has been gone since {device.since}: {explain('offline').remedy}"
    reports = (each.software for row in reversed(run.rounds) for each in row.clients if each.id == client)
    return ClientStatus(
        client=client,
        name=name,
        presence=presence,
        reason=reason,
        lost_for=lost_for,
        last_in=taken[-1] if taken else None,
        contributions=len(taken),
        alert=alert,
        software=next((version for version in reports if version), None),
        device=device if running else None,
        last_contact=device.last_contact if device is not None else None,
    )


def _age(moment: str) -> float:
    """The seconds that have passed since."""
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()


def _status_in(row: RoundRecord, client: int) -> Status | None:
    return next((each.status for each in row.clients if each.id == client), None)


# Prometheus ------------------------------------------------------------------------------------


def metrics_of(run: Run) -> str:
    """The overview of a run in the text format of Prometheus."""
    overview, rounds = overview_of(run), run.rounds
    seconds: dict[str, float] = {}
    for row in rounds:
        for phase, spent in row.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    lines = [
        *_metric("running", "gauge", "Whether the run is running.", [("", overview.status == "running")]),
        *_metric("rounds_total", "counter", "Rounds that are complete.", [("", overview.rounds)]),
        *_metric("rounds_planned", "gauge", "Rounds that were asked for.", [("", overview.planned)]),
        *_metric(
            "rounds_without_model_total", "counter", "Without an aggregate.", [("", overview.without_model)]
        ),
        *_metric("participants", "gauge", "Contributions in the last model.", [("", overview.participants)]),
        *_metric("loss", "gauge", "Test loss of the last global model.", [("", overview.loss)]),
        *_metric("accuracy", "gauge", "Test accuracy of the last global model.", [("", overview.accuracy)]),
        *_metric("rejected_total", "counter", "Messages that were rejected.", [("", overview.rejected)]),
        *_metric(
            "lost_total",
            "counter",
            "Lost contributions.",
            [(_label("reason", r), n) for r, n in overview.lost.items()],
        ),
        *_metric(
            "client_lost_rounds",
            "gauge",
            "Rounds in a row in which a client has been lost.",
            [(_label("client", str(each.client)), each.lost_for) for each in overview.clients],
        ),
        *_metric(
            "device_connected",
            "gauge",
            "Whether a device is connected or trains.",
            [
                (_label("client", str(each.client)), each.device.doing in ("connected", "training"))
                for each in overview.clients
                if each.device is not None
            ],
        ),
        *_metric(
            "device_last_contact_seconds",
            "gauge",
            "When a device was last heard of, in seconds since 1970.",
            [
                (_label("client", str(each.client)), datetime.fromisoformat(each.last_contact).timestamp())
                for each in overview.clients
                if each.last_contact is not None
            ],
        ),
        *_metric(
            "device_info",
            "gauge",
            "The software of a device.",
            [
                (f'{{client="{each.client}",software="{each.software}"}}', 1)
                for each in overview.clients
                if each.software is not None
            ],
        ),
        *_metric(
            "seconds_total",
            "counter",
            "Time by phase.",
            [(_label("phase", p), s) for p, s in seconds.items()],
        ),
        *_metric(
            "bytes_total",
            "counter",
            "Traffic.",
            [
                (_label("direction", "up"), sum(row.bytes_up for row in rounds)),
                (_label("direction", "down"), sum(row.bytes_down for row in rounds)),
            ],
        ),
        *_metric("alerts", "gauge", "What an operator should look at.", [("", len(overview.alerts))]),
    ]
    return "\n".join(lines) + "\n"


def _metric(
    name: str, kind: str, words: str, samples: Iterable[tuple[str, float | bool | None]]
) -> list[str]:
    known = [f"dapfl_{name}{label} {float(value):.15g}" for label, value in samples if value is not None]
    return [f"# HELP dapfl_{name} {words}", f"# TYPE dapfl_{name} {kind}", *known] if known else []


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{name}="{escaped}"}}'
