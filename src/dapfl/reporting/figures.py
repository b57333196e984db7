"""The paper's Figs 5-9, and what else a run shows, as matplotlib figures.

Each function takes groups of one task and returns a figure, or None when the runs hold nothing to draw;
`save` writes it as PNG and SVG.

    groups = grouped(find_runs([Path("comparison")]))
    save(settings_figure(groups), Path("comparison.png"), Path("comparison.svg"))
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dapfl.federation.records import RoundRecord
from dapfl.reporting import curves, measures
from dapfl.reporting.curves import Curve
from dapfl.reporting.drawing import STYLE, legend, line, log_axis, round_axis, save, sheet
from dapfl.reporting.measures import Group
from dapfl.reporting.palette import PHASES, STATUSES, capability_inks, inks

__all__ = [
    "actions_figure",
    "agent_losses_figure",
    "participation_figure",
    "phases_figure",
    "save",
    "settings_figure",
]

# Which settings the paper puts into one figure, and the simple rules beside Dap-FL.
COMPARISONS = {
    "fig7-fixed": ("dap-fl", "dap-fl-paper", "large", "small"),
    "fig8-one-axis": ("dap-fl", "dap-fl-paper", "ddpg-eta", "ddpg-alpha"),
    "fig9-rivals": ("dap-fl", "dap-fl-paper", "ddpg-client", "dqn-large", "dqn-small"),
    "simple-rules": ("dap-fl", "fixed", "fixed-capped", "cosine-capped", "oracle"),
    "optimisers": ("dap-fl", "fixed-capped", "delta-sgd", "dog-capped", "fedadam-capped"),
}


def settings_figure(groups: Sequence[Group], title: str | None = None) -> Figure:
    """Loss and accuracy of the settings over rounds, with their spread over seeds (Figs 7-9)."""
    ink = inks([(group.setting, group.label) for group in groups])
    seeds = max(len(group.runs) for group in groups)
    spread = f", mean ± sd of {seeds} seeds" if seeds > 1 else ""
    with rc_context(STYLE):
        figure = sheet(
            2, title=f"{groups[0].task}: test loss and accuracy{spread}" if title is None else title
        )
        left, right = figure.subplots(1, 2)
        # Dap-FL is drawn last, so that nothing hides it.
        for group in sorted(groups, key=lambda group: group.setting == "dap-fl"):
            line(left, curves.over_rounds(group, lambda row: row.loss), ink[group.label], group.label)
            accuracy = curves.over_rounds(group, _accuracy_percent)
            line(right, accuracy, ink[group.label], group.label)
        left.set_title("Loss")
        right.set_title("Accuracy, %")
        log_axis(left)
        round_axis(left, right)
        if len(groups) > 1:
            _focus(right, [curves.over_rounds(group, _accuracy_percent) for group in groups])
        legend(figure, right)
    return figure


def _accuracy_percent(row: RoundRecord) -> float | None:
    return None if row.accuracy is None else 100 * row.accuracy


def _focus(axes: Axes, found: Sequence[Curve]) -> None:
    """Cuts off the steep first rounds where they would squeeze the rest of the curves."""
    lasts = [float(curve.mean[np.isfinite(curve.mean)][-1]) for curve in found if curve.known]
    if lasts:
        bottom = min(min(lasts), float(np.median(lasts)) - 12)
        axes.set_ylim(bottom=max(bottom - 3, axes.get_ylim()[0]))


def agent_losses_figure(groups: Sequence[Group]) -> Figure | None:
    """Losses of critic and actor of the strongest clients' agents over rounds (Fig. 5)."""
    learning = [group for group in groups if group.learns]
    if not learning:
        return None
    ink = inks([(group.setting, group.label) for group in learning])
    with rc_context(STYLE):
        figure = sheet(2, title=f"{groups[0].task}: losses of the agents")
        left, right = figure.subplots(1, 2)
        for group in learning:
            for axes, found in (
                (left, curves.by_capability(group, lambda client: client.critic_loss)),
                (right, curves.by_capability(group, lambda client: client.actor_loss)),
            ):
                if found:
                    line(axes, next(iter(found.values())), ink[group.label], group.label)
        left.set_title("Critic")
        right.set_title("Actor")
        round_axis(left, right)
        legend(figure, left, "agents of the strongest clients")
    return figure


