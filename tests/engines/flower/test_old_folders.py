"""Folders that an earlier version has made still work; those of a later one are refused in a sentence."""

import shutil
from pathlib import Path

import pytest

from dapfl.config import load
from dapfl.engines.flower.deployment import membership
from dapfl.engines.flower.deployment.bundles import client_bundle, server_bundle
from dapfl.engines.flower.deployment.folders import ClientFolder, ServerFolder
from dapfl.errors import ConfigError, KeyFileError

OLD = Path(__file__).parents[2] / "vectors" / "deployment-1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copytree(OLD, tmp_path / "old")
    for path in (tmp_path / "old").iterdir():
        path.chmod(0o600)
    (tmp_path / "old" / "nodes").mkdir()
    return tmp_path / "old"


def test_a_device_with_an_old_folder_takes_part(old: Path) -> None:
    settings = ClientFolder(old).settings()
    bundle = client_bundle(old, settings.client, settings.run.crypto)
    assert settings.client == 1 and bundle is not None and bundle.client == 1


def test_a_server_with_an_old_folder_takes_updates(old: Path) -> None:
    crypto = load(old / "config.toml").crypto
    assert server_bundle(old, crypto) is not None
    enrolment = membership.apply(ServerFolder(old), old / "server.update", crypto)
    assert enrolment.members == (1, 2, 3, 4)


def test_the_kdc_of_an_old_deployment_changes_its_roster(old: Path) -> None:
    assert membership.remove(old, 4).serial == 2


@pytest.mark.parametrize(
    ("name", "before", "after", "error"),
    [
        ("client.toml", "format = 1", "format = 9", ConfigError),
        ("client-001.keys", '"version": 1', '"version": 9', KeyFileError),
        ("kdc.keys", '"version": 2', '"version": 9', KeyFileError),
    ],
)
def test_a_file_of_a_later_version_is_refused_in_a_sentence(
    name: str, before: str, after: str, error: type[Exception], old: Path
) -> None:
    text = (old / name).read_text()
    assert before in text
    (old / name).write_text(text.replace(before, after, 1))
    with pytest.raises(error, match=r"version|format"):
        settings = ClientFolder(old).settings()
        client_bundle(old, 1, settings.run.crypto)
        membership.remove(old, 4)
