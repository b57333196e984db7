import json
from pathlib import Path

import pytest

from dapfl.errors import RunDirectoryError
from dapfl.runs.results import RoundsReader, find_runs, read_run, resume_command, run_directories
from tests.fake_runs import rounds, write_comparison, write_run


def test_a_run_is_read_with_its_manifest_and_all_rounds(tmp_path):
    run = read_run(write_run(tmp_path / "run", "dap-fl", seed=3, count=5))
    written = rounds("dap-fl", seed=3, count=5)
    assert (run.manifest.task_name, run.manifest.setting, run.manifest.seed) == ("cnn-mnist", "dap-fl", 3)
    assert [row.accuracy for row in run.rounds] == [line["accuracy"] for line in written]
    assert run.rounds[4].clients[6].lambda_ == written[4]["clients"][6]["lambda"]
    assert run.rounds[3].rejections[0].reason == written[3]["rejections"][0]["reason"]


def test_a_half_written_last_line_is_not_there_yet(tmp_path):
    path = write_run(tmp_path, count=3)
    whole = (path / "rounds.jsonl").read_bytes()
    for cut in (len(whole) - 1, len(whole) - 40, whole.rindex(b'{"round": 2') + 1):
        (path / "rounds.jsonl").write_bytes(whole[:cut])
        assert [row.round for row in read_run(path).rounds] == [0, 1]


def test_a_damaged_line_is_named(tmp_path):
    path = write_run(tmp_path, count=3)
    lines = (path / "rounds.jsonl").read_text().splitlines()
    (path / "rounds.jsonl").write_text("\n".join([lines[0], lines[1][:50], lines[2], ""]))
    with pytest.raises(RunDirectoryError, match=r"Line 2 of .*rounds\.jsonl"):
        read_run(path)


def test_a_reader_returns_each_round_once_as_the_file_grows(tmp_path):
    file = tmp_path / "rounds.jsonl"
    reader = RoundsReader(file)
    assert reader.read_new() == []  # not there yet
    lines = [json.dumps(line) + "\n" for line in rounds(count=3)]
    file.write_text(lines[0] + lines[1][:20])
    assert [row.round for row in reader.read_new()] == [0]
    with file.open("a") as stream:
        stream.write(lines[1][20:] + lines[2])
    assert [row.round for row in reader.read_new()] == [1, 2]
    assert reader.read_new() == []
    assert reader.restarts == 0


def test_a_reader_starts_over_when_the_file_was_cut_back_or_replaced(tmp_path):
    file = tmp_path / "rounds.jsonl"
    lines = [json.dumps(line) + "\n" for line in rounds(count=3)]
    file.write_text("".join(lines))
    reader = RoundsReader(file)
    reader.read_new()
    file.write_text(lines[0])
    assert [row.round for row in reader.read_new()] == [0]
    (tmp_path / "new").write_text("".join(lines))
    (tmp_path / "new").replace(file)
    assert [row.round for row in reader.read_new()] == [0, 1, 2]
    assert reader.restarts == 2


def test_runs_are_found_below_a_comparison_and_only_once(tmp_path):
    write_comparison(tmp_path / "cmp", ("dap-fl", "large"), seeds=2, count=1)
    assert len(run_directories(tmp_path)) == 4
    assert len(find_runs([tmp_path, tmp_path / "cmp" / "large-1"])) == 4


def test_a_wrong_directory_says_what_was_expected(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"does not exist.*manifest\.json and rounds\.jsonl"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(RunDirectoryError, match=r"no run in .*manifest\.json and rounds\.jsonl"):
        find_runs([tmp_path])
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        read_run(tmp_path)


def test_a_run_without_a_complete_round_is_not_reported(tmp_path):
    write_run(tmp_path / "young", count=0)
    with pytest.raises(RunDirectoryError, match="No round"):
        find_runs([tmp_path])
    write_run(tmp_path / "older", count=1)
    assert [run.path.name for run in find_runs([tmp_path])] == ["older"]


def test_the_command_to_go_on_is_one_that_works_where_it_is_shown(monkeypatch):
    assert resume_command(Path("a")) == "dapfl run --resume a"
    monkeypatch.setenv("DAPFL_COMMAND", "sudo -u dapfl /opt/dapfl/server/dapfl.sh")
    assert resume_command(Path("a")) == "sudo -u dapfl /opt/dapfl/server/dapfl.sh run --resume a"
