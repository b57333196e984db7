"""The report as one HTML file: everything inside, nothing fetched, so that it opens from an e-mail.

The page carries its data, its styles and plotly's own script. Its content security policy allows exactly
those scripts, by their hashes, and no connection at all.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from msgspec import to_builtins

from dapfl import __version__
from dapfl.reporting import measures, tables
from dapfl.reporting.columns import (
    ACCURACY,
    BEST_ACCURACY,
    F1,
    IN_COHORT,
    LOSS,
    LOWEST_LOSS,
    NONE,
    TRAFFIC,
    VIOLATIONS,
)
from dapfl.reporting.measures import Group, Spread
from dapfl.reporting.page_data import task_data
from dapfl.reporting.palette import inks
from dapfl.reporting.tables import Table
from dapfl.runs.results import Run, resume_command

MARK = (
    '<svg width="22" height="22" viewBox="0 0 22 22" fill="none" aria-hidden="true">'
    '<path d="M4 4.5 11 11M18 4.5 11 11M11 11v7" stroke="currentColor" stroke-width="1.8"/>'
    '<g fill="currentColor"><circle cx="4" cy="4.5" r="2.6"/><circle cx="18" cy="4.5" r="2.6"/>'
    '<circle cx="11" cy="17.6" r="3.2"/></g></svg>'
)


def asset(name: str) -> str:
    """A file that ships with this package, as text."""
    return (files("dapfl.reporting") / "assets" / name).read_text("utf-8")


def plotly_script() -> str:
    """Plotly's browser bundle, from the installed plotly package."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")


def page(groups: Sequence[Group], targets: Sequence[float] | None = None) -> str:
    """The whole report as one HTML document."""
    tasks = measures.by_task(groups)
    data = {"tasks": [task_data(members) for members in tasks.values()]}
    scripts = [plotly_script(), asset("charts.js"), asset("page.js")]
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
    title = "Dap-FL: " + ", ".join(tasks)
    sections = [
        _task_section(place, members, targets or measures.targets_of(members), alone=len(tasks) == 1)
        for place, members in enumerate(tasks.values())
    ]
    # A "<" inside the data could end its script element: JSON may write it as \u003c.
    carried = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{asset('theme.css')}{asset('page.css')}</style>\n</head>\n<body>",
            f'<div class="top"><span class="brand">{MARK}Dap-FL</span>'
            '<button type="button" id="theme">Dark</button></div>',
            "<main>",
            _lede(groups, tasks),
            *sections,
            f"<footer>Made by dapfl {escape(__version__)}. Drag over a chart to zoom, double-click to reset; "
            "click a name in a legend to hide it.</footer>",
            "</main>",
            f'<script type="application/json" id="data">{carried}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _lede(groups: Sequence[Group], tasks: dict[str, list[Group]]) -> str:
    runs = sum(len(group.runs) for group in groups)
    heading = f"{groups[0].label} on {groups[0].task}" if len(groups) == 1 else ", ".join(tasks)
    extent = f": {_extent(groups)}" if len(tasks) == 1 and runs > 1 else ""
    return (
        f'<header class="lede"><h1>{escape(heading)}</h1>'
        f"<p>{_count(runs, 'run')} of federated learning{extent}. "
        "Accuracy and loss are those of the global model on the whole test set after each round.</p></header>"
    )


def _extent(groups: Sequence[Group]) -> str:
    """How much was run: settings, seeds, rounds."""
    seeds = max(len(group.runs) for group in groups)
    rounds = max(len(run.rounds) for group in groups for run in group.runs)
    return f"{_count(len(groups), 'setting')}, {_count(seeds, 'seed')}, {_count(rounds, 'round')}"


