"""What a run or a comparison gives back: plain data, frames, figures, the trained model."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from torch import nn

from dapfl.arrays import Floats
from dapfl.errors import ConfigError, RunDirectoryError, TaskError, UserError
from dapfl.federation.records import RoundRecord
from dapfl.learning.inputs import EXPONENT, SHIFT, attach
from dapfl.learning.layout import Layout
from dapfl.runs.directory import RunDirectory
from dapfl.runs.results import Run, find_runs, read_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

__all__ = ["Comparison", "FigureName", "RunResult"]

FigureName = Literal["learning", "choices", "agents", "participation", "phases"]


@dataclass(frozen=True, repr=False)
class RunResult:
    """A run: what was asked for, what happened in every round, and the model that came out.

    `attacks` says what became of the run's live attackers, if it had any.
    """

    _run: Run
    attacks: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._run.path

    @property
    def status(self) -> str:
        """``finished``, ``failed`` (nothing was ever aggregated), ``stopped`` or ``running``."""
        return self._run.manifest.status

    @property
    def config(self) -> dict[str, Any]:
        """The whole configuration of the run, as its manifest keeps it."""
        return self._run.manifest.config

    @property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """The record of every round."""
        return self._run.rounds

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last global model on the test samples."""
        return self.rounds[-1].accuracy if self.rounds else None

    def __repr__(self) -> str:
        rounds = len(self.rounds)
        return f"RunResult({str(self.path)!r}, {self.status}, rounds={rounds}, accuracy={self.accuracy})"

    def to_dicts(self) -> list[dict[str, Any]]:
        """Every round as plain dictionaries, lists and numbers: the lines of rounds.jsonl."""
        rows: list[dict[str, Any]] = msgspec.to_builtins(self.rounds)
        return rows

    def to_frame(self, by: Literal["round", "client"] = "round") -> "DataFrame":
        """A pandas frame with one row for each round, or for each client in each round."""
        rounds = self.to_dicts()
        if by == "client":
            rows = [
                {"round": row["round"], **_numbers(client)} for row in rounds for client in row["clients"]
            ]
        elif by == "round":
            rows = [
                _numbers(row) | {f"seconds_{phase}": value for phase, value in row["seconds"].items()}
                for row in rounds
            ]
        else:
            raise ConfigError(f"A frame has one row by 'round' or by 'client', not by {by!r}.")
        frame: DataFrame = _pandas().DataFrame(rows)
        return frame

    def model(self) -> dict[str, Floats]:
        """The trained global model: an array for each parameter and buffer, by its name in the module."""
        file = RunDirectory(self.path).model_path
        if self.status != "finished" or not file.is_file():
            raise RunDirectoryError(
                f"The run in {self.path} has failed: nothing was aggregated, so it has no trained model."
                if self.status == "failed"
                else f"The run in {self.path} is {self.status} and has no model yet: "
                "dapfl.resume finishes it."
            )
        return read_model(file)

    def load_into(self, module: nn.Module) -> nn.Module:
        """Copies the trained model into a module of the same architecture, and returns that module.

        If the run scaled its inputs (docs/own-task.md), the module does so from now on.
        """
        arrays = self.model()
        if EXPONENT in arrays and not hasattr(module, EXPONENT):
            attach(module, arrays[SHIFT], arrays[EXPONENT])
        layout = Layout.of(module)
        ours = {name: array.shape for name, array in arrays.items()}
        theirs = {tensor.name: tensor.shape for tensor in layout.tensors}
        if ours != theirs:
            differing = sorted(dict(ours.items() ^ theirs.items()))
            raise TaskError(
                f"The model of the run in {self.path} does not fit into this {type(module).__name__}: they "
                f"differ in {', '.join(differing[:5])}{', ...' if len(differing) > 5 else ''}."
            )
        layout.assign(module, np.concatenate([arrays[tensor.name].ravel() for tensor in layout.tensors]))
        return module

    def figure(self, name: FigureName = "learning") -> "Figure":
        """A matplotlib figure of the run.

        ``learning`` is loss and accuracy over rounds, ``choices`` what the clients' agents chose, ``agents``
        the agents' own losses, ``participation`` whose contributions came in, ``phases`` where time and
        bytes went.
        """
        return _figure([self._run], name)

    def report(self, out: str | Path | None = None) -> Path:
        """Writes tables, figures and a page, into the run directory unless told otherwise."""
        return _report(self.path, out)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Several settings and seeds, run under the same conditions."""

    path: Path
    runs: tuple[RunResult, ...] = field(default=())

    def __repr__(self) -> str:
        return f"Comparison({str(self.path)!r}, runs={len(self.runs)})"

    def to_frame(self) -> "DataFrame":
        """A pandas frame with one row for each run: setting, seed, what it achieved, what it cost."""
        from dapfl.reporting import measures, spreadsheets

        text = spreadsheets.results_csv(measures.grouped(find_runs([self.path])), measures.targets_of)
        frame: DataFrame = _pandas().read_csv(io.StringIO(text))
        return frame

    def figure(self, name: FigureName = "learning") -> "Figure":
        """A matplotlib figure of all settings; see `RunResult.figure`."""
        return _figure(find_runs([self.path]), name)

    def report(self, out: str | Path | None = None) -> Path:
        """Writes tables, figures and a page, into the comparison's directory unless told otherwise."""
        return _report(self.path, out)


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """What fits into one cell each."""
    return {name: value for name, value in record.items() if not isinstance(value, dict | list | tuple)}


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UserError(
            "A frame needs pandas, which is not installed: pip install pandas. to_dicts() has the same as "
            "plain data."
        ) from None
    return pandas


def _figure(runs: Sequence[Run], name: FigureName) -> "Figure":
    from dapfl.reporting import figures, measures

    groups = measures.grouped(runs)
    draw: dict[str, Callable[[], Figure | None]] = {
        "learning": lambda: figures.settings_figure(groups),
        "choices": lambda: figures.actions_figure(groups[0]),
        "agents": lambda: figures.agent_losses_figure(groups),
        "participation": lambda: figures.participation_figure(groups),
        "phases": lambda: figures.phases_figure(groups),
    }
    if name not in draw:
        raise ConfigError(f"There is no figure {name!r}: the figures are {', '.join(draw)}.")
    figure = draw[name]()
    if figure is None:
        raise ConfigError(f"These runs hold nothing to draw in the figure {name!r}.")
    return figure


def _report(path: Path, out: str | Path | None) -> Path:
    from dapfl.reporting.report import write_report

    return write_report([path], Path(out) if out is not None else path / "report").page
