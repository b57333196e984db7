"""Dap-FL in an existing Flower app, by two lines.

    app = ClientApp(mods=[dapfl.flower.mod()])    # client_app.py: encrypts, signs, tunes
    strategy = dapfl.flower.DapFL()               # server_app.py: instead of FedAvg()

The app's train and evaluate functions stay as they are (docs/flower.md).
"""

from typing import TYPE_CHECKING

from dapfl import errors
from dapfl.lazy import lazy_names

if TYPE_CHECKING:
    from dapfl.engines.flower.own_app.mod import mod as mod
    from dapfl.engines.flower.own_app.strategy import DapFL as DapFL

_HOMES = {
    "DapFL": "dapfl.engines.flower.own_app.strategy",
    "mod": "dapfl.engines.flower.own_app.mod",
}
__all__ = list(_HOMES)
_load, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == "flwr":
            raise errors.ConfigError(
                "dapfl.flower is for apps of Flower, which is not installed: pip install flwr==1.41.0."
            ) from None
        raise
