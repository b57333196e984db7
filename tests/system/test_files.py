"""Files are whole, and where they are after a loss of power."""

import os
import stat
from pathlib import Path

import pytest

from dapfl.system.files import TwoGenerations, replacing


def test_a_file_that_was_written_has_its_name_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power must not bring an old version back: after the rename, the folder is synchronised."""
    events: list[str] = []
    sync, rename = os.fsync, Path.replace

    def noted_sync(handle: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def noted_rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    with replacing(tmp_path / "note") as file:
        file.write(b"whole")
    assert events == ["file", "rename", "folder"]


@pytest.mark.parametrize("damage", ["emptied", "cut", "flipped"])
def test_a_file_that_has_lost_its_beginning_is_not_taken_for_whole(tmp_path: Path, damage: str) -> None:
    file = TwoGenerations(tmp_path / "state.msgpack")
    file.save(b"\x81first")
    file.save(b"\x81second")
    whole = file.path.read_bytes()
    file.path.unlink()  # the older one may be a link to it
    file.path.write_bytes(
        {"emptied": b"", "cut": whole[:5], "flipped": whole[:3] + bytes([whole[3] ^ 1]) + whole[4:]}[damage]
    )
    loaded = file.load()
    assert loaded is not None and loaded.content == b"\x81first"
    assert loaded.fault is not None and "damaged" in loaded.fault
