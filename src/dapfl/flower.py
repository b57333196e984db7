"""Dap-FL in an existing Flower app, by two lines.

    app = ClientApp(mods=[dapfl.flower.mod()])    # client_app.py: encrypts, signs, tunes
    strategy = dapfl.flower.DapFL()               # server_app.py: instead of FedAvg()

The app's train and evaluate functions stay as they are (docs/flower.md).
"""

from typing import TYPE_CHECKING

from dapfl.system.lazy import lazy_names

if TYPE_CHECKING:
    from dapfl.engines.flower.own_app.mod import mod as mod
    from dapfl.engines.flower.own_app.strategy import DapFL as DapFL

_HOMES = {
    "DapFL": "dapfl.engines.flower.own_app.strategy",
    "mod": "dapfl.engines.flower.own_app.mod",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
