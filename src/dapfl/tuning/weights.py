"""Weights that an agent starts from: the packaged ones, or a file that `dapfl pretrain` made."""

from functools import lru_cache
from importlib import resources
from pathlib import Path

import msgspec

from dapfl.config import Axis
from dapfl.errors import PolicyError

PACKAGED = "warm_start.msgpack"


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent has learned, and the shape it fits."""

    state: str
    hidden: tuple[int, ...]
    activation: str
    axes: dict[str, Axis]  # the free axes: elsewhere the same numbers would mean other actions
    actor: bytes
    critics: tuple[bytes, ...]
    made_by: str = ""  # the command and seed that made them

    def save(self, path: Path) -> None:
        """Write the file that `load` reads."""
        path.write_bytes(msgspec.msgpack.encode(self))

    def check_fit(self, own: "Weights") -> None:
        """Raise a PolicyError unless these can stand in the place of `own`."""
        for name in ("state", "hidden", "activation", "axes"):
            theirs, ours = getattr(self, name), getattr(own, name)
            if theirs != ours:
                raise PolicyError(
                    f"These weights were learned with {name} = {theirs}, but the agent has {ours}: "
                    "use weights made for it, or start without (warm_start)."
                )
        if len(self.critics) < len(own.critics):
            raise PolicyError("These weights hold one critic, but the agent has two: set twin = false.")


@lru_cache(maxsize=8)
def load(source: str) -> Weights:
    """The weights named "packaged", or those in a file."""
    try:
        place = resources.files("dapfl.tuning").joinpath(PACKAGED) if source == "packaged" else Path(source)
        return msgspec.msgpack.decode(place.read_bytes(), type=Weights)
    except OSError as error:
        raise PolicyError(f"The warm-start weights {source} cannot be read: {error.strerror}.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PolicyError(f"The file {source} does not hold warm-start weights: {error}.") from None
