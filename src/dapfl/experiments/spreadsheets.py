"""Results as plain numbers, for notebooks and figures of one's own."""

import csv
import io
from collections.abc import Callable, Sequence

from dapfl.experiments import measures
from dapfl.experiments.measures import Group, total
from dapfl.experiments.results import Run
from dapfl.experiments.tables import PAPER, capabilities_of


def results_csv(groups: Sequence[Group], targets: Callable[[Sequence[Group]], Sequence[float]]) -> str:
    """Every measure of every run as plain numbers, one line a run: what a notebook wants."""
    capabilities = capabilities_of(groups)
    tasks = {group.task: [other for other in groups if other.task == group.task] for group in groups}
    levels = sorted({target for members in tasks.values() for target in targets(members)})
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    header: list[str] = [
        "task",
        "setting",
        "group",
        "seed",
        "rounds",
        "accuracy",
        "best_accuracy",
        "loss",
        "lowest_loss",
        "f1",
    ]
    header += [
        "violations",
        "rejected",
        "wasted_epochs",
        "epochs",
        "simulated_seconds",
        "bytes_up",
        "bytes_down",
    ]
    header += [f"participation_{c:g}" for c in capabilities]
    header += [
        f"{what}_to_{t:g}" for t in levels for what in ("rounds", "simulated_seconds", "bytes", "epochs")
    ]
    writer.writerow([*header, "paper_accuracy", "directory"])
    for group in groups:
        for run in group.runs:
            writer.writerow(_csv_row(group, run, capabilities, levels))
    return stream.getvalue()


def _csv_row(group: Group, run: Run, capabilities: Sequence[float], levels: Sequence[float]) -> list[object]:
    sums = (
        total(lambda row: row.violations),
        total(lambda row: row.rejected),
        total(lambda row: row.wasted_epochs),
        total(lambda row: row.epochs),
        total(lambda row: row.simulated_seconds),
        total(lambda row: row.bytes_up),
        total(lambda row: row.bytes_down),
    )
    row: list[object] = [group.task, group.setting, group.label, run.manifest.seed, len(run.rounds)]
    row += [measures.final_accuracy(run), measures.best_accuracy(run), measures.final_loss(run)]
    row += [measures.lowest_loss(run), measures.final_f1(run), *(quantity(run) for quantity in sums)]
    shares = measures.participation(run)
    row += [shares.get(capability) for capability in capabilities]
    for target in levels:
        first = measures.reached(run, target)
        row += [first.rounds, first.simulated_seconds, first.bytes, first.epochs] if first else [None] * 4
    figure = PAPER.get((group.task, group.setting))
    return [*row, figure.accuracy if figure else None, "/".join(run.path.parts[-2:])]


def curves_csv(groups: Sequence[Group]) -> str:
    """Every round of every run as plain numbers: what a figure of one's own needs."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    fields = ["loss", "accuracy", "f1", "participants", "violations", "rejected", "epochs", "wasted_epochs"]
    fields += ["simulated_seconds", "bytes_up", "bytes_down"]
    writer.writerow(("task", "group", "seed", "round", *fields))
    for group in groups:
        for run in group.runs:
            for row in run.rounds:
                values = (getattr(row, field) for field in fields)
                writer.writerow((group.task, group.label, run.manifest.seed, row.round, *values))
    return stream.getvalue()
