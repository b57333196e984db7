"""What every participant agrees on."""

from pathlib import Path

from dapfl.config import RunConfig
from dapfl.experiments.settings import resolve

CONFIG = RunConfig(
    task=f"{Path(__file__).with_name('task.py')}:TASK",
    setting="dap-fl",  # every client's own agent picks its learning rate and its epochs
    clients=3,
    rounds=5,
)
POLICY = resolve(CONFIG).policy
