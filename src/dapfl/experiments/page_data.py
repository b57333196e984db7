"""What the report's page draws: curves and bars as plain lists, ready for JSON."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dapfl.experiments import curves
from dapfl.experiments.curves import Curve, Series
from dapfl.experiments.measures import Group
from dapfl.experiments.palette import FATES, PHASES, Ink, capability_inks, inks

MOST_POINTS = 1000  # of a curve: more cannot be seen, and the page has to travel


def task_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Everything that the charts of one task show."""
    ink = inks([(group.setting, group.label) for group in groups])
    found = [curves.phases(row for run in group.runs for row in run.rounds) for group in groups]
    names = [name for name in dict.fromkeys(name for phases in found for name in phases) if name != "total"]
    ways = (("up", lambda row: row.bytes_up / 1e6), ("down", lambda row: row.bytes_down / 1e6))

    def phases(of_client: bool) -> list[dict[str, Any]]:
        kept = [name for name in names if name.startswith("client_") == of_client]
        return [
            _bars(curves.phase_name(name), [each.get(name, 0.0) for each in found], i)
            for i, name in enumerate(kept)
        ]

    return {
        "groups": [_group_data(group, ink[group.label]) for group in groups],
        "fates": _fates(groups),
        "server": phases(of_client=False),
        "clients": phases(of_client=True),
        "traffic": [
            _bars(way, [float(np.nanmean(curves.over_rounds(group, quantity).mean)) for group in groups], i)
            for i, (way, quantity) in enumerate(ways)
        ],
    }


def _bars(name: str, values: Sequence[float], place: int) -> dict[str, Any]:
    return {"name": name, "values": _numbers(np.asarray(values)), "ink": _ink(PHASES[place % len(PHASES)])}


def _fates(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Of several groups the shares in per cent, of one the mean number of clients in each round."""
    if len(groups) == 1:
        found = [curves.fates(run.rounds) for run in groups[0].runs]
        names = [name for name in FATES if any(name in fates for fates in found)]
        series = {name: curves.curve([fates.get(name, []) for fates in found]).mean for name in names}
        length = max(len(mean) for mean in series.values())
        return [
            {"name": name, "values": _numbers(mean[_kept(length)]), "ink": _ink(FATES[name])}
            for name, mean in series.items()
            if len(mean) == length
        ]
    sums = [curves.fates([row for run in group.runs for row in run.rounds]) for group in groups]
    shares = [{name: sum(fates[name]) for name in fates} for fates in sums]
    return [
        {
            "name": name,
            "values": _numbers(np.array([100 * s.get(name, 0) / max(sum(s.values()), 1) for s in shares])),
            "ink": _ink(ink),
        }
        for name, ink in FATES.items()
        if any(name in s for s in shares)
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
    """Six significant digits, null for what is not known: enough to draw, and the page stays small."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
