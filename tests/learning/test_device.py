"""Devices: no GPU is needed for these tests, and none has been used."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from dapfl.config import RunConfig
from dapfl.errors import ConfigError
from dapfl.federation.run_terms import Shared
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning import device
from dapfl.learning.data import Dataset
from dapfl.learning.models import cnn
from dapfl.learning.runtime import task_runtime
from dapfl.learning.sgd import Learner, initial_weights
from dapfl.learning.tasks import Task
from dapfl.randomness import stream


@pytest.fixture(autouse=True)
def _on_the_cpu_again() -> Iterator[None]:
    yield
    device.use("cpu")


def images() -> Dataset:
    pixels = stream(1, "pixels").integers(0, 256, (40, 28, 28), dtype=np.uint8)
    labels = np.arange(40) % 10
    return Dataset(pixels, labels, pixels, labels, classes=10)


def table() -> Dataset:
    features = stream(1, "features").normal(size=(40, 5)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int64)
    return Dataset(features, labels, features, labels, classes=2)


def norm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


@pytest.mark.parametrize(
    "task", [Task("images", cnn, images), Task("table", norm, table)], ids=lambda t: t.name
)
def test_all_of_an_epoch_happens_on_the_device(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is torch's `meta`, which computes nothing, but accepts no tensor from anywhere else."""
    monkeypatch.setattr(device, "_current", torch.device("meta"))
    runtime = task_runtime(task)
    learner = Learner(task, np.arange(40))
    inputs, labels = learner._samples()
    places = {tensor.device.type for tensor in (*runtime.trained, *runtime.module.buffers(), inputs, labels)}
    assert places == {"meta"}
    order = device.moved(torch.arange(40))
    runtime.module.train()
    runtime.epoch(inputs, labels, order, [32, 8], Hyperparameters(0.1, 1, 32))
    with torch.inference_mode():
        runtime.module.eval()
        assert runtime.module(inputs).device.type == "meta"


def test_the_cpu_goes_the_same_way_and_gives_the_same_bits_as_ever() -> None:
    task = Task("table", norm, table)
    start, chosen = initial_weights(task, seed=1), Hyperparameters(0.1, 2, 32)
    results = []
    for name in ("cpu", "auto") if not torch.cuda.is_available() else ("cpu",):
        device.use(name)
        results.append(Learner(task, np.arange(40)).train(start, chosen, stream(1, "sgd")).tobytes())
    assert len(set(results)) == 1


def test_a_runtime_of_another_device_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task("table", norm, table)
    here = task_runtime(task)
    with monkeypatch.context() as patch:
        patch.setattr(device, "_current", torch.device("meta"))
        assert task_runtime(task) is not here
    assert task_runtime(task) is here


def test_a_device_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device is 'cuda', and PyTorch finds none here"):
        Shared(RunConfig(device="cuda"))


def test_auto_takes_the_gpu_that_torch_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_available", lambda name: name in ("mps", "cpu"))
    monkeypatch.setattr(device, "_be_deterministic", lambda: None)
    assert device.use("auto").type == "mps"
    assert device.workers(8) == 1


def test_as_many_workers_are_started_as_fit_into_the_memory_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "_current", torch.device("cuda"))
    for free, fitting in ((0, 1), (3 << 30, 3), (80 << 30, 8)):
        monkeypatch.setattr(device, "_free_bytes", lambda free=free: free)
        assert device.workers(8) == fitting
