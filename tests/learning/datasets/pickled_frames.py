"""Pickles of pandas frames as an old pandas wrote them, made without pandas."""

import io
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np


class Call:
    """Is pickled as the call of a function and the state given to what it returns."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], state: Any = None) -> None:
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced


def named(module: str, name: str) -> Callable[..., Any]:
    """A function that a pickle calls by this name; the modules exist while `pickled` runs."""

    def function(*arguments: Any) -> None:
        raise AssertionError(f"{name} was called")

    function.__module__, function.__qualname__, function.__name__ = module, name, name
    return function


RECONSTRUCT = named("numpy.core.multiarray", "_reconstruct")
FRAME = named("pandas.core.frame", "DataFrame")
MANAGER = named("pandas.core.internals.managers", "BlockManager")
INDEX = named("pandas.core.indexes.base", "Index")
NEW_INDEX = named("pandas.core.indexes.base", "_new_Index")
RECONSTRUCTOR = named("copy_reg", "_reconstructor")
FUNCTIONS = (RECONSTRUCT, FRAME, MANAGER, INDEX, NEW_INDEX, RECONSTRUCTOR)


def array(values: np.ndarray) -> Call:
    code = values.dtype.str[1:]
    content = values.tolist() if values.dtype.hasobject else values.tobytes()
    dtype = Call(np.dtype, (code, 0, 1), (3, "<", None, None, None, -1, -1, 0))
    return Call(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, values.shape, dtype, False, content))


def frame(columns: dict[str, np.ndarray]) -> Call:
    """A frame in two blocks, floats first, as pandas keeps them."""
    floats = [name for name, column in columns.items() if column.dtype == np.float64]
    whole = [name for name in columns if name not in floats]
    names = np.array([*floats, *whole], object)
    blocks = [
        {
            "values": array(np.stack([columns[name] for name in part])),
            "mgr_locs": slice(start, start + len(part), 1),
        }
        for start, part in ((0, floats), (len(floats), whole))
    ]
    axis = Call(NEW_INDEX, (INDEX, {"data": array(names), "name": None}))
    kept = {"0.14.1": {"axes": [axis], "blocks": blocks}}
    manager = Call(MANAGER, (), ([], [], [], kept))
    return Call(RECONSTRUCTOR, (FRAME, object, None), {"_data": manager, "_typ": "dataframe"})


def pickled(value: Any) -> bytes:
    modules = {"pandas": ModuleType("pandas")}
    for function in FUNCTIONS:
        module = modules.setdefault(function.__module__, ModuleType(function.__module__))
        setattr(module, function.__name__, function)
    target = io.BytesIO()
    with patch.dict(sys.modules, modules):
        pickle.Pickler(target, protocol=2).dump(value)
    return target.getvalue()
