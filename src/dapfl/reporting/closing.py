"""What `dapfl run` says at its end, in a few lines."""

from dapfl.reporting.columns import (
    ACCURACY,
    ACCURACY_SPREAD,
    BEST_ACCURACY,
    BYTES_DOWN,
    BYTES_UP,
    EPOCHS,
    F1,
    LOSS,
    PARTICIPANTS,
    REJECTED,
    VIOLATIONS,
    WASTED_EPOCHS,
    WORST_ACCURACY,
    Column,
    own_metrics,
)
from dapfl.runs.monitoring.lost_work import called_in, lost_work, rounds_without_model
from dapfl.runs.results import Run

_MOST_LOST = 20  # clients with a line of their own


def closing_rows(run: Run, seconds: float) -> list[tuple[str, str, str]]:
    """The rows of the closing table: a name, the main figure, and what goes with it.

    `seconds` is how long this session took.
    """

    def percent(column: Column[Run]) -> str:
        value = column.value(run)
        return "?" if value is None else f"{100 * value:.2f} %"

    def megabytes(column: Column[Run]) -> str:
        return f"{(column.value(run) or 0) / 1e6:.1f} MB"

    loss = LOSS.value(run)
    called = sum(len(called_in(record, run.manifest.last_client)) for record in run.rounds)
    last_round = run.rounds[-1].seconds.get("total", 0.0)
    lost = f"{VIOLATIONS.value(run)} over budget, {REJECTED.value(run)} messages rejected"
    worst = percent(WORST_ACCURACY)
    spread = ACCURACY_SPREAD.value(run)
    apart = None if spread is None else f"of the clients; spread {100 * spread:.2f} points"
    fairness = [("worst tenth", worst, apart)] if apart else []
    quality = [("test loss", "?" if loss is None else f"{loss:.4f}", "")]
    if loss is None or ACCURACY.value(run) is not None:  # a task without classes has a loss alone
        quality = [
            ("test accuracy", percent(ACCURACY), f"best {percent(BEST_ACCURACY)}"),
            (*quality[0][:2], f"macro-F1 {percent(F1)}"),
        ]
    return [
        *quality,
        *((column.title, column.cell([run]), "the task's own measure") for column in own_metrics([run])),
        *fairness,
        *_data_rows(run),
        ("contributions", f"{PARTICIPANTS.value(run)} of {called}", lost),
        ("local epochs", f"{EPOCHS.value(run)}", f"{WASTED_EPOCHS.value(run)} of them wasted"),
        ("traffic", f"{megabytes(BYTES_UP)} up", f"{megabytes(BYTES_DOWN)} down"),
        ("time", f"{seconds:.0f} s", f"{last_round:.1f} s for the last round"),
        *_lost_rows(run),
    ]


def _data_rows(run: Run) -> list[tuple[str, str, str]]:
    """How much of the data the clients have."""
    there, used = run.manifest.task.samples, run.manifest.task.used
    if not there or used is None:
        return []
    return [("training data", f"{used:,} of {there:,}", f"samples, {100 * used / there:.0f} %")]


def _lost_rows(run: Run) -> list[tuple[str, str, str]]:
    """A row for rounds that made no model, and for every client that was lost in any round."""
    rows: list[tuple[str, str, str]] = []
    if without := rounds_without_model(run.rounds):
        rows.append(("no new model", f"{len(without)} of {len(run.rounds)} rounds", "too few contributions"))
    found = lost_work(run.rounds, run.manifest.last_client)
    for lost in found[:_MOST_LOST]:
        name = run.manifest.client_name(lost.client)
        rows.append((f"lost: {name}", f"{lost.times} of {lost.called} rounds", f"{lost.why}: {lost.remedy}"))
    if len(found) > _MOST_LOST:
        rows.append((f"lost: {len(found) - _MOST_LOST} others", "", f"dapfl status {run.path} lists them"))
    return rows
