"""The results tables: what each setting achieved and spent, beside what the paper says of it."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dapfl.reporting import measures
from dapfl.reporting.columns import COST, DURATION, MODEL, NONE, TO_TARGET, own_metrics, percent
from dapfl.reporting.measures import Group, Spread
from dapfl.runs.monitoring.lost_work import by_reason
from dapfl.runs.monitoring.reasons import explain


@dataclass(frozen=True)
class Table:
    """A table of text cells; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class PaperFigure:
    """What the paper reports for one task and setting, in Section VII-B."""

    accuracy: float
    loss: float | None = None
    round: int | None = None


_DAP_FL_MNIST = PaperFigure(0.9782, 0.0898, 1340)
_DAP_FL_FASHION = PaperFigure(0.8025)
PAPER = {
    ("cnn-mnist", "dap-fl"): _DAP_FL_MNIST,
    ("cnn-mnist", "dap-fl-paper"): _DAP_FL_MNIST,
    ("cnn-mnist", "large"): PaperFigure(0.9755, 0.1169, 110),
    ("cnn-mnist", "small"): PaperFigure(0.9802, 0.0704, 6704),
    ("cnn-fashion", "dap-fl"): _DAP_FL_FASHION,
    ("cnn-fashion", "dap-fl-paper"): _DAP_FL_FASHION,
    ("cnn-fashion", "dqn-large"): PaperFigure(0.7240),
    ("cnn-fashion", "dqn-small"): PaperFigure(0.7760),
    ("cnn-fashion", "ddpg-client"): PaperFigure(0.7422),
}
_PAPER_NOTE = (
    " The paper's figures come from its own CNN (size not given), its own budgets (not published) and as many"
    " rounds as it took to converge: they stand beside ours, they are not a target."
)


def tables_of(groups: Sequence[Group], targets: Sequence[float] | None = None) -> list[Table]:
    """Every table of one task's groups."""
    targets = targets or measures.targets_of(groups)
    found = [
        quality(groups),
        comparison(groups),
        *to_target(groups, targets),
        participation(groups),
        spending(groups),
        lost_contributions(groups),
        served_worst(groups),
        origin(groups),
    ]
    return [table for table in found if table]


def quality(groups: Sequence[Group]) -> Table:
    """Accuracy, loss and F1 of the global model and the task's own measures, with the paper's figure where it
    gives one."""
    columns = (*MODEL, *own_metrics([run for group in groups for run in group.runs]))
    in_paper = any((group.task, group.setting) in PAPER for group in groups)
    header = ("setting", "seeds", *(column.title for column in columns))
    rows = []
    for group in groups:
        cells = (group.label, str(len(group.runs)), *(column.cell(group.runs) for column in columns))
        rows.append((*cells, _paper(PAPER.get((group.task, group.setting)))) if in_paper else cells)
    return Table(
        "Global model on the test set",
        (*header, "paper: accuracy %, loss") if in_paper else header,
        tuple(rows),
        "Accuracy, loss and macro-F1 after the last round; mean ± standard deviation over seeds. Worst tenth:"
        " mean accuracy of the tenth of the clients that the model serves worst. Spread: standard deviation"
        " of the accuracy over clients." + (_PAPER_NOTE if in_paper else ""),
    )


def _paper(figure: PaperFigure | None) -> str:
    if figure is None:
        return NONE
    loss = f", {figure.loss:.4f}" if figure.loss is not None else ""
    when = f" (round {figure.round:,})" if figure.round is not None else ""
    return f"{100 * figure.accuracy:.2f}{loss}{when}"


def to_target(groups: Sequence[Group], targets: Sequence[float]) -> list[Table]:
    """What it took to reach each target: a table for each, or one table in all for a single group."""
    columns = ("seeds that did", *(column.title for column in TO_TARGET))
    note = "Sums over all clients up to that round; means are over the seeds that reached it."
    if len(groups) == 1:
        rows = tuple((f"{100 * target:g} %", *_reaching(groups[0], target)) for target in targets)
        return [Table("To reach an accuracy", ("accuracy", *columns), rows, note)]
    return [
        Table(
            f"To reach {100 * target:g} % accuracy",
            ("setting", *columns),
            tuple((group.label, *_reaching(group, target)) for group in groups),
            note,
        )
        for target in targets
    ]


def _reaching(group: Group, target: float) -> tuple[str, ...]:
    firsts = [measures.reached(run, target) for run in group.runs]
    seeds = f"{sum(first is not None for first in firsts)} of {len(firsts)}"
    return (seeds, *(column.cell(firsts) for column in TO_TARGET))


def participation(groups: Sequence[Group]) -> Table | None:
    """Who took part; None when no client reported its capability."""
    capabilities = measures.capabilities(groups)
    rows = []
    for group in groups:
        shares = [measures.participation(run) for run in group.runs]
        cells = (percent(Spread.over([share.get(c) for share in shares]), 0) for c in capabilities)
        rows.append((group.label, *cells))
    if not capabilities:
        return None
    return Table(
        "Rounds in C(t) by capability, %",
        ("setting", *(f"{100 * capability:g} %" for capability in capabilities)),
        tuple(rows),
        "Share of the rounds of the clients with that capability whose contribution was aggregated.",
    )


