import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest

from dapfl.config import ResourceConfig
from dapfl.errors import ConfigError, TraceError
from dapfl.resources import (
    MeasuredResources,
    Resources,
    SimulatedResources,
    TraceResources,
    battery_share,
    build_resources,
    capability_of,
)

EXAMPLE = Path(__file__).parents[1] / "examples" / "resource_trace.csv"


class Battery(NamedTuple):
    percent: float
    secsleft: int
    power_plugged: bool


HEADER = "round,client,budget,epoch_cost,transfer_cost\n"


def simulated(capability: float = 1.0, samples: int = 600, seed: int = 0, client: int = 1, **config: float):
    return SimulatedResources(ResourceConfig(**config), capability, samples, seed, client)


def test_cost_is_equation_19():
    assert Resources(10.0, 1.5, 0.25).cost(4) == 4 * 1.5 + 2 * 0.25


@pytest.mark.parametrize(("capability", "epochs"), [(1.0, 30), (0.2, 6)])
def test_a_typical_round_affords_the_calibrated_epochs(capability, epochs):
    affordable = [
        simulated(capability, client=client).at(t).affordable for client in range(200) for t in range(40)
    ]
    assert np.mean(affordable) == pytest.approx(epochs, rel=0.12)


def test_every_value_stays_within_its_bounds_and_moves():
    walk = [simulated(0.5, 300).at(t) for t in range(400)]
    budgets, epochs, transfers = (
        np.array([getattr(now, name) for now in walk]) for name in ("budget", "epoch_cost", "transfer_cost")
    )
    assert budgets.min() >= 32 * 0.4
    assert budgets.max() <= 32 * 1.6
    assert epochs.min() >= 0.7
    assert epochs.max() <= 1.3  # 300 samples at half capability cost as much as 600 at full
    assert transfers.min() >= 0.3
    assert transfers.max() <= 2.5
    assert min(budgets.std() / 32, epochs.std(), transfers.std()) > 0.05


def test_the_answer_does_not_depend_on_what_was_asked_before():
    forward, backward = simulated(seed=3), simulated(seed=3)
    rounds = range(50)
    assert [forward.at(t) for t in rounds] == [backward.at(t) for t in reversed(rounds)][::-1]


def test_clients_and_seeds_have_walks_of_their_own():
    walks = [simulated(client=1), simulated(client=2), simulated(seed=1)]
    assert len({process.at(5) for process in walks}) == 3


def test_each_setting_of_the_walk_changes_it():
    plain = [simulated().at(t) for t in range(60)]
    assert [now.budget for now in plain] != [simulated(jump_probability=0).at(t).budget for t in range(60)]
    assert simulated(budget=64.0).at(9).budget == 2 * plain[9].budget
    assert simulated(transfer=0.5).at(9).transfer_cost == plain[9].transfer_cost / 2
    assert simulated(samples=1200).at(9).epoch_cost == pytest.approx(2 * plain[9].epoch_cost)


def test_a_round_before_the_first_is_refused():
    with pytest.raises(ValueError, match="-1"):
        simulated().at(-1)


def test_capability_groups_are_equal_and_in_order():
    capabilities = [capability_of(ResourceConfig(), client, 20) for client in range(1, 21)]
    assert capabilities == [1.0] * 4 + [0.8] * 4 + [0.6] * 4 + [0.4] * 4 + [0.2] * 4
    assert [capability_of(ResourceConfig(), client, 3) for client in (1, 2, 3)] == [1.0, 0.8, 0.4]


def test_the_shipped_trace_serves_twenty_clients():
    for client in range(1, 21):
        process = TraceResources(EXAMPLE, client)
        assert all(process.at(t).affordable >= 1 for t in range(12))
        assert process.at(12) == process.at(0)


def test_a_trace_is_read_as_written(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("# two rounds\n" + HEADER + "1,7,10,2,1\n\n0,7,20,4,0.5\n")
    process = TraceResources(path, 7)
    assert process.at(0) == Resources(20, 4, 0.5)
    assert process.at(1) == Resources(10, 2, 1)
    assert process.at(3) == process.at(1)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("0,1,10,2", "Line 3 .*4 values instead of 5"),
        ("0,1,ten,2,1", "Line 3 .*budget is 'ten', not a number"),
        ("0.5,1,10,2,1", "Line 3 .*round is '0.5', not a whole number"),
        ("0,0,10,2,1", "Line 3 .*client is 0"),
        ("0,1,-1,2,1", "Line 3 .*budget is -1"),
        ("0,1,10,0,1", "Line 3 .*epoch_cost is 0"),
        ("0,1,nan,2,1", "Line 3 .*budget is nan"),
        ("0,2,10,2,1", "Line 3 .*client 2 already has a row for round 0"),
    ],
)
def test_a_malformed_row_is_named_by_its_line(tmp_path, row, complaint):
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,2,10,2,1\n" + row + "\n")
    with pytest.raises(TraceError, match=complaint):
        TraceResources(path, 2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must start with the line round,client"),
        ("round,client\n0,1\n", "must start with the line round,client"),
        (HEADER, "has no rows"),
        (HEADER + "0,1,1,1,1\n2,1,1,1,1\n", "lacks round 1 of client 1"),
        (HEADER + "0,2,1,1,1\n", "no rows for client 1"),
    ],
)
def test_an_incomplete_trace_says_what_is_missing(tmp_path, text, complaint):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=complaint):
        TraceResources(path, 1)


