import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dapfl.errors import DataError
from dapfl.learning.datasets.frames import read_frames

from .pickled_frames import Call, frame, pickled

COLUMNS = {"x": np.array([0.5, 1.5]), "y": np.array([-1.0, 2.0]), "label": np.array([3, 4])}


def read(content: bytes) -> Any:
    return read_frames(io.BytesIO(content))


def test_frames_are_read_without_pandas() -> None:
    people = read(pickled({1: [frame(COLUMNS)], 2: [frame(COLUMNS), frame(COLUMNS)]}))
    assert [len(frames) for frames in people.values()] == [1, 2]
    read_back = people[2][1]
    assert read_back.keys() == COLUMNS.keys()
    assert all(np.array_equal(read_back[name], column) for name, column in COLUMNS.items())


@pytest.mark.parametrize("function", [os.system, eval, open], ids=["system", "eval", "open"])
def test_a_hostile_pickle_is_refused_and_runs_nothing(function: Callable[..., Any], tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    argument = {os.system: f"touch {trace}", eval: f"open({str(trace)!r}, 'w')", open: str(trace)}[function]
    hostile = pickle.dumps({1: [Call(function, (argument, "w") if function is open else (argument,))]}, 2)
    with pytest.raises(DataError, match="refused"):
        read(hostile)
    assert not trace.exists()


def test_calls_of_names_that_frames_need_do_nothing_either() -> None:
    with pytest.raises(DataError, match="does not hold frames"):
        read(pickle.dumps({1: [Call(slice, ("anything",))]}, 2))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickled({1: [frame(COLUMNS)]})[:-20],
        pickle.dumps([1, 2], 2),
        pickle.dumps({1: [{}]}, 2),
    ],
    ids=["empty", "text", "cut short", "a list", "no frame"],
)
def test_what_is_no_pickle_of_frames_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="does not hold frames"):
        read(content)


def test_arrays_of_anything_but_numbers_are_refused() -> None:
    words = {"x": np.array([0.5]), "label": np.array(["word"])}
    with pytest.raises(DataError, match="array of type U4: refused"):
        read(pickled({1: [frame(words)]}))
