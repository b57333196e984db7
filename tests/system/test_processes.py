import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from dapfl.system.processes import WORKERS

# No `if __name__ == "__main__":` here, as in many a script of a user: nothing may run twice.
SCRIPT = """
from concurrent.futures import ProcessPoolExecutor
from operator import add

from dapfl.system.processes import WORKERS

print("the script runs", flush=True)
with ProcessPoolExecutor(2, mp_context=WORKERS) as pool:
    print(*pool.map(add, range(4), range(4)))
"""


@pytest.mark.processes
def test_a_script_without_a_main_guard_starts_workers_and_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("the script runs\n0 2 4 6\n", "")


@pytest.mark.processes
def test_the_main_program_is_back_after_a_start() -> None:
    main = sys.modules["__main__"]
    process = WORKERS.Process(target=int)
    process.start()
    process.join()
    assert sys.modules["__main__"] is main and process.exitcode == 0


def _blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.processes
def test_workers_leave_control_c_to_the_program_that_started_them() -> None:
    """A worker that is still importing would answer it with a traceback."""
    with ProcessPoolExecutor(1, mp_context=WORKERS) as pool:
        assert pool.submit(_blocked).result()
    assert not _blocked()