def actions_figure(group: Group) -> Figure | None:
    """Learning rate η and epochs α over rounds, by the clients' capability (Fig. 6)."""
    etas = curves.by_capability(group, lambda client: client.eta)
    alphas = curves.by_capability(group, lambda client: client.alpha)
    if not any(curve.known for curve in etas.values()):
        return None
    ink = capability_inks(list(etas))
    with rc_context(STYLE):
        figure = sheet(2, title=f"{group.task}, {group.label}: what the clients choose")
        left, right = figure.subplots(1, 2)
        for capability in etas:
            for axes, found in ((left, etas), (right, alphas)):
                line(axes, found[capability], ink[capability], f"{100 * capability:g} %", band=False)
        left.set_title("Learning rate η")
        right.set_title("Epochs α")
        right.set_ylim(bottom=0)
        log_axis(left)
        round_axis(left, right)
        legend(figure, left, "capability")
    return figure


def participation_figure(groups: Sequence[Group]) -> Figure:
    """Who takes part: each capability's share of rounds in C(t), and what became of every contribution.

    The contributions of a single group are shown round by round.
    """
    steps = measures.capabilities(groups)
    single = len(groups) == 1
    with rc_context(STYLE):
        height = 2.4 if single else 1.4 + 0.34 * len(groups)
        figure = sheet(1 + bool(steps), title=f"{groups[0].task}: participation", size=(4.9, height))
        *before, last = figure.subplots(1, 1 + bool(steps), sharey=not single, squeeze=False)[0]
        for axes in before:
            _heat(axes, groups, steps)
        if single:
            _statuses_over_rounds(last, groups[0])
        else:
            _status_bars(last, groups)
        handles, labels = last.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right", ncols=6, handlelength=1.0)
    return figure


def _statuses_over_rounds(axes: Axes, group: Group) -> None:
    means = curves.statuses_by_round(group)
    bottom = np.zeros(len(means["accepted"]))
    for name, mean in means.items():
        rounds = np.arange(1, len(mean) + 1)
        axes.bar(rounds, mean, bottom=bottom, width=1.0, color=STATUSES[name].light, label=name)
        bottom += mean
    axes.set_title("What became of the contributions")
    axes.set_ylabel("clients")
    axes.grid(axis="x", visible=False)
    axes.margins(x=0)
    round_axis(axes)


def _heat(axes: Axes, groups: Sequence[Group], steps: Sequence[float]) -> None:
    shares = np.full((len(groups), len(steps)), np.nan)
    for row, group in enumerate(groups):
        runs = [measures.participation(run) for run in group.runs]
        for column, step in enumerate(steps):
            shares[row, column] = curves.curve([[run.get(step)] for run in runs]).mean[0]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.15, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        if np.isfinite(share):
            color = "white" if share > 0.62 else "#14181f"
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", color=color, fontsize=9)
    axes.set(title="Rounds in C(t), %", xlabel="capability")
    axes.set_xticks(range(len(steps)), [f"{100 * step:g} %" for step in steps])
    axes.set_yticks(range(len(groups)), [group.label for group in groups])
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _status_bars(axes: Axes, groups: Sequence[Group]) -> None:
    left = np.zeros(len(groups))
    for name, shares in curves.status_shares(groups).items():
        if any(shares):
            color = STATUSES[name].light
            axes.barh(range(len(groups)), shares, left=left, color=color, label=name, height=0.62)
        left += np.asarray(shares)
    axes.set(title="What became of the contributions, %", xlim=(0, 100))
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def phases_figure(groups: Sequence[Group]) -> Figure | None:
    """Seconds per round by phase, of the server and of all clients together, and bytes per round."""
    server, clients = curves.phases(groups)
    if not server and not clients:
        return None
    with rc_context(STYLE):
        size = (3.9, 2.0 + 0.32 * len(groups))
        figure = sheet(3, title=f"{groups[0].task}: what a round takes", size=size)
        panels = figure.subplots(1, 3, sharey=True)
        titles = ("Server, seconds", "All clients' work, seconds", "Traffic, MB")
        for axes, series, title in zip(
            panels, (server, clients, curves.traffic(groups)), titles, strict=True
        ):
            _stack(axes, series, title)
        panels[0].set_yticks(range(len(groups)), [group.label for group in groups])
        panels[0].invert_yaxis()
    return figure


def _stack(axes: Axes, series: Mapping[str, Sequence[float]], title: str) -> None:
    """Stacked bars, one for each group, with the legend of the panel below them."""
    left = np.zeros(max((len(values) for values in series.values()), default=0))
    for (name, values), ink in zip(series.items(), PHASES * len(series), strict=False):
        axes.barh(range(len(left)), values, left=left, color=ink.light, height=0.62, label=name)
        left += np.asarray(values)
    axes.set(title=title)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if series:
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2, handlelength=1.0, columnspacing=1.2)
