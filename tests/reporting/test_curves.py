"""What figures and pages draw, computed from the records of rounds."""

import json

import pytest

from dapfl.federation.records import Status
from dapfl.reporting import curves
from dapfl.reporting.measures import grouped
from dapfl.reporting.palette import STATUSES
from dapfl.runs.results import find_runs
from tests.fake_runs import rounds, write_comparison, write_run


def test_every_status_has_a_colour():
    assert list(STATUSES) == [status.value for status in Status]


def test_statuses_of_a_round_add_up_to_its_clients_also_when_some_runs_lack_one(tmp_path):
    calm, attacked = (write_run(tmp_path / str(seed), "small", seed, 3, clients=5) for seed in (0, 1))
    lines = [json.loads(line) for line in (attacked / "rounds.jsonl").read_text().splitlines()]
    lines[1]["clients"][2]["status"] = "rejected:replayed"
    (attacked / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (group,) = grouped(find_runs([calm, attacked]))
    found = curves.statuses_by_round(group)
    assert found["rejected"].tolist() == [0, 0.5, 0]
    assert sum(found.values()).tolist() == [5, 5, 5]


def test_shares_of_statuses_are_of_all_rounds_and_sum_to_100(tmp_path):
    groups = grouped(find_runs([write_comparison(tmp_path, ("dap-fl", "large"), seeds=2, count=4)]))
    found = curves.status_shares(groups)
    clients = [client for seed in (0, 1) for line in rounds("large", seed, 4) for client in line["clients"]]
    accepted = sum(client["status"] == "accepted" for client in clients)
    assert found["accepted"][1] == pytest.approx(100 * accepted / len(clients))
    assert [sum(shares) for shares in zip(*found.values(), strict=True)] == pytest.approx([100, 100])
    assert "unselected" not in found


def test_phases_are_means_per_round_by_side(tmp_path):
    groups = grouped(find_runs([write_comparison(tmp_path, ("large",), seeds=1, count=4)]))
    server, clients = curves.phases(groups)
    assert next(iter(server)) == "exchange" and server["exchange"] == [pytest.approx(5.6)]
    trained = [line["seconds"]["client_train"] for line in rounds("large", 0, 4)]
    assert clients["train"] == [pytest.approx(sum(trained) / 4)]
    assert "total" not in server
    assert curves.traffic(groups) == {"up": [pytest.approx(1.82)], "down": [pytest.approx(1.8)]}
