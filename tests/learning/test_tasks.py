from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dapfl.errors import DataError, TaskError
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.data import Dataset, NaturalClients
from dapfl.learning.partition import partition
from dapfl.learning.sgd import Evaluator, Learner, initial_weights
from dapfl.learning.tasks import TASKS, Task, get_task
from dapfl.randomness import stream

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_task.py"


def test_the_built_in_tasks_are_registered() -> None:
    paper = ["logistic-mnist", "cnn-mnist", "cnn-fashion", "resnet18-mnist"]
    assert list(TASKS) == [*paper, "cnn-cifar10", "har", "shakespeare", "adult"]
    assert all(get_task(name) is task for name, task in TASKS.items())


@pytest.mark.parametrize(
    ("name", "size"), [("logistic-mnist", 7_850), ("cnn-mnist", 21_840), ("cnn-fashion", 21_840)]
)
def test_tasks_start_from_weights_of_the_promised_size(name: str, size: int) -> None:
    assert initial_weights(get_task(name), seed=0).shape == (size,)


def test_the_example_of_an_own_task_learns_from_its_clients_data() -> None:
    task = get_task(f"{EXAMPLE}:rings")
    labels = task.load_data().train_labels
    learner = Learner(task, partition(labels, clients=20, seed=0)[0])
    weights = learner.train(initial_weights(task, 0), Hyperparameters(0.2, 20, 32), stream(0, "sgd"))
    assert Evaluator(task).evaluate(weights).accuracy > 0.9


def test_a_file_is_loaded_once_whatever_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE.parent)
    assert get_task("own_task.py:rings") is get_task(f"{EXAMPLE}:rings")


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "mine.py").write_text(text)
    return str(tmp_path / "mine.py")


