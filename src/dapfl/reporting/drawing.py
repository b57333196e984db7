"""How our matplotlib figures look, and how they are written."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dapfl.reporting.curves import Curve
from dapfl.reporting.palette import Ink
from dapfl.system.files import replacing

DASHES = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": "-.", "longdash": (0, (9, 3))}
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 9.5,
    "axes.labelcolor": "#4a5462",
    "axes.edgecolor": "#c3cad4",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8ecf1",
    "grid.linewidth": 0.8,
    "xtick.color": "#8a94a3",
    "ytick.color": "#8a94a3",
    "xtick.labelcolor": "#4a5462",
    "ytick.labelcolor": "#4a5462",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "text.color": "#14181f",
    "svg.fonttype": "path",  # looks the same where our fonts are not installed
    "svg.hashsalt": "dapfl",  # the same runs give the same file
}


def save(figure: Figure, *paths: Path) -> None:
    """Writes a figure under each path, in the format of its suffix."""
    with rc_context(STYLE):
        for path in paths:
            form = path.suffix.removeprefix(".")
            metadata = {"Date": None} if form == "svg" else None
            with replacing(path) as file:
                figure.savefig(file, format=form, dpi=160, metadata=metadata)
            figure.set_layout_engine("none")  # one layout for all formats: computing it takes long


def sheet(columns: int, rows: int = 1, title: str = "", size: tuple[float, float] = (4.9, 3.3)) -> Figure:
    """An empty figure with a bold title for rows and columns of panels, each of the given size."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + (0.5 if title else 0)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    if title:
        figure.suptitle(title, x=0.012, ha="left", fontsize=12.5, fontweight="bold")
    return figure


def line(axes: Axes, curve: Curve, ink: Ink, label: str, band: bool = True) -> None:
    """A curve over rounds, counted from 1, with a band of one standard deviation."""
    rounds = np.arange(1, len(curve.mean) + 1)
    marker = "o" if len(rounds) == 1 else ""
    style = {"color": ink.light, "linewidth": ink.width, "linestyle": DASHES[ink.dash]}
    axes.plot(rounds, curve.mean, label=label, marker=marker, **style)  # type: ignore[arg-type]
    if band and np.nanmax(curve.sd, initial=0.0) > 0:
        low, high = curve.mean - curve.sd, curve.mean + curve.sd
        axes.fill_between(rounds, low, high, color=ink.light, alpha=0.13, linewidth=0)


def legend(figure: Figure, axes: Axes, title: str | None = None, first: str = "dap-fl") -> None:
    """A legend for the whole figure, below its panels; the label `first` comes first."""
    entries = zip(*axes.get_legend_handles_labels(), strict=True)
    ordered = sorted(entries, key=lambda entry: entry[1] != first)
    figure.legend(
        [handle for handle, _ in ordered],
        [label for _, label in ordered],
        loc="outside lower left",
        ncols=min(len(ordered), 5),
        handlelength=2.4,
        title=title,
        alignment="left",
        borderaxespad=0.2,
    )


def round_axis(*panels: Axes) -> None:
    """Labels the rounds, which are whole numbers."""
    for axes in panels:
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def log_axis(axes: Axes) -> None:
    """A logarithmic axis with plain numbers at 1, 2 and 5, where the curves spread enough to need one."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()])
    values = values[np.isfinite(values) & (values > 0)]
    if not values.size or values.max() < 4 * values.min():
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
