import builtins
import sys
from types import ModuleType, SimpleNamespace

import pytest

from dapfl.config import RunConfig
from dapfl.errors import ConfigError
from dapfl.federation.records import ClientRecord, RoundRecord, Status
from dapfl.runs.logs import open_logs, scalars

MLFLOW = RunConfig(log=("mlflow",))


def record(t):
    clients = tuple(
        ClientRecord(id=i, status=Status.ACCEPTED, capability=c, eta=e, lambda_=0.5)
        for i, (c, e) in enumerate([(1.0, 0.1), (1.0, 0.3), (0.2, 0.05)], start=1)
    )
    return RoundRecord(round=t, accuracy=0.5 + t / 10, bytes_up=100, seconds={"total": 2.0}, clients=clients)


def test_scalars_are_the_rounds_numbers_and_means_by_capability():
    found = scalars(record(2))
    assert found["global/accuracy"] == 0.7
    assert found["eta/100_percent"] == pytest.approx(0.2)
    assert found["eta/20_percent"] == 0.05
    assert found["lambda/100_percent"] == 0.5
    assert "global/loss" not in found  # not known


def test_tensorboard_event_files_hold_every_round(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_logs(RunConfig(log=("tensorboard",)), tmp_path) as logs:
        for t in range(3):
            logs.log(record(t))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = {event.step: event.value for event in events.Scalars("global/accuracy")}
    assert found == pytest.approx({0: 0.5, 1: 0.6, 2: 0.7})


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")]
)
def test_a_missing_package_is_named_with_how_to_install_it(tmp_path, monkeypatch, name, module):
    true_import = builtins.__import__

    def without(wanted, *args, **kwargs):
        if wanted.startswith(module):
            raise ImportError(wanted)
        return true_import(wanted, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with (
        pytest.raises(ConfigError, match=rf"pip install {name}"),
        open_logs(RunConfig(log=(name,)), tmp_path),
    ):
        pass


class FakeStore:
    """What MLflow's client does, in memory."""

    def __init__(self):
        self.runs = {}
        self.fails = False

    def client(self, tracking_uri):
        self.uri = tracking_uri
        return self

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name, artifact_location):
        return "1"

    def create_run(self, experiment, run_name):
        self.runs[run_name] = SimpleNamespace(params={}, metrics=[], status="RUNNING")
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_param(self, run, key, value):
        self.runs[run].params[key] = value

    def log_metric(self, run, key, value, step):
        if self.fails:
            raise RuntimeError("gone")
        self.runs[run].metrics.append((key, value, step))

    def update_run(self, run, status):
        self.runs[run].status = status

    def set_terminated(self, run):
        self.runs[run].status = "FINISHED"


@pytest.fixture
def mlflow(monkeypatch):
    store = FakeStore()
    modules = {"mlflow": {}, "mlflow.tracking": {"MlflowClient": store.client}}
    modules["mlflow.exceptions"] = {"MlflowException": RuntimeError}
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return store


def test_mlflow_gets_configuration_and_metrics_and_a_resumed_run_goes_on(tmp_path, mlflow):
    directory = tmp_path / "first"
    directory.mkdir()
    for t in range(2):
        with open_logs(MLFLOW, directory) as logs:
            logs.log(record(t))
    (run,) = mlflow.runs.values()
    assert mlflow.uri == f"sqlite:///{directory}/mlflow.db"
    assert (run.params["crypto.key_bits"], run.params["adversaries"]) == (2048, [])
    assert [m for m in run.metrics if m[0] == "global/accuracy"] == [
        ("global/accuracy", 0.5, 0),
        ("global/accuracy", 0.6, 1),
    ]
    assert run.status == "FINISHED"


def test_a_store_that_stops_answering_does_not_stop_the_run(tmp_path, mlflow, capsys):
    with open_logs(MLFLOW, tmp_path) as logs:
        mlflow.fails = True
        logs.log(record(0))
        logs.log(record(1))
    assert capsys.readouterr().err.count("the run goes on") == 1


def test_a_store_that_cannot_be_used_is_a_users_mistake(tmp_path, mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://nowhere")

    def refuse(run, key, value):
        raise RuntimeError("refused")

    mlflow.log_param = refuse
    with pytest.raises(ConfigError, match="http://nowhere"), open_logs(MLFLOW, tmp_path):
        pass
