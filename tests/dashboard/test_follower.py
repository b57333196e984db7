import json

import msgspec
import pytest

from dapfl.dashboard.follower import Follower
from dapfl.dashboard.views import MOST_CLIENTS
from dapfl.runs.directory import RunDirectory
from tests.fake_runs import manifest, rounds, write_run


def lines(count, **options):
    return [json.dumps(line) + "\n" for line in rounds(count=count, **options)]


def append(path, text):
    with (path / "rounds.jsonl").open("a") as file:
        file.write(text)


def shown(update):
    return msgspec.json.decode(update.to_json())


def test_a_run_is_followed_from_before_it_exists_to_its_end(tmp_path):
    path = tmp_path / "run"
    follower = Follower(path)
    follower.refresh()
    assert "there is no such directory yet" in follower.run.problem
    path.mkdir()
    follower.refresh()
    assert follower.run.problem is not None
    write_run(path, count=0, status="running", planned=3)
    follower.refresh()
    assert (follower.run.problem, follower.run.facts.status) == (None, "running")
    for t, line in enumerate(lines(3)):
        append(path, line)
        follower.refresh()
        assert len(follower.run.rounds) == t + 1
    (path / "manifest.json").write_text(json.dumps(manifest()))
    follower.refresh()
    assert follower.run.facts.status == "finished"
    assert len(follower.run.rounds) == 3


def test_a_run_that_is_killed_is_shown_as_stopped_with_what_continues_it(tmp_path):
    path = write_run(tmp_path, count=1, status="running")
    follower = Follower(path)
    with RunDirectory(path).lock():  # which the system frees when its process is killed
        follower.refresh()
        assert follower.run.facts.status == "running"
    follower.refresh()
    assert follower.run.facts.status == "stopped"
    assert follower.run.facts.rows[0] == ("Continue", f"dapfl run --resume {path}")


def test_an_empty_directory_is_waited_in(tmp_path):
    follower = Follower(tmp_path)
    follower.refresh()
    assert "no run has been started" in follower.run.problem


def test_a_half_written_line_is_shown_only_when_it_is_whole(tmp_path):
    path = write_run(tmp_path, count=1, status="running")
    follower = Follower(path)
    follower.refresh()
    last = lines(2)[1]
    append(path, last[:300])
    follower.refresh()
    assert (len(follower.run.rounds), follower.run.problem) == (1, None)
    append(path, last[300:])
    follower.refresh()
    assert len(follower.run.rounds) == 2


def test_nothing_new_on_the_disk_changes_nothing(tmp_path):
    follower = Follower(write_run(tmp_path, count=2))
    follower.refresh()
    before = follower.run
    follower.refresh()
    assert follower.run is before


def test_an_update_holds_only_what_a_page_has_not_seen(tmp_path):
    path = write_run(tmp_path, count=2, status="running")
    follower = Follower(path)
    follower.refresh()
    assert follower.run.update().fresh
    append(path, lines(3)[2])
    follower.refresh()
    update = follower.run.update(after=2)
    assert not update.fresh
    assert [row.round for row in update.rounds] == [2]
    assert len(update.clients) == 20


def test_a_run_that_was_set_back_is_told_from_the_start(tmp_path):
    path = write_run(tmp_path, count=4, status="running")
    follower = Follower(path)
    follower.refresh()
    (path / "new").write_text("".join(lines(2)))
    (path / "new").replace(path / "rounds.jsonl")
    follower.refresh()
    assert (follower.run.generation, len(follower.run.rounds)) == (1, 2)
    append(path, lines(2)[1])  # round 1 once more
    follower.refresh()
    assert (follower.run.generation, len(follower.run.rounds)) == (2, 2)


@pytest.mark.parametrize("name", ["manifest.json", "rounds.jsonl"])
def test_a_damaged_file_is_a_notice_and_what_is_known_stays(tmp_path, name):
    path = write_run(tmp_path, count=2)
    follower = Follower(path)
    follower.refresh()
    with (path / name).open("a") as file:
        file.write("{]\n")
    follower.refresh()
    assert name in follower.run.problem
    assert len(follower.run.rounds) == 2


