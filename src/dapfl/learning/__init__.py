"""Learning as one client knows it: tasks, data, models, SGD and metrics, without rounds or keys.

| name | what it is |
|---|---|
| `Task`, `get_task` | a model, its data and its loss; the task of a name, built in or of your own |
| `Dataset` | training and test samples with their labels |
| `Learner` | one client: trains a model on its samples, and scores one on them |
| `Evaluator` | scores a model on the test set |
| `Metrics` | loss, accuracy and macro-F1 |
| `Layout` | which tensor of a model lies where in a flat vector of weights |
| `initial_weights` | the weights that a run starts from |

Importing this package does not load PyTorch: each name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from dapfl.system.lazy import lazy_names

if TYPE_CHECKING:
    from dapfl.learning.data import Dataset as Dataset
    from dapfl.learning.layout import Layout as Layout
    from dapfl.learning.metrics import Metrics as Metrics
    from dapfl.learning.sgd import Evaluator as Evaluator
    from dapfl.learning.sgd import Learner as Learner
    from dapfl.learning.sgd import initial_weights as initial_weights
    from dapfl.learning.tasks import Task as Task
    from dapfl.learning.tasks import get_task as get_task

_HOMES = {
    "Dataset": "dapfl.learning.data",
    "Evaluator": "dapfl.learning.sgd",
    "Layout": "dapfl.learning.layout",
    "Learner": "dapfl.learning.sgd",
    "Metrics": "dapfl.learning.metrics",
    "Task": "dapfl.learning.tasks",
    "get_task": "dapfl.learning.tasks",
    "initial_weights": "dapfl.learning.sgd",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