def spending(groups: Sequence[Group]) -> Table:
    """What was lost, and what the whole run cost."""
    return Table(
        "Cost of the whole run",
        ("setting", *(column.title for column in COST)),
        tuple((group.label, *(column.cell(group.runs) for column in COST)) for group in groups),
        "Sums over all rounds and clients; trials are among the epochs. A violation is a plan that cost more"
        " than the client's budget.",
    )


def lost_contributions(groups: Sequence[Group]) -> Table | None:
    """What did not reach the model, by reason; None if nothing was lost."""
    rows = []
    for group in groups:
        reasons: Counter[str] = Counter()
        for run in group.runs:
            reasons.update(by_reason(run.rounds, run.manifest.last_client))
        for reason, count in reasons.most_common():
            said = explain(reason)
            rows.append((group.label, reason, f"{count:,}", said.meaning, said.remedy))
    if not rows:
        return None
    return Table(
        "Lost contributions",
        ("setting", "reason", "contributions", "meaning", "what to do"),
        tuple(rows),
        "Contributions of called clients that are in no model, over all rounds and seeds.",
    )


_SHOWN = 10  # of the clients that are served worst


def served_worst(groups: Sequence[Group]) -> Table | None:
    """The clients that the last model serves worst, by name; only for a single run, where names are one's."""
    if len(groups) != 1 or len(groups[0].runs) != 1:
        return None
    run = groups[0].runs[0]
    known = [client for client in run.rounds[-1].clients if client.accuracy is not None]
    samples = {client.id: client.samples for row in run.rounds for client in row.clients if client.samples}
    worst = sorted(known, key=lambda client: client.accuracy or 0.0)[:_SHOWN]
    if not known:
        return None
    return Table(
        "Clients that the model serves worst",
        ("client", "accuracy %", "samples", "rounds in C(t)"),
        tuple(
            (
                run.manifest.client_name(client.id),
                f"{100 * (client.accuracy or 0.0):.2f}",
                f"{samples[client.id]:,}" if client.id in samples else NONE,
                str(sum(client.id in row.cohort for row in run.rounds)),
            )
            for client in worst
        ),
        f"Accuracy of the last model on test samples like the client's own; {len(known)} clients in all.",
    )


def origin(groups: Sequence[Group]) -> Table:
    """Which code made the runs of each group, when, where, and how long a run took."""
    rows = []
    for group in groups:
        manifests = [run.manifest for run in group.runs]
        dates = sorted({manifest.created[:10] for manifest in manifests})
        machines = {f"{m.host.cpu or '?'}, {m.host.cores or '?'} cores" for m in manifests}
        rows.append(
            (
                group.label,
                " ".join(str(manifest.seed) for manifest in manifests),
                " ".join(sorted({manifest.commit or "?" for manifest in manifests})),
                " to ".join(dict.fromkeys((dates[0], dates[-1]))),
                "; ".join(sorted(machines)),
                DURATION.cell(group.runs),
            )
        )
    return Table(
        "Where the runs come from",
        ("setting", "seeds", "commit", "date", "machine", DURATION.title),
        tuple(rows),
        "Durations are of runs that may have shared the machine with others.",
    )


def comparison(groups: Sequence[Group]) -> Table | None:
    """The first Dap-FL group against every other, paired by seed; None when there is nothing to compare."""
    reference = next((group for group in groups if group.setting == "dap-fl"), None)
    rows = []
    for group in groups:
        gap = measures.difference(reference, group, measures.final_accuracy) if reference else None
        if gap is None or group is reference:
            continue
        interval = (
            NONE if gap.low is None or gap.high is None else f"{100 * gap.low:+.2f} to {100 * gap.high:+.2f}"
        )
        rows.append((group.label, f"{100 * gap.mean:+.2f}", interval, str(gap.seeds), gap.verdict))
    if reference is None or not rows:
        return None
    return Table(
        f"{reference.label} minus each other setting",
        ("setting", "accuracy difference, points", "95 % interval", "paired seeds", f"{reference.label} is"),
        tuple(rows),
        "Final test accuracy, paired by seed (same clients, data and budgets); Student's t interval.",
    )


def as_text(table: Table) -> str:
    """A table for a terminal: columns aligned, numbers to the right."""
    lines = (table.header, *table.rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join((first, *rest)).rstrip()

    rule = "  ".join("─" * width for width in widths)
    body = "\n".join([table.title, line(table.header), rule, *(line(row) for row in table.rows)])
    return f"{body}\n{textwrap.fill(table.note, 100)}\n" if table.note else f"{body}\n"


def as_markdown(table: Table) -> str:
    """A table for a README or an issue."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|---|" + "---:|" * (len(table.header) - 1)
    parts = [f"### {table.title}", "", line(table.header), rule, *(line(row) for row in table.rows)]
    return "\n".join([*parts, "", table.note, ""] if table.note else [*parts, ""])
