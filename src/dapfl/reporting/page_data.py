"""What the report's page draws: curves and bars as plain lists, ready for JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dapfl.reporting import curves
from dapfl.reporting.curves import Curve, Series
from dapfl.reporting.measures import Group
from dapfl.reporting.palette import PHASES, STATUSES, Ink, capability_inks, inks

MOST_POINTS = 1000  # of a curve: more could not be told apart, and would only make the page larger


def task_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Everything that the charts of one task show."""
    ink = inks([(group.setting, group.label) for group in groups])
    server, clients = curves.phases(groups)
    return {
        "groups": [_group_data(group, ink[group.label]) for group in groups],
        "statuses": _statuses(groups),
        "server": _bars(server),
        "clients": _bars(clients),
        "traffic": _bars(curves.traffic(groups)),
    }


def _bars(series: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """One bar for each group, stacked from named parts."""
    return [
        {"name": name, "values": _numbers(np.asarray(values)), "ink": _ink(PHASES[place % len(PHASES)])}
        for place, (name, values) in enumerate(series.items())
    ]


def _statuses(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For several groups the shares in per cent, for one group the mean number of clients in each round."""
    if len(groups) == 1:
        means = curves.statuses_by_round(groups[0])
        shown = {name: mean[_kept(len(mean))] for name, mean in means.items()}
    else:
        shown = {name: np.asarray(shares) for name, shares in curves.status_shares(groups).items()}
    return [
        {"name": name, "values": _numbers(values), "ink": _ink(STATUSES[name])}
        for name, values in shown.items()
    ]


def _group_data(group: Group, ink: Ink) -> dict[str, Any]:
    loss = curves.over_rounds(group, lambda row: row.loss)
    kept = _kept(len(loss.mean))

    def series(curve: Curve) -> dict[str, Any]:
        return {"mean": _numbers(curve.mean[kept]), "sd": _numbers(curve.sd[kept])}

    def of_strongest(found: dict[float, Curve]) -> dict[str, Any] | None:
        strongest = next(iter(found.values()), None)
        return series(strongest) if strongest and strongest.known else None

    etas = curves.by_capability(group, lambda client: client.eta)
    alphas = curves.by_capability(group, lambda client: client.alpha)
    steps = capability_inks(list(etas))
    return {
        "label": group.label,
        "setting": group.setting,
        "ink": _ink(ink),
        "x": {
            "rounds": (kept + 1).tolist(),
            "seconds": _numbers(curves.spent(group, lambda row: row.simulated_seconds)[kept] / 60),
            "bytes": _numbers(curves.spent(group, lambda row: row.bytes_up + row.bytes_down)[kept] / 1e6),
            "epochs": _numbers(curves.spent(group, lambda row: row.epochs)[kept]),
        },
        "loss": series(loss),
        "accuracy": series(curves.over_rounds(group, lambda row: row.accuracy)),
        "choices": [
            {
                "capability": f"{100 * step:g}",
                "ink": _ink(steps[step]),
                "eta": _numbers(etas[step].mean[kept]),
                "alpha": _numbers(alphas[step].mean[kept]),
            }
            for step in etas
        ],
        "critic": of_strongest(curves.by_capability(group, lambda client: client.critic_loss)),
        "actor": of_strongest(curves.by_capability(group, lambda client: client.actor_loss)),
    }


def _kept(length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The rounds that a curve shows: all, or evenly spaced ones with the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(length, MOST_POINTS)).round().astype(np.int64))


def _ink(ink: Ink) -> dict[str, Any]:
    return {"light": ink.light, "dark": ink.dark, "dash": ink.dash, "width": ink.width}


def _numbers(values: Series) -> list[float | None]:
    """Six significant digits, which is enough to draw; null for what is not known."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
