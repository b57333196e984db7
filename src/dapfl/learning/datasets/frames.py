"""Reads pandas frames out of a pickle without running anything from it, and without pandas.

A pickle is a program: it names functions and calls them. Here every name stands for the same inert
object, which keeps what it was called with and does nothing; and a name that frames of numbers have
no use for is refused. The columns are then taken from what the inert objects kept.
"""

import pickle
from gzip import GzipFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dapfl.errors import DataError

Frame = dict[str, NDArray[Any]]
"""The columns of numbers, by name."""

_NAMES = {
    ("__builtin__", "object"),
    ("__builtin__", "slice"),
    ("_codecs", "encode"),
    ("copy_reg", "_reconstructor"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
    ("pandas.core.internals.managers", "BlockManager"),
}
_BLOCKS = "0.14.1"  # where pandas keeps a frame's blocks and axes, by the version that began it
_NUMBERS = {"f8", "i8"}


class _Inert:
    """Whatever the pickle says: what it was called with, and the state it was given."""

    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Inert]:
        if (module, name) not in _NAMES:
            raise DataError(f"the pickle asks for {module}.{name}, which no frame of numbers needs: refused")
        return _Inert

    def persistent_load(self, pid: Any) -> Any:
        raise DataError("the pickle refers to objects outside of it: refused")


def read_frames(opened: IO[bytes] | GzipFile) -> dict[int, list[Frame]]:
    """The frames of a pickle that holds a dict of lists of frames; DataError if it holds anything else."""
    try:
        people = _InertUnpickler(opened).load()
        return {int(person): [_frame(each) for each in frames] for person, frames in people.items()}
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"the pickle does not hold frames of numbers: {error}") from None


def _frame(frame: _Inert) -> Frame:
    manager = frame.state["_data"].state[3][_BLOCKS]
    names = _array(manager["axes"][0].arguments[1]["data"])
    columns: Frame = {}
    for block in manager["blocks"]:
        places = range(*slice(*block["mgr_locs"].arguments).indices(len(names)))
        for name, values in zip(places, _array(block["values"]), strict=True):
            columns[str(names[name])] = values
    return columns


def _array(array: _Inert) -> NDArray[Any]:
    """What `ndarray.__setstate__` would have made of its state: version, shape, dtype, order, content."""
    _, shape, dtype, fortran, content = array.state
    if isinstance(content, list):
        return np.array([str(item) for item in content])
    code, order = dtype.arguments[0], dtype.state[1]
    if code not in _NUMBERS:
        raise DataError(f"the pickle holds an array of type {code}: refused")
    text, encoding = content.arguments  # how Python 3 writes bytes in an old protocol
    if encoding != "latin1":
        raise DataError(f"the pickle holds bytes in the encoding {encoding}: refused")
    numbers = np.frombuffer(text.encode("latin1"), np.dtype(order + code))
    return numbers.reshape(shape, order="F" if fortran else "C")