def _task_section(place: int, groups: Sequence[Group], targets: Sequence[float], alone: bool) -> str:
    shown = tables.tables_of(groups, targets)
    name = escape(groups[0].task)
    heading = f'<header><h2>{name}</h2><span class="muted">{_extent(groups)}</span></header>'
    return "\n".join(
        [
            f'<section class="task" data-task="{place}" aria-label="{name}">',
            "" if alone else heading,
            _leaders(groups),
            _curves(groups),
            '<h3 class="part">Results</h3>',
            *(_table(table) for table in shown),
            _choices(groups),
            _losses(groups),
            '<h3 class="part">Participation</h3>',
            _card("statuses", "What became of the contributions", key=True),
            '<h3 class="part">Time and traffic of a round</h3><div class="grid">',
            _card("server", "Server, seconds by phase", key=True),
            _card("clients", "All clients together, seconds by phase", key=True),
            _card("traffic", "Traffic of all clients", key=True, wide=True),
            '</div><h3 class="part">Runs</h3><section class="card">',
            *(_run(run, group.label) for group in groups for run in group.runs),
            "</section></section>",
        ]
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _leaders(groups: Sequence[Group]) -> str:
    """In large type: the final accuracies of Dap-FL and its best rivals, or all facts of one setting."""
    if len(groups) == 1:
        return f'<div class="leaders">{"".join(_facts(groups[0]))}</div>'
    ink = inks([(group.setting, group.label) for group in groups])
    best = sorted(groups, key=lambda group: -(measures.mean_accuracy(group) or 0.0))
    ours = [group for group in best if group.setting == "dap-fl"][:1]
    kept = [*ours, *(group for group in best if group not in ours)][:5]
    tiles = []
    for group in kept:
        swatch = (
            f'<span class="swatch" style="--ink-light:{ink[group.label].light};'
            f'--ink-dark:{ink[group.label].dark}"></span>'
        )
        loss = f"loss {LOSS.cell(group.runs)}"
        tiles.append(_tile(swatch + escape(group.label), ACCURACY.spread(group.runs), loss))
    return f'<div class="leaders">{"".join(tiles)}</div>'


def _facts(group: Group) -> list[str]:
    """The main figures of a single setting: model, participation, traffic."""
    runs = group.runs
    return [
        _tile("Test accuracy", ACCURACY.spread(runs), f"best {BEST_ACCURACY.cell(runs)}"),
        _tile("Test loss", LOSS.cell(runs), f"lowest {LOWEST_LOSS.cell(runs)}"),
        _tile("Macro-F1", F1.spread(runs), "mean over the classes"),
        _tile("Contributions in C(t)", IN_COHORT.spread(runs), f"{VIOLATIONS.cell(runs)} plans over budget"),
        _tile("Traffic", TRAFFIC.cell(runs), "up and down, all clients"),
    ]


def _tile(name: str, value: Spread | str | None, more: str) -> str:
    if isinstance(value, Spread):
        margin = f"<small> ± {100 * value.sd:.2f}</small>" if value.count > 1 else ""
        value = f"{100 * value.mean:.2f} %{margin}"
    return (
        f'<div class="card leader"><div class="name">{name}</div>'
        f'<div class="value number">{value or NONE}</div><div class="more number">{more}</div></div>'
    )


def _curves(groups: Sequence[Group]) -> str:
    choices = (
        ("rounds", "Rounds", "true"),
        ("seconds", "Simulated time", "false"),
        ("bytes", "Traffic", "false"),
        ("epochs", "Epochs", "false"),
    )
    simulated = any(row.simulated_seconds is not None for g in groups for run in g.runs for row in run.rounds)
    buttons = "".join(
        f'<button type="button" data-value="{value}" aria-pressed="{pressed}">{name}</button>'
        for value, name, pressed in choices
        if value != "seconds" or simulated
    )
    best = max(groups, key=lambda group: measures.mean_accuracy(group) or 0.0)
    summary = f"Highest at the end: {best.label}, {ACCURACY.cell(best.runs)} %."
    key = '<div class="card key legend" role="group" aria-label="Settings" data-legend="settings"></div>'
    key = key if len(groups) > 1 else ""
    return (
        '<div class="bar"><span class="muted">Global model against</span>'
        '<div class="segments" role="group" aria-label="Horizontal axis" data-control="x">'
        f"{buttons}</div></div>{key}"
        f'<div class="grid">{_card("accuracy", "Test accuracy", "tall", summary)}'
        f"{_card('loss', 'Test loss', 'tall', summary)}</div>"
    )


def _choices(groups: Sequence[Group]) -> str:
    choosing = [group for group in groups if measures.capabilities([group])]
    if not choosing:
        return ""
    options = "".join(f"<option>{escape(group.label)}</option>" for group in choosing)
    control = f"<label class='muted'>Setting <select>{options}</select></label>" if len(choosing) > 1 else ""
    return (
        '<div class="bar"><h3 class="part">What the clients choose, by capability</h3>'
        f'<div class="bar">{control}<span class="legend" data-legend="choices"></span></div></div>'
        '<div class="grid">'
        f"{_card('eta', 'Learning rate η')}{_card('alpha', 'Epochs α')}</div>"
    )


def _losses(groups: Sequence[Group]) -> str:
    if not any(group.learns for group in groups):
        return ""
    return (
        '<h3 class="part">Losses of the strongest clients’ agents</h3><div class="grid">'
        f"{_card('critic', 'Critic')}{_card('actor', 'Actor')}</div>"
    )


def _card(
    name: str, title: str, size: str = "", summary: str = "", key: bool = False, wide: bool = False
) -> str:
    legend = f'<span class="legend" data-legend="{name}"></span>' if key else ""
    return (
        f'<figure class="card{" wide" if wide else ""}"><header><h3>{title}</h3>{legend}</header>'
        f'<div class="chart {size}" data-chart="{name}" data-summary="{escape(summary)}"></div></figure>'
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(_cell(cell) for cell in rest)}</tr>'
        for first, *rest in table.rows
    )
    return (
        f'<section class="card"><header><h3>{escape(table.title)}</h3></header>'
        f'<div class="table-scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f'<p class="note">{escape(table.note)}</p></section>'
    )


def _cell(text: str) -> str:
    kind = f' class="verdict-{text}"' if text in ("higher", "lower") else ""
    return f"<td{kind}>{escape(text)}</td>"


def _run(run: Run, label: str) -> str:
    manifest = run.manifest
    facts = {
        "command": " ".join(manifest.command),
        "started": manifest.created,
        "rounds": f"{len(run.rounds)} of {manifest.planned_rounds or '?'}, {manifest.status}",
        "continue": resume_command(run.path) if manifest.status == "stopped" else "",
        "model": f"{manifest.task.parameters:,} weights" if manifest.task.parameters else "",
        "machine": ", ".join(f"{key} {value}" for key, value in to_builtins(manifest.host).items()),
        "dapfl": f"{manifest.dapfl}{f', commit {manifest.commit[:12]}' if manifest.commit else ''}",
    }
    rows = "".join(
        f"<dt>{key}</dt><dd><code>{escape(value)}</code></dd>" for key, value in facts.items() if value
    )
    summary = f"{escape(label)}, seed {manifest.seed}"
    return f'<details><summary>{summary}</summary><dl class="facts">{rows}</dl></details>'
