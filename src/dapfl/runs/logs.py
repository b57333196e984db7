"""Logs for TensorBoard and MLflow: `--log tensorboard` and `--log mlflow`.

Both get the numbers of rounds.jsonl, round by round: the global model, participation, traffic, seconds by
phase, and what the clients chose, as means by capability. Neither package is needed otherwise.
"""

import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dapfl.config import RunConfig
from dapfl.errors import ConfigError
from dapfl.federation.records import RoundRecord
from dapfl.runs.results import AMOUNTS, SCORES
from dapfl.system.console import err


class RunLog(Protocol):
    """Takes the record of each round as it is made."""

    def log(self, record: RoundRecord) -> None:
        """Logs a round."""

    def close(self) -> None:
        """Writes what is still buffered; called once, however the run ends."""


def scalars(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round under the names that the logs give them; what is not known is left out.

    >>> scalars(RoundRecord(round=0, accuracy=0.5, seconds={"total": 2.0}))["seconds/total"]
    2.0
    """
    found: dict[str, float | None] = {
        **{f"global/{name}": getattr(record, name) for name in SCORES},
        **{f"round/{name}": getattr(record, name) for name in AMOUNTS},
        **{f"seconds/{phase}": seconds for phase, seconds in record.seconds.items()},
    }
    by_capability: dict[str, list[float]] = defaultdict(list)
    for client in record.clients:
        for name in ("eta", "alpha", "lambda_", "reward", "critic_loss", "actor_loss"):
            value = getattr(client, name)
            if value is not None and client.capability is not None:
                by_capability[f"{name.rstrip('_')}/{100 * client.capability:g}_percent"].append(value)
    found |= {name: statistics.fmean(values) for name, values in by_capability.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


class TensorBoardLog:
    """Event files in DIR/tensorboard, for `tensorboard --logdir DIR`."""

    def __init__(self, directory: Path, config: RunConfig) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "--log tensorboard needs the package tensorboard: pip install tensorboard."
            ) from None
        self._writer = SummaryWriter(str(directory / "tensorboard"))

    def log(self, record: RoundRecord) -> None:
        """Logs a round."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def close(self) -> None:
        """Writes what is still buffered."""
        self._writer.close()


class MLflowLog:
    """A run in the MLflow store that MLFLOW_TRACKING_URI names, or in DIR/mlflow.db without one.

    A resumed run goes on in the same MLflow run: its id is kept in DIR/mlflow-run. A store that stops
    answering does not stop the run.
    """

    def __init__(self, directory: Path, config: RunConfig) -> None:
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise ConfigError("--log mlflow needs the package mlflow: pip install mlflow.") from None
        self._failure: type[Exception] = MlflowException
        self._uri = os.environ.get("MLFLOW_TRACKING_URI")
        uri = self._uri or f"sqlite:///{(directory / 'mlflow.db').resolve()}"
        self._broken = False
        note = directory / "mlflow-run"
        try:
            self._client = MlflowClient(tracking_uri=uri)
            if note.exists():
                self._run = note.read_text().strip()
                self._client.update_run(self._run, status="RUNNING")
            else:
                self._run = self._begin(directory, config)
                note.write_text(self._run + "\n")
        except MlflowException as error:
            raise ConfigError(f"The MLflow store {uri} cannot be used: {error}") from None

    def _begin(self, directory: Path, config: RunConfig) -> str:
        known = self._client.get_experiment_by_name("dapfl")
        if known:
            experiment = known.experiment_id
        else:
            # Without a tracking server, MLflow's artifacts stay inside the run directory.
            place = None if self._uri else (directory / "mlflow-artifacts").resolve().as_uri()
            experiment = self._client.create_experiment("dapfl", artifact_location=place)
        run = self._client.create_run(experiment, run_name=directory.name).info.run_id
        values = msgspec.json.decode(msgspec.json.encode(config))  # as manifest.json has them
        for key, value in _flat(values):
            self._client.log_param(run, key, value)
        return str(run)

    def log(self, record: RoundRecord) -> None:
        """Logs a round."""
        if self._broken:
            return
        try:
            for name, value in scalars(record).items():
                self._client.log_metric(self._run, name, value, step=record.round)
        except self._failure as error:
            self._broken = True
            err.print(f"MLflow takes no more values ({error}); the run goes on without it.", markup=False)

    def close(self) -> None:
        """Ends the MLflow run."""
        with suppress(self._failure):
            self._client.set_terminated(self._run)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


_KINDS: dict[str, type[TensorBoardLog] | type[MLflowLog]] = {
    "tensorboard": TensorBoardLog,
    "mlflow": MLflowLog,
}


class RunLogs:
    """All logs of a run as one."""

    def __init__(self, logs: Sequence[RunLog]) -> None:
        self._logs = logs

    def log(self, record: RoundRecord) -> None:
        """Logs a round in each of them."""
        for each in self._logs:
            each.log(record)


@contextmanager
def open_logs(config: RunConfig, directory: Path) -> Iterator[RunLogs]:
    """The logs that a run asks for, closed at its end; ConfigError when the package of one is missing."""
    with ExitStack() as stack:
        logs: list[RunLog] = []
        for name in config.log:
            each = _KINDS[name](directory, config)
            stack.callback(each.close)
            logs.append(each)
        yield RunLogs(logs)
