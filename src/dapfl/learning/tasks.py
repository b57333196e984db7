"""Learning tasks: a model, its data and its loss, under one name.

The tasks of the paper stand in `TASKS`. A user's own task is one small Python file; it is named
by its path and the name in it, `path/to/file.py:NAME` (see docs/own-task.md).
"""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dapfl.errors import TaskError
from dapfl.learning import data
from dapfl.learning.data import Dataset
from dapfl.learning.models import ResNet18, cnn, logistic


@dataclass(frozen=True, eq=False)
class Task:
    """What a federation learns.

    - `build_model` makes the model: samples in (one a row, see `Dataset`), one logit a class out.
    - `load_data` gives the training and test samples, the same in every process.
    - `loss` is the mean loss of a batch, from the model's outputs and the labels (int64).
    """

    name: str
    build_model: Callable[[], nn.Module]
    load_data: Callable[[], Dataset]
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy


TASKS = {
    task.name: task
    for task in (
        Task("logistic-mnist", logistic, partial(data.load, "mnist")),
        Task("cnn-mnist", cnn, partial(data.load, "mnist")),
        Task("cnn-fashion", cnn, partial(data.load, "fashion")),
        Task("resnet18-mnist", ResNet18, partial(data.load, "mnist")),
    )
}


@cache
def get_task(name: str) -> Task:
    """The task of that name, or the user's own task `path/to/file.py:NAME`.

    `NAME` is a `Task`, or a function without arguments that gives one. A process loads a file once.

    >>> get_task("cnn-mnist").name
    'cnn-mnist'
    """
    if name in TASKS:
        return TASKS[name]
    file, colon, variable = name.rpartition(":")
    if not file.endswith(".py"):
        hint = " A task of your own is named path/to/file.py:NAME." if ".py" in name or not colon else ""
        raise TaskError(f"There is no task '{name}': the tasks are {', '.join(TASKS)}.{hint}")
    module = _module(Path(file))
    if not hasattr(module, variable):
        raise TaskError(f"{file} does not define '{variable}': a task is named {file}:NAME.")
    found = getattr(module, variable)
    if callable(found) and not isinstance(found, Task):
        try:
            found = found()
        except Exception as error:
            raise TaskError(f"{file}: {variable}() failed: {type(error).__name__}: {error}.") from error
    if not isinstance(found, Task):
        raise TaskError(
            f"{file}: {variable} is a {type(found).__name__}, not a dapfl.learning.tasks.Task "
            "or a function that gives one."
        )
    return found


def _module(path: Path) -> ModuleType:
    """The user's file as a module."""
    if not path.is_file():
        raise TaskError(f"The task file {path} does not exist.")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"dapfl_own_task_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a path ending in .py always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise TaskError(f"The task file {path} fails: {type(error).__name__}: {error}.") from error
    return module