def test_views_hold_the_numbers_of_rounds_jsonl(tmp_path):
    follower = Follower(write_run(tmp_path, count=4))
    follower.refresh()
    written = rounds(count=4)[3]
    update = shown(follower.run.update())
    row = update["rounds"][3]
    for name in (
        "loss",
        "accuracy",
        "f1",
        "worst_accuracy",
        "participants",
        "violations",
        "bytes_up",
        "simulated_seconds",
        "seconds",
    ):
        assert row[name] == written[name]
    assert row["events"] == [
        {"round": 3, "client": each["client"], "reason": each["reason"], "at": "server"}
        for each in written["rejections"]
    ]
    strongest = [client for client in written["clients"] if client["capability"] == 1.0]
    assert row["choices"][0]["alpha"] == pytest.approx(sum(c["alpha"] for c in strongest) / 4)
    card, client = update["clients"][4], written["clients"][4]
    assert card == {
        **{key: client.get(key) for key in card if key != "lambda_"},
        "lambda_": client["lambda"],
    }


def test_a_refused_upload_keeps_the_capability_reported_before(tmp_path):
    path = write_run(tmp_path, count=1)
    append(path, json.dumps({"round": 1, "clients": [{"id": 3, "status": "rejected:replayed"}]}) + "\n")
    follower = Follower(path)
    follower.refresh()
    (card,) = follower.run.update().clients
    assert (card.capability, card.eta) == (1.0, None)


def test_of_many_clients_those_outside_come_first_and_all_in_order(tmp_path):
    path = write_run(tmp_path, count=0)
    clients = [{"id": i, "status": "accepted" if i % 3 else "over-budget"} for i in range(1, 1001)]
    append(path, json.dumps({"round": 0, "clients": clients}) + "\n")
    follower = Follower(path)
    follower.refresh()
    ids = [card.id for card in follower.run.update().clients]
    assert len(ids) == MOST_CLIENTS
    assert ids == sorted(ids)
    assert all(i % 3 == 0 for i in ids)


def test_nothing_secret_can_reach_the_page(tmp_path):
    path = write_run(tmp_path, count=1)
    facts = json.loads((path / "manifest.json").read_text())
    facts["password"] = facts["config"]["token"] = facts["host"]["secret"] = "hunter2"
    facts["command"].append("--passphrase=hunter2")
    (path / "manifest.json").write_text(json.dumps(facts))
    append(
        path,
        json.dumps(
            {"round": 1, "key": "hunter2", "clients": [{"id": 1, "status": "accepted", "sk": "hunter2"}]}
        )
        + "\n",
    )
    follower = Follower(path)
    follower.refresh()
    assert len(follower.run.rounds) == 2
    assert b"hunter2" not in follower.run.update().to_json()


def test_clients_are_called_by_the_names_that_their_data_give_them(tmp_path):
    path = write_run(tmp_path, count=1)
    manifest = json.loads((path / "manifest.json").read_text())
    names = [f"person {number}" for number in range(1, 21)]
    (path / "manifest.json").write_text(json.dumps({**manifest, "client_names": names}))
    follower = Follower(path)
    follower.refresh()
    assert shown(follower.run.update())["facts"]["client_names"] == names


def test_of_many_clients_those_that_were_not_called_come_last(tmp_path):
    path = write_run(tmp_path, count=1, clients=300)
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for client in lines[0]["clients"]:
        client["status"] = "accepted" if client["id"] > 280 else "unselected"
    lines[0]["clients"][290]["status"] = "over-budget"
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    follower = Follower(path)
    follower.refresh()
    sent = [client["id"] for client in shown(follower.run.update())["clients"]]
    assert len(sent) == 200
    assert set(range(281, 301)) <= set(sent)
    assert sent == sorted(sent)
