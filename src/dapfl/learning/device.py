"""Where models train and are scored: the one place that knows of devices other than the CPU.

A process has one device, chosen by `use` before it builds its first model. Weight vectors, the codec and the
protocol stay on the CPU: weights go to the device at the start of a client's round, and come back at its end.

The CPU is the default. It alone gives the same bits in every process and on both engines. On a GPU, torch is
asked for deterministic algorithms and full float32 precision; two runs on one machine should then agree.
None of this has been run on a real GPU yet (docs/own-task.md).
"""

import os

import torch
from torch import Tensor

from dapfl.config import DeviceName
from dapfl.errors import ConfigError

_WORKER_BYTES = 1 << 30  # a context of CUDA, and a small model with its samples
_current = torch.device("cpu")


def use(name: DeviceName) -> torch.device:
    """Chooses the device of this process; ConfigError if this machine does not have it.

    >>> use("cpu")
    device(type='cpu')
    """
    global _current
    _current = torch.device(_found() if name == "auto" else name)
    if not _available(_current.type):
        raise ConfigError(
            f"device is '{name}', and PyTorch finds none here: install a PyTorch for it, or say cpu or auto."
        )
    if _current.type != "cpu":
        _be_deterministic()
    return _current


def current() -> torch.device:
    """The device of this process."""
    return _current


def moved(tensor: Tensor) -> Tensor:
    """The tensor on the device of this process."""
    return tensor.to(_current)


def workers(wanted: int) -> int:
    """How many worker processes to start, each with a context of its own; `wanted` is 0 for one a core.

    >>> _ = use("cpu")
    >>> workers(0), workers(3)
    (0, 3)
    """
    if _current.type == "cpu":
        return wanted
    fitting = _free_bytes() // _WORKER_BYTES if _current.type == "cuda" else 1
    return max(1, min(wanted or os.cpu_count() or 1, fitting))


def _found() -> str:
    return next((name for name in ("cuda", "mps") if _available(name)), "cpu")


def _available(name: str) -> bool:
    if name == "cuda":
        return torch.cuda.is_available()
    if name == "mps":
        return torch.backends.mps.is_available()
    return True


def _free_bytes() -> int:
    return int(torch.cuda.mem_get_info()[0])


def _be_deterministic() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may sum in any order
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
