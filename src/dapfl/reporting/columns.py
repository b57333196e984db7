"""The measures of runs as columns: what each is called, how it is computed and how it is shown.

To add a measure, add a `Column` to `MODEL` or `COST`: it then appears in the tables of the report, on its
page and in results.csv.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from dapfl.reporting import measures
from dapfl.reporting.measures import Reached, Spread, total
from dapfl.runs.results import Run

T = TypeVar("T")
NONE = "–"


def percent(spread: Spread | None, digits: int = 2) -> str:
    """A share in per cent.

    >>> percent(Spread(0.9751, 0.0012, 3, 3))
    '97.51 ± 0.12'
    """
    return NONE if spread is None else _with_sd(spread, lambda value: f"{100 * value:.{digits}f}")


def decimals(digits: int) -> Callable[[Spread | None], str]:
    """A format: a number with the given number of decimals.

    >>> decimals(1)(Spread(1234.56, 0.0, 1, 1))
    '1,234.6'
    """
    return lambda spread: NONE if spread is None else _with_sd(spread, lambda value: f"{value:,.{digits}f}")


def duration(spread: Spread | None) -> str:
    """Seconds, minutes or hours, depending on the mean.

    >>> duration(Spread(5400.0, 60.0, 3, 3))
    '1.50 ± 0.02 h'
    """
    return NONE if spread is None else _scaled(spread, ((3600.0, "h"), (60.0, "min"), (1.0, "s")))


def size(spread: Spread | None) -> str:
    """Bytes, in a unit that depends on the mean.

    >>> size(Spread(2.5e6, 0.0, 1, 1))
    '2.50 MB'
    """
    return NONE if spread is None else _scaled(spread, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")))


def _scaled(spread: Spread, units: Sequence[tuple[float, str]]) -> str:
    scale, unit = next((each for each in units if spread.mean >= each[0]), units[-1])
    visible = spread if spread.sd / scale >= 0.005 else replace(spread, sd=0.0)
    return f"{_with_sd(visible, lambda value: f'{value / scale:.2f}')} {unit}"


def _with_sd(spread: Spread, show: Callable[[float], str]) -> str:
    if spread.count < 2 or spread.sd == 0:
        return show(spread.mean)
    return f"{show(spread.mean)} ± {show(spread.sd)}"


@dataclass(frozen=True)
class Column(Generic[T]):
    """A measure of a T: `name` in results.csv, `title` in tables, `value` computes it, `show` formats it."""

    name: str
    title: str
    value: Callable[[T], float | None]
    show: Callable[[Spread | None], str]

    def spread(self, subjects: Sequence[T | None]) -> Spread | None:
        """Mean and spread over several subjects; a missing one counts as one without a value."""
        return Spread.over([None if subject is None else self.value(subject) for subject in subjects])

    def cell(self, subjects: Sequence[T | None]) -> str:
        """The cell of a table for several subjects, such as the runs of a group."""
        return self.show(self.spread(subjects))


ROUNDS = Column[Run]("rounds", "rounds", lambda run: len(run.rounds), decimals(0))
ACCURACY = Column("accuracy", "accuracy %", measures.final_accuracy, percent)
BEST_ACCURACY = Column("best_accuracy", "best %", measures.best_accuracy, percent)
LOSS = Column("loss", "loss", measures.final_loss, decimals(4))
LOWEST_LOSS = Column("lowest_loss", "lowest loss", measures.lowest_loss, decimals(4))
F1 = Column("f1", "macro-F1 %", measures.final_f1, percent)
WORST_ACCURACY = Column("worst_accuracy", "worst tenth %", measures.final_worst_accuracy, percent)
ACCURACY_SPREAD = Column("accuracy_spread", "spread, points", measures.final_accuracy_spread, percent)

VIOLATIONS = Column("violations", "violations", total(lambda row: row.violations), decimals(0))
REJECTED = Column("rejected", "rejected", total(lambda row: row.rejected), decimals(0))
WASTED_EPOCHS = Column("wasted_epochs", "wasted epochs", total(lambda row: row.wasted_epochs), decimals(0))
EPOCHS = Column("epochs", "epochs", total(lambda row: row.epochs), decimals(0))
TRIAL_EPOCHS = Column("trial_epochs", "trial epochs", total(measures.trial_epochs), decimals(0))
IN_COHORT = Column[Run](
    "in_cohort", "contributions in C(t) %", lambda run: measures.accepted_share(run.rounds), percent
)
SIMULATED_TIME = Column(
    "simulated_seconds", "simulated time", total(lambda row: row.simulated_seconds), duration
)
BYTES_UP = Column("bytes_up", "bytes up", total(lambda row: row.bytes_up), size)
BYTES_DOWN = Column("bytes_down", "bytes down", total(lambda row: row.bytes_down), size)

MODEL = (ROUNDS, ACCURACY, BEST_ACCURACY, LOSS, LOWEST_LOSS, F1, WORST_ACCURACY, ACCURACY_SPREAD)
"""What a run achieved."""


def own_metrics(runs: Sequence[Run]) -> tuple[Column[Run], ...]:
    """What tasks measure besides, by their own names: of the last global model."""
    names = dict.fromkeys(name for run in runs if run.rounds for name in run.rounds[-1].metrics)
    return tuple(Column(name, name, partial(measures.final_metric, name), decimals(4)) for name in names)


COST = (
    IN_COHORT,
    VIOLATIONS,
    REJECTED,
    WASTED_EPOCHS,
    TRIAL_EPOCHS,
    EPOCHS,
    SIMULATED_TIME,
    BYTES_UP,
    BYTES_DOWN,
)
"""What a run lost and spent: but for the share of contributions, sums over all rounds and clients."""

# For the page and the closing table of a run. They are not columns of results.csv, which holds their parts.
PARTICIPANTS = Column("participants", "contributions", total(lambda row: row.participants), decimals(0))
TRAFFIC = Column("bytes", "traffic", total(lambda row: row.bytes_up + row.bytes_down), size)
DURATION = Column("seconds", "duration of a run", total(lambda row: row.seconds.get("total", 0.0)), duration)

TO_TARGET = (
    Column[Reached]("rounds", "rounds", lambda first: first.rounds, decimals(1)),
    Column[Reached]("simulated_seconds", "simulated time", lambda first: first.simulated_seconds, duration),
    Column[Reached]("bytes", "bytes", lambda first: first.bytes, size),
    Column[Reached]("epochs", "epochs", lambda first: first.epochs, decimals(0)),
)
"""What it took to reach a target accuracy."""
