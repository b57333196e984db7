"""The report of runs: tables, figures and one page, in one directory.

written = write_report([Path("comparison")], Path("comparison/report"))
written.page    # comparison/report/index.html
"""

import gzip
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from dapfl.errors import RunDirectoryError
from dapfl.reporting import figures, measures, spreadsheets, tables
from dapfl.reporting.measures import Group
from dapfl.reporting.page import page
from dapfl.runs.results import find_runs
from dapfl.system.files import replacing


@dataclass(frozen=True)
class Report:
    """Where a report was written, and its tables as text."""

    directory: Path
    page: Path
    text: str
    files: tuple[Path, ...]


def write_report(
    paths: Sequence[Path],
    out: Path,
    targets: Sequence[float] | None = None,
    notice: Callable[[str], None] = lambda name: None,
) -> Report:
    """Writes the report of all runs at or below `paths` into `out`.

    `notice` is called with the name of each file. Every file appears whole or not at all, so that an open
    page can be reloaded at any time.
    """
    groups = measures.grouped(find_runs(paths))
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(f"The report cannot be written to {out}: {error.strerror}.") from None
    written: list[Path] = []

    def write(name: str, content: bytes) -> None:
        with replacing(out / name) as file:
            file.write(content)
        written.append(out / name)
        notice(name)

    shown = [(task, tables.tables_of(members, targets)) for task, members in measures.by_task(groups).items()]
    text = "\n".join(f"{task}\n\n" + "\n".join(map(tables.as_text, found)) for task, found in shown)
    markdown = "\n".join(
        f"## {task}\n\n" + "\n".join(map(tables.as_markdown, found)) for task, found in shown
    )
    write("results.txt", text.encode())
    write("results.md", markdown.encode())
    levels = (lambda _: targets) if targets else measures.targets_of
    write("results.csv", spreadsheets.results_csv(groups, levels).encode())
    write("curves.csv.gz", _compressed(spreadsheets.curves_csv(groups)))
    for name, figure in figures_of(groups):
        for suffix in ("png", "svg"):
            path = out / "figures" / f"{name}.{suffix}"
            figures.save(figure, path)
            written.append(path)
        notice(name)
    _forget_old_figures(out / "figures", written)
    write("index.html", page(groups, targets).encode())
    return Report(out, out / "index.html", text, tuple(written))


def _forget_old_figures(directory: Path, written: Sequence[Path]) -> None:
    """Removes figures of an earlier report of other runs; files with names that are not ours stay."""
    ours = ("settings-", "fig5-", "fig6-", "participation-", "phases-", *figures.COMPARISONS)
    for path in directory.iterdir():
        if path.suffix in (".png", ".svg") and path.name.startswith(ours) and path not in written:
            path.unlink()


def _compressed(text: str) -> bytes:
    """Gzip without a time in it: the same runs give the same file."""
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as file:
        file.write(text.encode())
    return stream.getvalue()


def figures_of(groups: Sequence[Group]) -> list[tuple[str, Figure]]:
    """Every figure that can be drawn for these groups, by name."""
    found: list[tuple[str, Figure | None]] = []
    for task, members in measures.by_task(groups).items():
        name = task.replace(":", "-").replace("/", "-")
        found.append((f"settings-{name}", figures.settings_figure(members)))
        for part, settings in figures.COMPARISONS.items():
            chosen = [group for group in members if group.setting in settings]
            if 1 < len(chosen) < len(members):
                found.append((f"{part}-{name}", figures.settings_figure(chosen)))
        found.append((f"fig5-agent-losses-{name}", figures.agent_losses_figure(members)))
        for group in members:
            if group.has_agents or len(members) == 1:
                found.append((f"fig6-choices-{name}-{_slug(group.label)}", figures.actions_figure(group)))
        found.append((f"participation-{name}", figures.participation_figure(members)))
        found.append((f"phases-{name}", figures.phases_figure(members)))
    return [(name, figure) for name, figure in found if figure is not None]


def _slug(label: str) -> str:
    kept = (letter if letter.isalnum() or letter in "-.=" else "-" for letter in label)
    return "-".join(filter(None, "".join(kept).split("-")))
