import subprocess
import sys

from dapfl import tuning


def test_the_public_names_of_tuning() -> None:
    assert tuning.__all__ == [
        "AgentRecord",
        "Choice",
        "Cosine",
        "Fixed",
        "HyperparameterPolicy",
        "Hyperparameters",
        "Outcome",
        "Random",
        "Situation",
        "build_policy",
        "decide",
    ]
    assert all(getattr(tuning, name).__doc__ for name in tuning.__all__)


def test_importing_tuning_loads_no_torch() -> None:
    code = "import sys, dapfl.tuning; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
