"""Results as plain numbers in CSV files, for notebooks and for figures of your own."""

import csv
import io
from collections.abc import Callable, Sequence

from dapfl.reporting import measures
from dapfl.reporting.columns import COST, MODEL, TO_TARGET, Column, own_metrics
from dapfl.reporting.measures import Group
from dapfl.reporting.tables import PAPER
from dapfl.runs.results import AMOUNTS, SCORES, Run


def results_csv(groups: Sequence[Group], targets: Callable[[Sequence[Group]], Sequence[float]]) -> str:
    """Every measure of every run as plain numbers, one line for each run."""
    capabilities = measures.capabilities(groups)
    tasks = {group.task: [other for other in groups if other.task == group.task] for group in groups}
    levels = sorted({target for members in tasks.values() for target in targets(members)})
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    own = own_metrics([run for group in groups for run in group.runs])
    header = ["task", "setting", "group", "seed", *(column.name for column in (*MODEL, *COST, *own))]
    header += [f"participation_{capability:g}" for capability in capabilities]
    header += [f"{column.name}_to_{target:g}" for target in levels for column in TO_TARGET]
    writer.writerow([*header, "paper_accuracy", "directory"])
    for group in groups:
        for run in group.runs:
            writer.writerow(_csv_row(group, run, own, capabilities, levels))
    return stream.getvalue()


def _csv_row(
    group: Group,
    run: Run,
    own: Sequence[Column[Run]],
    capabilities: Sequence[float],
    levels: Sequence[float],
) -> list[object]:
    row: list[object] = [group.task, group.setting, group.label, run.manifest.seed]
    row += [column.value(run) for column in (*MODEL, *COST, *own)]
    shares = measures.participation(run)
    row += [shares.get(capability) for capability in capabilities]
    for target in levels:
        first = measures.reached(run, target)
        row += [column.value(first) if first else None for column in TO_TARGET]
    figure = PAPER.get((group.task, group.setting))
    return [*row, figure.accuracy if figure else None, "/".join(run.path.parts[-2:])]


def curves_csv(groups: Sequence[Group]) -> str:
    """Every round of every run as plain numbers, one line for each round."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("task", "group", "seed", "round", *SCORES, *AMOUNTS))
    for group in groups:
        for run in group.runs:
            for row in run.rounds:
                values = (getattr(row, name) for name in (*SCORES, *AMOUNTS))
                writer.writerow((group.task, group.label, run.manifest.seed, row.round, *values))
    return stream.getvalue()
