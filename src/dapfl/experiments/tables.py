"""The results tables: what each setting achieved and spent, beside what the paper says of it."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dapfl.experiments import measures
from dapfl.experiments.measures import Group, Reached, Spread, total


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
NONE = "–"


def tables_of(groups: Sequence[Group], targets: Sequence[float] | None = None) -> list[Table]:
    """Every table of one task's groups."""
    targets = targets or measures.targets_of(groups)
    found = [
        quality(groups),
        comparison(groups),
        *to_target(groups, targets),
        participation(groups),
        spending(groups),
        origin(groups),
    ]
    return [table for table in found if table]


def quality(groups: Sequence[Group]) -> Table:
    """Accuracy, loss and F1 of the global model, with the paper's figure where it gives one."""
    in_paper = any((group.task, group.setting) in PAPER for group in groups)
    header = ("setting", "seeds", "rounds", "accuracy %", "best %", "loss", "lowest loss", "macro-F1 %")
    rows = []
    for group in groups:
        cells = (
            group.label,
            str(len(group.runs)),
            plain(group.spread(lambda run: len(run.rounds)), 0),
            percent(group.spread(measures.final_accuracy)),
            percent(group.spread(measures.best_accuracy)),
            plain(group.spread(measures.final_loss), 4),
            plain(group.spread(measures.lowest_loss), 4),
            percent(group.spread(measures.final_f1)),
        )
        rows.append((*cells, _paper(PAPER.get((group.task, group.setting)))) if in_paper else cells)
    return Table(
        "Global model on the test set",
        (*header, "paper: accuracy %, loss") if in_paper else header,
        tuple(rows),
        "Accuracy, loss and macro-F1 after the last round; mean ± standard deviation over seeds."
        + (_PAPER_NOTE if in_paper else ""),
    )


def _paper(figure: PaperFigure | None) -> str:
    if figure is None:
        return NONE
    loss = f", {figure.loss:.4f}" if figure.loss is not None else ""
    when = f" (round {figure.round:,})" if figure.round is not None else ""
    return f"{100 * figure.accuracy:.2f}{loss}{when}"


def to_target(groups: Sequence[Group], targets: Sequence[float]) -> list[Table]:
    """What it took to reach each accuracy: a table a target, or one table for a single group."""
    columns = ("seeds that did", "rounds", "simulated time", "bytes", "epochs")
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

    def spread(quantity: Callable[[Reached], float]) -> Spread | None:
        return Spread.over([quantity(first) if first else None for first in firsts])

    return (
        f"{sum(first is not None for first in firsts)} of {len(firsts)}",
        plain(spread(lambda first: first.rounds), 1),
        duration(spread(lambda first: first.simulated_seconds)),
        size(spread(lambda first: first.bytes)),
        plain(spread(lambda first: first.epochs), 0),
    )


def participation(groups: Sequence[Group]) -> Table | None:
    """Who took part; None when no client told its capability."""
    capabilities = capabilities_of(groups)
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


def capabilities_of(groups: Sequence[Group]) -> list[float]:
    """The capabilities of all clients, the strongest first."""
    found = {c for group in groups for run in group.runs for c in measures.capability_of(run.rounds).values()}
    return sorted(found, reverse=True)


def spending(groups: Sequence[Group]) -> Table:
    """What was lost, and what the whole run cost."""
    rows = tuple(
        (
            group.label,
            plain(group.spread(total(lambda row: row.violations)), 0),
            plain(group.spread(total(lambda row: row.rejected)), 0),
            plain(group.spread(total(lambda row: row.wasted_epochs)), 0),
            plain(group.spread(total(lambda row: row.epochs)), 0),
            duration(group.spread(total(lambda row: row.simulated_seconds))),
            size(group.spread(total(lambda row: row.bytes_up))),
            size(group.spread(total(lambda row: row.bytes_down))),
        )
        for group in groups
    )
    columns = (
        "violations",
        "rejected",
        "wasted epochs",
        "epochs",
        "simulated time",
        "bytes up",
        "bytes down",
    )
    return Table(
        "Cost of the whole run",
        ("setting", *columns),
        rows,
        "Sums over all rounds and clients. A violation is a plan that cost more than the client's budget.",
    )


def origin(groups: Sequence[Group]) -> Table:
    """Which code made the runs of each group, when, where and in what time."""
    rows = []
    for group in groups:
        manifests = [run.manifest for run in group.runs]
        dates = sorted({manifest.created[:10] for manifest in manifests})
        machines = {f"{m.host.get('cpu', '?')}, {m.host.get('cores', '?')} cores" for m in manifests}
        rows.append(
            (
                group.label,
                " ".join(str(manifest.seed) for manifest in manifests),
                " ".join(sorted({manifest.commit or "?" for manifest in manifests})),
                " to ".join(dict.fromkeys((dates[0], dates[-1]))),
                "; ".join(sorted(machines)),
                duration(group.spread(total(lambda row: row.seconds.get("total", 0.0)))),
            )
        )
    return Table(
        "Where the runs come from",
        ("setting", "seeds", "commit", "date", "machine", "duration of a run"),
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
        f"{reference.label} less each other setting",
        ("setting", "accuracy difference, points", "95 % interval", "paired seeds", f"{reference.label} is"),
        tuple(rows),
        "Final test accuracy, paired by seed (same clients, data and budgets); Student's t interval.",
    )


def percent(spread: Spread | None, digits: int = 2) -> str:
    """A share in per cent.

    >>> percent(Spread(0.9751, 0.0012, 3, 3))
    '97.51 ± 0.12'
    """
    return NONE if spread is None else _with_sd(spread, lambda value: f"{100 * value:.{digits}f}")


def plain(spread: Spread | None, digits: int) -> str:
    """A number with so many decimals."""
    return NONE if spread is None else _with_sd(spread, lambda value: f"{value:,.{digits}f}")


def duration(spread: Spread | None) -> str:
    """Seconds, minutes or hours, by the size of the mean.

    >>> duration(Spread(5400.0, 60.0, 3, 3))
    '1.50 ± 0.02 h'
    """
    return NONE if spread is None else _scaled(spread, ((3600.0, "h"), (60.0, "min"), (1.0, "s")))


def size(spread: Spread | None) -> str:
    """Bytes in the unit of the mean.

    >>> size(Spread(2.5e6, 0.0, 1, 1))
    '2.50 MB'
    """
    return NONE if spread is None else _scaled(spread, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")))


def _scaled(spread: Spread, units: Sequence[tuple[float, str]]) -> str:
    scale, unit = next((each for each in units if spread.mean >= each[0]), units[-1])
    visible = spread if spread.sd / scale >= 0.005 else replace(spread, sd=0.0)
    return f"{_with_sd(visible, lambda value: f'{value / scale:.2f}')} {unit}"


def _with_sd(spread: Spread, show: Callable[[float], str]) -> str:
    return (
        show(spread.mean)
        if spread.count < 2 or spread.sd == 0
        else f"{show(spread.mean)} ± {show(spread.sd)}"
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