def test_an_absent_or_binary_trace_is_a_user_error(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        TraceResources(tmp_path / "absent.csv", 1)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="cannot be read as text"):
        TraceResources(tmp_path / "binary.csv", 1)


def test_a_trace_that_changed_on_disk_is_read_again(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,1,10,2,1\n")
    assert TraceResources(path, 1).at(0).budget == 10
    path.write_text(HEADER + "0,1,100,2,1\n")
    assert TraceResources(path, 1).at(0).budget == 100


def test_a_new_device_takes_itself_for_a_weak_one():
    first = MeasuredResources(ResourceConfig(), battery=lambda: None).at(0)
    assert first.budget == 600
    assert first.affordable == 6


def test_a_device_plans_with_the_mean_of_its_last_rounds():
    device = MeasuredResources(ResourceConfig(deadline_seconds=100), battery=lambda: None)
    for seconds in (1000.0, 10, 20, 30, 40, 50):
        device.record_epochs(seconds * 2, epochs=2)
        device.record_transfer(seconds / 10)
    assert device.at(6) == Resources(100, 30, 3)
    assert device.at(6).affordable == 3


def test_an_emptying_battery_lowers_the_budget():
    level = [0.5]
    device = MeasuredResources(ResourceConfig(), battery=lambda: level[0])
    assert device.at(0).budget == 300
    level[0] = 0.1
    assert device.at(1).budget == pytest.approx(60)


def test_work_that_was_not_done_is_not_measured():
    device = MeasuredResources(ResourceConfig(), battery=lambda: None)
    before = device.at(0)
    device.record_epochs(3.0, epochs=0)
    device.record_transfer(-1.0)
    assert device.at(1) == before
    device.record_epochs(0.0, epochs=5)
    assert device.at(2).epoch_cost > 0


def test_measurements_survive_a_restart():
    device = MeasuredResources(ResourceConfig(), battery=lambda: None)
    device.record_epochs(12.5, epochs=3)
    device.record_transfer(0.7)
    again = MeasuredResources(ResourceConfig(), battery=lambda: None)
    again.restore(device.saved_state())
    assert again.at(1) == device.at(1)
    assert again.saved_state() == device.saved_state()


@pytest.mark.parametrize("state", [b"", b"{}", b"[1]", b'{"epoch_seconds": ["x"], "transfer_seconds": []}'])
def test_damaged_measurements_are_named(state):
    with pytest.raises(TraceError, match="measure again"):
        MeasuredResources(ResourceConfig()).restore(state)


@pytest.mark.parametrize(
    ("battery", "share"),
    [
        (None, None),
        ((80, 3600, True), None),
        ((40, 3600, False), 0.4),
        ((120, 3600, False), 1.0),
    ],
)
def test_only_a_battery_in_use_counts(monkeypatch, battery, share):
    reading = None if battery is None else Battery(*battery)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: reading, raising=False)
    assert battery_share() == share


def test_a_platform_without_battery_sensors_has_none(monkeypatch):
    monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    assert battery_share() is None


def test_the_configuration_names_the_source(tmp_path):
    config = ResourceConfig()
    walk = build_resources(config, client=20, clients=20, samples=600, seed=0)
    assert isinstance(walk, SimulatedResources)
    assert walk.capability == 0.2
    trace = build_resources(ResourceConfig(source="trace", trace=str(EXAMPLE)), 1, 20, 600, 0)
    assert trace.at(0) == TraceResources(EXAMPLE, 1).at(0)
    assert isinstance(build_resources(ResourceConfig(source="measured"), 1, 20, 600, 0), MeasuredResources)
    with pytest.raises(ConfigError, match=r"resources\.trace"):
        build_resources(ResourceConfig(source="trace"), 1, 20, 600, 0)


def test_resources_are_finite_for_many_clients():
    config = ResourceConfig()
    for client in range(1, 2001):
        now = build_resources(config, client, 2000, 6, seed=1).at(0)
        assert math.isfinite(now.cost(1))
