"""Actions and the values they stand for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapfl.config import ActionSpace, Axis
from dapfl.errors import ConfigError
from dapfl.federation.records import ClientRecord, ClientReport
from dapfl.hyperparameters import Hyperparameters
from dapfl.tuning import Choice
from dapfl.tuning.action_space import ActionCodec, AxisCodec

LINEAR = Axis(low=1, high=40, integer=True)
LOG = Axis(low=1e-4, high=1e-1, scale="log")


@given(st.floats(-1, 1))
def test_decode_then_encode_gives_the_action_back(action: float) -> None:
    for axis in (LINEAR, LOG):
        codec = AxisCodec(axis)
        assert codec.encode(codec.decode(action)) == pytest.approx(action, abs=1e-9)


def test_middle_of_a_log_axis_is_the_geometric_mean() -> None:
    assert float(AxisCodec(LOG).decode(0.0)) == pytest.approx(10**-2.5)
    assert float(AxisCodec(LINEAR).decode(0.0)) == pytest.approx(20.5)


@pytest.mark.parametrize("axis", [LINEAR, LOG])
def test_slope_is_the_derivative_of_decode(axis: Axis) -> None:
    codec = AxisCodec(axis)
    for action in (-0.7, 0.0, 0.4):
        numerical = (codec.decode(action + 1e-6) - codec.decode(action - 1e-6)) / 2e-6
        assert codec.slope(codec.decode(np.array([action])))[0] == pytest.approx(float(numerical), rel=1e-5)


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=3))
def test_every_action_means_something_within_the_axes(action: list[float]) -> None:
    space = ActionSpace(batch_size=Axis(low=8, high=128, scale="log", integer=True))
    chosen = ActionCodec(space).decode(action)
    assert space.eta.low <= chosen.eta <= space.eta.high
    assert isinstance(chosen.alpha, int) and 1 <= chosen.alpha <= 30
    assert isinstance(chosen.batch_size, int) and 8 <= chosen.batch_size <= 128


def test_batch_size_is_a_third_axis_that_is_off_by_default() -> None:
    assert ActionCodec(ActionSpace()).free == ("eta", "alpha")
    three = ActionCodec(ActionSpace(batch_size=Axis(low=8, high=128, scale="log", integer=True)))
    assert three.free == ("eta", "alpha", "batch_size")
    assert three.decode([0, 0, -1]).batch_size == 8 and three.decode([0, 0, 1]).batch_size == 128


def test_pinned_axes_leave_the_action() -> None:
    space = ActionSpace(eta=Axis(low=1e-4, high=1e-2, scale="log", pinned=1e-3))
    codec = ActionCodec(space)
    assert codec.free == ("alpha",) and codec.alpha_index == 0
    assert codec.decode([1.0]) == Hyperparameters(1e-3, 30, 32)
    assert codec.encode(Hyperparameters(1e-3, 30, 32)).tolist() == pytest.approx([1.0])


def test_alpha_is_never_less_than_one_epoch() -> None:
    space = ActionSpace(alpha=Axis(low=0, high=40, integer=True))
    assert ActionCodec(space).decode([0.0, -1.0]).alpha == 1


def test_executed_action_is_what_encode_gives() -> None:
    codec = ActionCodec(ActionSpace())
    executed = Hyperparameters(0.5, 6, 32)
    assert codec.decode(codec.encode(executed)) == Hyperparameters(pytest.approx(0.5), 6, 32)


def test_axis_pinned_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="eta is pinned to -1"):
        ActionCodec(ActionSpace(eta=Axis(low=1e-4, high=1, pinned=-1)))


@pytest.mark.parametrize("wrong", [{"low": 2, "high": 1}, {"low": 0, "high": 1, "scale": "log"}])
def test_axis_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="axis"):
        Axis(**wrong)  # type: ignore[arg-type]


def test_a_pinned_value_may_be_zero_where_its_axis_reaches_zero() -> None:
    assert ActionCodec(ActionSpace(eta=Axis(low=0, high=1, pinned=0))).decode([0.0]).eta == 0
    with pytest.raises(ConfigError, match="above 0"):
        ActionCodec(ActionSpace(eta=Axis(low=0.1, high=1, pinned=0)))


def test_every_hyper_parameter_has_an_axis_and_a_column() -> None:
    assert ActionSpace.__struct_fields__ == Hyperparameters.names()
    for columns in (ClientReport, ClientRecord):
        assert set(Hyperparameters.names()) <= set(columns.__struct_fields__)


def test_numbers_of_a_choice_are_plain() -> None:
    choice = Choice(np.float32(0.5), np.int64(3), np.int32(8), planned_alpha=np.int64(4))  # type: ignore[arg-type]
    assert choice.plain() == {"eta": 0.5, "alpha": 3, "batch_size": 8, "planned_alpha": 4}
    assert {type(value) for value in choice.plain().values()} == {int, float}
