import time

import pytest

from dapfl.errors import KeyFileError
from dapfl.federation.keys.run_id import begin_run, new_run_id, uses_of
from dapfl.federation.messages import RUN_BYTES


def test_every_run_has_an_id_of_its_own():
    ids = {new_run_id() for _ in range(100)}
    assert len(ids) == 100 and {len(each) for each in ids} == {RUN_BYTES}


def test_a_later_run_has_a_larger_id_even_if_the_clock_was_set_back(tmp_path, monkeypatch):
    bundle = tmp_path / "server.keys"
    first = begin_run(bundle)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    second, third = begin_run(bundle), begin_run(bundle)
    assert first < second < third
    assert [use.run for use in uses_of(bundle)] == [first.hex(), second.hex(), third.hex()]


def test_the_note_beside_a_bundle_is_private(tmp_path):
    begin_run(tmp_path / "server.keys")
    (note,) = tmp_path.iterdir()
    assert note.name == "server.keys.runs" and note.stat().st_mode & 0o777 == 0o600


def test_a_damaged_note_is_named(tmp_path):
    (tmp_path / "server.keys.runs").write_bytes(b"[{]")
    with pytest.raises(KeyFileError, match=r"server\.keys\.runs is damaged"):
        begin_run(tmp_path / "server.keys")
