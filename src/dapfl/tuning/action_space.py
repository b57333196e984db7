"""Actions a_i(t) = [η, α] (Eq. 21), and further axes, between what a network says and what a client does.

A network says a vector in [-1, 1], one number for each free axis, in the order of `ActionSpace`; a
pinned axis always has its value. An axis is linear or logarithmic, real or integer.

>>> actions = ActionCodec(ActionSpace())
>>> actions.free
('eta', 'alpha')
>>> chosen = actions.decode(np.array([0.0, -1.0]))
>>> round(chosen.eta, 6), chosen.alpha
(0.2, 1)
"""

import numpy as np
import numpy.typing as npt

from dapfl.arrays import Floats
from dapfl.config import ActionSpace, Axis
from dapfl.errors import ConfigError
from dapfl.hyperparameters import Hyperparameters

AXES = Hyperparameters.names()


class AxisCodec:
    """One axis: value = warp⁻¹(low' + (a + 1)/2 · (high' - low')), where warp is ln or the identity."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.log = axis.scale == "log"
        self.low, self.high = (float(np.log(x)) if self.log else float(x) for x in (axis.low, axis.high))

    def decode(self, action: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Values in the axis' range, not rounded; actions beyond ±1 are clipped."""
        position = (np.clip(np.asarray(action, np.float64), -1.0, 1.0) + 1.0) / 2.0
        warped = self.low + position * (self.high - self.low)
        return np.exp(warped) if self.log else warped

    def slope(self, value: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """d value / d action, at a decoded value."""
        half = (self.high - self.low) / 2.0
        return value * half if self.log else np.full_like(value, half)

    def encode(self, value: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The action that stands for a value; values out of range are clipped."""
        clipped = np.clip(np.asarray(value, np.float64), self.axis.low, self.axis.high)
        warped = np.log(clipped) if self.log else clipped
        return 2.0 * (warped - self.low) / (self.high - self.low) - 1.0

    def value(self, action: float) -> float:
        """The one value that an action means, rounded on an integer axis."""
        decoded = min(max(float(self.decode(action)), self.axis.low), self.axis.high)
        return float(np.rint(decoded)) if self.axis.integer else decoded


class ActionCodec:
    """The free axes of an action space, encoded and decoded together."""

    def __init__(self, space: ActionSpace) -> None:
        self.space = space
        self.axes = {name: AxisCodec(getattr(space, name)) for name in AXES}
        self.free = tuple(name for name in AXES if getattr(space, name).pinned is None)
        self.size = len(self.free)
        self.alpha = self.axes["alpha"]
        self.alpha_index = self.free.index("alpha") if "alpha" in self.free else None
        self._pinned = {name: getattr(space, name).pinned for name in AXES if name not in self.free}
        for name, value in self._pinned.items():
            axis = getattr(space, name)
            if value <= 0 and not axis.low <= value <= axis.high:
                raise ConfigError(f"The axis {name} is pinned to {value:g}: it must be above 0.")

    def decode(self, action: npt.ArrayLike) -> Hyperparameters:
        """The hyper-parameters that one action vector means; α is a whole number of epochs, at least 1."""
        values = dict(self._pinned)
        for name, coordinate in zip(self.free, np.asarray(action, np.float64), strict=True):
            values[name] = self.axes[name].value(float(coordinate))
        return Hyperparameters.rounded(values)

    def encode(self, chosen: Hyperparameters) -> Floats:
        """The action vector of what was executed."""
        return np.array([self.axes[name].encode(getattr(chosen, name)) for name in self.free], np.float32)
