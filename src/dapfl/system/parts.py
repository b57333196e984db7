"""The optional parts of an installation: what each is for, and which packages come with it.

The core (cryptography, protocol, tuning, the Flower mod) needs none of them.
"""

from typing import NamedTuple

from dapfl.errors import ConfigError


class Part(NamedTuple):
    """An extra of the package, as in `pip install '.[train]'` in a checkout."""

    extra: str
    purpose: str


_TRAIN = Part("train", "training models and loading tasks")
_FLOWER = Part("flower", "Flower nodes and deployments")
_REPORT = Part("report", "reports, figures and the live page")
PACKAGES = {
    "torch": _TRAIN,
    "PIL": _TRAIN,
    "flwr": _FLOWER,
    "httpx": _FLOWER,
    "matplotlib": _REPORT,
    "plotly": _REPORT,
    "starlette": _REPORT,
    "uvicorn": _REPORT,
}


def absent(error: ModuleNotFoundError) -> ConfigError | None:
    """What to say instead, if the package that is not found belongs to a part that is not installed.

    >>> str(absent(ModuleNotFoundError(name="torch.nn")))[:68]
    'torch is not installed here, and training models and loading tasks n'
    >>> absent(ModuleNotFoundError(name="json.nothing")) is None
    True
    """
    package = (error.name or "").partition(".")[0]
    part = PACKAGES.get(package)
    if part is None:
        return None
    return ConfigError(
        f"{package} is not installed here, and {part.purpose} need it. "
        f"Install Dap-FL with its part '{part.extra}': pip install '.[{part.extra}]' in a checkout, or pip "
        f"install 'dapfl-....whl[{part.extra}]' with its wheel."
    )
