"""The colours of settings, capabilities and statuses: the same in every figure and on every page.

Each is a pair for light and dark surfaces with at least 3:1 contrast there. Rules without an agent are
dashed, so that nothing rests on colour alone.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ink:
    """How something is drawn: its colour on light and on dark, its dash, its width."""

    light: str
    dark: str
    dash: str = "solid"
    width: float = 1.7


_SETTINGS = {
    "dap-fl": Ink("#1b5fd9", "#6aa6ff", width=2.8),
    "dap-fl-paper": Ink("#7a4cc2", "#b79af5"),
    "large": Ink("#b85c00", "#f2a355", "dash"),
    "small": Ink("#1d7f4b", "#5fc792", "dash"),
    "ddpg-eta": Ink("#b3307b", "#f083c0"),
    "ddpg-alpha": Ink("#836600", "#dcbc4d"),
    "ddpg-client": Ink("#0b7f8c", "#52cfdc"),
    "dqn-large": Ink("#c22f2f", "#f78a84"),
    "dqn-small": Ink("#8a5436", "#d0a081"),
    "fixed": Ink("#5b6675", "#a5b0be", "dash"),
    "fixed-capped": Ink("#5b6675", "#a5b0be", "dash"),
    "cosine-capped": Ink("#5b6675", "#a5b0be", "dashdot"),
    "probe-capped": Ink("#0b6e5f", "#5fc9b6", "longdash"),
    "delta-sgd": Ink("#4a3f9f", "#a8a0ee", "dashdot"),
    "dog-capped": Ink("#8f2f4f", "#ef93ae", "longdash"),
    "fedadam-capped": Ink("#2f6b2a", "#86c97f", "dashdot"),
    "oracle": Ink("#14181f", "#f1f4f8", "dot", 2.2),
}
_SPARE = (
    Ink("#7d5a86", "#c7a3d1", "longdash"),
    Ink("#4f7400", "#a9cf52", "longdash"),
    Ink("#7a3b12", "#d9a47c", "dashdot"),
)
_RAMP = (
    Ink("#0f3f94", "#b5d2ff"),
    Ink("#2b66c4", "#7fb2fa"),
    Ink("#0e8494", "#4cc3cf"),
    Ink("#a86a00", "#e9ae4c"),
    Ink("#c23b22", "#f4866d"),
)
STATUSES = {
    "accepted": Ink("#6f93d2", "#4a6fae"),  # the most common status stays in the background
    "over-budget": Ink("#c47a12", "#e9ae4c"),
    "diverged": Ink("#7a4cc2", "#b79af5"),
    "rejected": Ink("#c22f2f", "#f78a84"),
    "failed": Ink("#6b7686", "#98a3b2"),
    "unselected": Ink("#9aa5b4", "#5d6877"),
}
# Neighbours in a stack of phases, told apart by hue and by lightness.
PHASES = (
    Ink("#4f7fd0", "#5b8fdf"),
    Ink("#52bfc9", "#2f97a3"),
    Ink("#e0a23a", "#e9ae4c"),
    Ink("#7a4cc2", "#9f7fe6"),
    Ink("#8fb03e", "#a9cf52"),
    Ink("#c2486b", "#f083a5"),
    Ink("#6b7686", "#98a3b2"),
)


def inks(labels: list[tuple[str, str]]) -> dict[str, Ink]:
    """An ink for each (setting, label), by label; groups of one setting get inks that differ.

    >>> inks([("dap-fl", "dap-fl")])["dap-fl"].light
    '#1b5fd9'
    """
    found: dict[str, Ink] = {}
    taken: set[Ink] = set()
    for number, (setting, label) in enumerate(labels):
        ink = _SETTINGS.get(setting)
        if ink is None or ink in taken:
            ink = next((spare for spare in _SPARE if spare not in taken), _SPARE[number % len(_SPARE)])
        taken.add(ink)
        found[label] = ink
    return found


def capability_inks(capabilities: list[float]) -> dict[float, Ink]:
    """An ink for each capability, cool for the strong and warm for the weak."""
    last = max(len(capabilities) - 1, 1)
    return {
        each: _RAMP[round(place * (len(_RAMP) - 1) / last)]
        for place, each in enumerate(sorted(capabilities, reverse=True))
    }
