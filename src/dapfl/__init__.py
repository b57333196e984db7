"""Dap-FL: adaptive, private federated learning.

For notebooks and scripts, `import dapfl` is enough:

    result = dapfl.run(task="logistic-mnist", rounds=5, on_round=lambda row: print(row.round, row.accuracy))
    result.to_frame()                   # a pandas frame, one row per round
    result.load_into(my_module)         # the trained model, in your torch.nn.Module
    result.figure()                     # loss and accuracy over rounds, by matplotlib

| name | what it does |
|---|---|
| `run` | runs a federation in a new run directory |
| `resume` | continues a run that was stopped |
| `load` | reads a run directory, finished or not |
| `compare` | runs several settings and seeds under the same conditions |
| `RunResult`, `Comparison` | what these return |
| `RoundRecord` | the record of a round, which a callback gets |
| `Task`, `Dataset` | what a federation learns: a model, its data and its loss |
| `DapflError` | the base class of all errors that Dap-FL raises on purpose |
| `crypto` | Paillier encryption for float vectors, on its own |
| `tuning` | the agent and other policies, for a training loop of your own |
| `learning` | tasks, data and SGD |
| `flower` | two lines for an existing Flower app |

Importing `dapfl` loads none of them, nor PyTorch, numpy or matplotlib: each is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from dapfl.system.lazy import lazy_names

if TYPE_CHECKING:
    from dapfl import crypto as crypto
    from dapfl import flower as flower
    from dapfl import learning as learning
    from dapfl import tuning as tuning
    from dapfl.api.federations import compare as compare
    from dapfl.api.federations import load as load
    from dapfl.api.federations import resume as resume
    from dapfl.api.federations import run as run
    from dapfl.api.results import Comparison as Comparison
    from dapfl.api.results import RunResult as RunResult
    from dapfl.errors import DapflError as DapflError
    from dapfl.federation.records import RoundRecord as RoundRecord
    from dapfl.learning.data import Dataset as Dataset
    from dapfl.learning.tasks import Task as Task

__version__ = "0.1.0"

# The module of each public name; a package is named by itself.
_HOMES = {
    "Comparison": "dapfl.api.results",
    "DapflError": "dapfl.errors",
    "Dataset": "dapfl.learning.data",
    "RoundRecord": "dapfl.federation.records",
    "RunResult": "dapfl.api.results",
    "Task": "dapfl.learning.tasks",
    "compare": "dapfl.api.federations",
    "crypto": "dapfl.crypto",
    "flower": "dapfl.flower",
    "learning": "dapfl.learning",
    "load": "dapfl.api.federations",
    "resume": "dapfl.api.federations",
    "run": "dapfl.api.federations",
    "tuning": "dapfl.tuning",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
