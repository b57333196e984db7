import subprocess
import sys

import pytest

from dapfl import learning


def test_the_public_names_of_learning() -> None:
    assert learning.__all__ == [
        "Dataset",
        "Evaluator",
        "Layout",
        "Learner",
        "Metrics",
        "Task",
        "get_task",
        "initial_weights",
    ]
    assert all(getattr(learning, name).__doc__ for name in learning.__all__)
    assert set(learning.__all__) <= set(dir(learning))
    with pytest.raises(AttributeError, match=r"dapfl\.learning.*no attribute 'Student'"):
        _ = learning.Student


def test_importing_learning_loads_no_torch() -> None:
    code = "import sys, dapfl.learning; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
