"""Learning tasks: a model, its data and its loss, under one name.

The built-in tasks are in `TASKS`. A user's own task is one small Python file; it is named
by its path and the name in it, `path/to/file.py:NAME` (see docs/own-task.md).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from dapfl.errors import ConfigError, TaskError
from dapfl.learning import datasets
from dapfl.learning.data import Dataset
from dapfl.learning.datasets.adult import FEATURES
from dapfl.learning.datasets.shakespeare import CHARACTERS
from dapfl.learning.models import CharacterLSTM, ColourCNN, ResNet18, SignalCNN, TwoLayers, cnn, logistic
from dapfl.system.plugins import FORM, Plugin

Metric = Callable[[Tensor, Tensor], float]
MakeOptimizer = Callable[[Iterable[nn.Parameter], float], Optimizer]


@dataclass(frozen=True, eq=False)
class Task:
    """What a federation learns.

    - `build_model` makes the model. It takes a batch of samples (one per row, see `Dataset`) and gives a
      logit for each class: (batch, classes), or (batch, classes, labels) if a sample has a row of labels.
      Where the data have no classes it gives outputs of the shape of the labels.
    - `load_data` returns the training and test samples, the same in every process.
    - `loss` is the mean loss of a batch, from the model's outputs and the labels (int64, or float32 where
      there are no classes).
    - `metrics` are further measures of the global model on the test set, each of all outputs and labels:
      they are in every round's record.
    - `optimizer` makes the optimiser of one client's round from its weights and η; the paper's plain SGD
      if it is left out. Its memory (momentum, Adam's moments) begins anew each round.
    """

    name: str
    build_model: Callable[[], nn.Module]
    load_data: Callable[[], Dataset]
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    optimizer: MakeOptimizer | None = None


TASKS = {
    task.name: task
    for task in (
        Task("logistic-mnist", logistic, partial(datasets.load, "mnist")),
        Task("cnn-mnist", cnn, partial(datasets.load, "mnist")),
        Task("cnn-fashion", cnn, partial(datasets.load, "fashion")),
        Task("resnet18-mnist", ResNet18, partial(datasets.load, "mnist")),
        Task("cnn-cifar10", ColourCNN, partial(datasets.load, "cifar10")),
        Task("har", SignalCNN, partial(datasets.load, "hapt")),
        Task("shakespeare", partial(CharacterLSTM, len(CHARACTERS)), partial(datasets.load, "shakespeare")),
        Task("adult", partial(TwoLayers, FEATURES, 2), partial(datasets.load, "adult")),
    )
}


_registered: dict[str, Task] = {}


def register(task: Task) -> str:
    """Makes a `Task` object known to this process by its name, which is returned.

    Only this process knows it: no worker process, no other machine, no later start of the program does.
    A task registered later under the same name takes its place.
    """
    if TASKS.get(task.name, task) is not task or Plugin.parse(task.name):
        raise TaskError(f"A task of your own cannot be called '{task.name}': that name means another task.")
    if TASKS.get(task.name) is None:
        _registered[task.name] = task
    return task.name


def get_task(name: str) -> Task:
    """The task of that name, or the user's own task `path/to/file.py:NAME`.

    `NAME` is a `Task`, or a function without arguments that returns one. A process runs a file once.

    >>> get_task("cnn-mnist").name
    'cnn-mnist'
    """
    return TASKS.get(name) or _registered.get(name) or _from_file(name)


@cache
def _from_file(name: str) -> Task:
    try:
        plugin = Plugin.parse(name)
        found = plugin and plugin.load()
    except ConfigError as error:
        raise TaskError(f"The task {name} cannot be loaded: {error}") from error
    if plugin is None:
        raise TaskError(
            f"There is no task '{name}': the tasks are {', '.join(TASKS)}, or one of your own as {FORM}. "
            "(A run of a Task object goes on in Python only: dapfl.resume(DIR, task=...).)"
        )
    if callable(found) and not isinstance(found, Task):
        try:
            found = found()
        except Exception as error:
            raise TaskError(f"The task function {name} failed: {type(error).__name__}: {error}.") from error
    if not isinstance(found, Task):
        raise TaskError(
            f"{name} is of type {type(found).__name__}, not a dapfl.Task or a function that returns one."
        )
    return found