def test_a_function_may_give_the_task(tmp_path: Path) -> None:
    file = written(tmp_path, "from dapfl.learning.tasks import TASKS\ndef mine(): return TASKS['cnn-mnist']")
    assert get_task(f"{file}:mine") is TASKS["cnn-mnist"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mine = 3", "mine.py:mine is of type int, not a dapfl.Task"),
        ("other = 3", "does not define 'mine'"),
        ("def mine(): return 3", "mine is of type int"),
        ("def mine(): 1 / 0", "function .*mine failed: ZeroDivisionError"),
        ("def mine(needed): pass", "function .*mine failed: TypeError"),
        ("import no_such_module", "fails: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def mine(:", "fails: SyntaxError"),
        ("raise SystemExit(1)", "fails: SystemExit"),
    ],
)
def test_a_task_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        get_task(f"{written(tmp_path, text)}:mine")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("cnn-mnits", "no task 'cnn-mnits': the tasks are logistic-mnist, .*path/to/file.py:NAME"),
        ("examples/own_task.py", "say what in it is meant, as examples/own_task.py:NAME"),
        ("nowhere/task.py:mine", "nowhere/task.py does not exist"),
        ("", "no task ''"),
    ],
)
def test_a_task_that_does_not_exist_is_named(name: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        get_task(name)


POINTS = np.zeros((6, 2), np.float32)
SIDES = np.array([0, 1, 0, 1, 0, 1])


def sides(**changed: object) -> Callable[[], Dataset]:
    parts = {"train_images": POINTS, "train_labels": SIDES, "test_images": POINTS, "test_labels": SIDES}
    return lambda: Dataset(**{**parts, "classes": 2, **changed})


def owned(owners: np.ndarray) -> NaturalClients:
    return NaturalClients(("Ann", "Bob"), owners, SIDES)


def fails() -> Dataset:
    raise OSError("disk on fire")


@pytest.mark.parametrize(
    ("build", "load", "complaint"),
    [
        (lambda: nn.Linear(2, 2), fails, "cannot be loaded: OSError: disk on fire"),
        (lambda: nn.Linear(2, 2), lambda: POINTS, "loads a ndarray"),
        (lambda: nn.Linear(2, 2), sides(train_labels=SIDES[:5]), "6 samples and 5 labels"),
        (
            lambda: nn.Linear(2, 2),
            sides(test_images=POINTS[:0], test_labels=SIDES[:0]),
            "test data .* 0 samples",
        ),
        (lambda: nn.Linear(2, 2), sides(classes=1), "whole numbers from 0 to 0"),
        (lambda: nn.Linear(2, 2), sides(test_labels=SIDES - 1), "test labels .* whole numbers from 0 to 1"),
        (lambda: nn.Linear(2, 2), sides(test_labels=SIDES + 1), "since classes=2; they are 1 to 2"),
        (lambda: nn.Linear(2, 2), sides(train_labels=SIDES / 2), "whole numbers .* they are float64"),
        (lambda: nn.Linear(2, 2), sides(train_labels=SIDES.reshape(6, 1, 1)), "one label or a row"),
        (lambda: nn.Linear(2, 2), sides(natural=owned(SIDES[:5])), "for every sample"),
        (lambda: nn.Linear(2, 2), sides(natural=owned(SIDES + 1)), "a number from 0 to 1, or -1"),
        (lambda: nn.Linear(2, 2), sides(natural=owned(SIDES - 2)), "a number from 0 to 1, or -1"),
        (lambda: nn.Linear(2, 2), sides(natural=owned(SIDES * 0)), "needs a training sample"),
        (lambda: nn.Linear(0, 1 / 0), sides(), "cannot be built: ZeroDivisionError"),
        (lambda: "model", sides(), "builds a str"),
        (lambda: nn.Linear(3, 2), sides(), "fails on its data: RuntimeError"),
        (lambda: nn.Linear(2, 3), sides(), r"shape \(2, 3\) for two samples: it must be \(2, 2\)"),
    ],
)
def test_parts_of_a_task_that_do_not_fit_together_are_named(build, load, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        Learner(Task("mine", build, load), np.arange(3))


def test_a_loss_must_be_one_number() -> None:
    each = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(TaskError, match="loss of task mine must be a tensor of one number"):
        Learner(Task("mine", lambda: nn.Linear(2, 2), sides(), each), np.arange(3))


@pytest.mark.parametrize(
    ("measure", "why"),
    [
        (lambda outputs, labels: outputs, "(Value|Runtime)Error"),
        (lambda outputs, labels: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda outputs: 0.0, "TypeError"),
    ],
)
def test_a_metric_of_ones_own_that_fails_is_named(measure: Callable[..., float], why: str) -> None:
    task = Task("mine", lambda: nn.Linear(2, 2), sides(), metrics={"auc": measure})
    with pytest.raises(TaskError, match=f"metric 'auc' of task mine fails: {why}"):
        Evaluator(task).evaluate(initial_weights(task, seed=0))


def test_data_that_cannot_be_fetched_stay_a_data_error() -> None:
    def unreachable() -> Dataset:
        raise DataError("no source")

    with pytest.raises(DataError, match="no source"):
        Learner(Task("mine", lambda: nn.Linear(2, 2), unreachable), np.arange(3))


@pytest.mark.parametrize(
    ("dtype", "seen"), [(np.uint8, "float32"), (np.float64, "float32"), (np.int64, "int64")]
)
def test_samples_reach_the_model_as_promised(dtype: type, seen: str) -> None:
    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):  # type: ignore[no-untyped-def]
            assert str(x.dtype) == f"torch.{seen}"
            return self.linear(x.float())

    points = np.full((6, 2), 51).astype(dtype)
    task = Task("mine", Watching, sides(train_images=points, test_images=points))
    learner = Learner(task, np.arange(6))
    trained = learner.train(initial_weights(task, 0), Hyperparameters(0.1, 1, 2), stream(0, "sgd"))
    assert np.isfinite(trained).all()


def test_a_sample_may_have_a_row_of_labels() -> None:
    class Echo(nn.Module):
        """Guesses at each place of a row from the token there."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(3, 3)

        def forward(self, rows):  # type: ignore[no-untyped-def]
            return self.table(rows).transpose(1, 2)

    rows = np.random.default_rng(0).integers(0, 3, (64, 5)).astype(np.int32)
    task = Task("rows", Echo, lambda: Dataset(rows, (rows + 1) % 3, rows, (rows + 1) % 3, classes=3))
    learner = Learner(task, np.arange(64))
    weights = learner.train(initial_weights(task, 0), Hyperparameters(1.0, 20, 32), stream(0, "sgd"))
    score = learner.evaluate(weights)
    assert score.accuracy == score.f1 == 1.0
    outputs = torch.from_numpy(weights).reshape(3, 3)[rows]
    expected = cross_entropy(
        outputs.reshape(-1, 3), torch.from_numpy(((rows + 1) % 3).astype(np.int64)).ravel()
    )
    assert score.loss == pytest.approx(float(expected), rel=1e-5)
