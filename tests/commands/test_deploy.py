"""`dapfl deploy init`: what every participant finds in its folder."""

import configparser
import getpass
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from dapfl import cli
from dapfl.config import load
from dapfl.engines.flower.deployment.folders import ClientFolder, Deployment
from dapfl.federation.keys.bundles import ClientBundle, ServerBundle, bundle_path, load_bundle

TASK = Path(__file__).parents[1] / "engines" / "tiny_task.py"


def init(out: Path, *arguments: str) -> int:
    small = ("--key-bits", "256", "--allow-insecure-small-keys")
    return cli.main(["deploy", "init", "--out", str(out), "--clients", "3", *small, *arguments])


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    out = tmp_path_factory.mktemp("deploy") / "deployment"
    assert init(out, "--host", "fl.example.org", "--task", f"{TASK}:TASK", "--own-data", "500") == 0
    return Deployment(out)


def script(path: Path) -> list[str]:
    return shlex.split(path.read_text().splitlines()[-1])


def test_everyone_has_a_bundle_of_the_same_federation(deployment: Deployment) -> None:
    server = load_bundle(bundle_path(deployment.server.path, None), allow_insecure_small_keys=True)
    assert isinstance(server, ServerBundle)
    for client in (1, 2, 3):
        path = bundle_path(deployment.client(client).path, client)
        bundle = load_bundle(path, allow_insecure_small_keys=True)
        assert isinstance(bundle, ClientBundle)
        assert (bundle.client, bundle.federation) == (client, server.federation)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_folder_holds_a_secret_of_another(deployment: Deployment) -> None:
    bundles = {path.name for path in deployment.client(2).path.glob("*.keys")}
    assert bundles == {"client-002.keys"}
    assert {path.name for path in deployment.server.path.glob("*.keys")} == {"server.keys"}
    assert not list(deployment.server.path.rglob("node.key"))


def test_a_client_measures_itself_and_trains_on_its_own_data(deployment: Deployment) -> None:
    settings = deployment.client(2).settings()
    assert settings.client == 2
    assert settings.run.resources.source == "measured"
    assert (settings.run.partition, settings.run.mean_samples) == ("own", 500)
    assert settings.run.crypto.encryption == "paillier"


def test_the_task_goes_along_and_is_found_wherever_the_folder_is(
    deployment: Deployment, tmp_path: Path
) -> None:
    assert load(deployment.server.path / "config.toml").task == "tiny_task.py:TASK"
    moved = tmp_path / "device"
    shutil.copytree(deployment.client(1).path, moved)
    assert ClientFolder(moved).settings().run.task == f"{moved.resolve()}/tiny_task.py:TASK"


def test_a_policy_of_ones_own_goes_along_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("from dapfl.tuning import Fixed as Mine")
    monkeypatch.chdir(tmp_path)
    assert init(tmp_path / "out", "--setting", "mine.py:Mine", "--encryption", "none") == 0
    folder = Deployment(tmp_path / "out").client(2)
    assert (folder.path / "mine.py").read_bytes() == (tmp_path / "mine.py").read_bytes()
    assert folder.settings().policy.source == f"{folder.path.resolve()}/mine.py:Mine"


def test_what_a_task_imports_from_beside_it_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    package = tmp_path / "clinic_of_this_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tasks.py").write_text("from dapfl.tuning import Fixed as Mine\nfrom .near import X")
    (package / "near.py").write_text("X = 1")
    assert init(tmp_path / "out", "--setting", f"{package}/tasks.py:Mine", "--encryption", "none") == 0
    folder = Deployment(tmp_path / "out").client(2)
    assert (folder.path / "clinic_of_this_test" / "near.py").read_text() == "X = 1"
    assert folder.settings().policy.source == f"{folder.path.resolve()}/clinic_of_this_test/tasks.py:Mine"


def test_a_wheel_goes_into_every_folder_also_of_those_who_join_later(tmp_path: Path) -> None:
    wheel = tmp_path / "dapfl-0.1.0-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"a wheel")
    out = tmp_path / "out"
    assert init(out, "--own-data", "500", "--wheel", str(wheel)) == 0
    assert cli.main(["deploy", "add", str(out)]) == 0
    holders = {path.parent.name for path in out.rglob(wheel.name)}
    assert {"server", *(f"client-00{i}" for i in (1, 2, 3, 4))} <= holders
    assert wheel.name in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "complaint"), [("dapfl.tar.gz", "is no wheel"), ("gone.whl", "cannot be read: No such file")]
)
def test_what_is_no_wheel_is_said_before_keys_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, complaint: str
) -> None:
    assert init(tmp_path / "out", "--wheel", str(tmp_path / name)) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_files_that_would_overwrite_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / TASK.name).write_text("from dapfl.tuning import Fixed as Mine")
    assert init(tmp_path / "out", "--task", f"{TASK}:TASK", "--setting", f"{TASK.name}:Mine") == 2
    assert "rename one" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_server_runs_what_the_clients_expect(deployment: Deployment) -> None:
    config = load(deployment.server.path / "config.toml")
    assert (config.engine, config.clients) == ("flower", 3)
    expected = deployment.client(1).settings().run
    assert config.crypto == expected.crypto and config.rounds == expected.rounds


def test_the_superlink_is_on_loopback_and_devices_go_to_the_gateway(deployment: Deployment) -> None:
    link = script(deployment.server.path / "start-superlink.sh")
    assert link[link.index("--host") + 1] == "127.0.0.1"
    assert "--enable-supernode-auth" in link and "--insecure" not in link
    gateway = script(deployment.server.path / "start-gateway.sh")
    assert gateway[gateway.index("--listen") + 1] == "0.0.0.0:9092"
    _, _, _, both, *_ = script(deployment.client(3).path / "start-supernode.sh")
    executor, node = (shlex.split(each) for each in both.split(" & "))
    assert node[node.index("--superlink") + 1] == "fl.example.org:9092"
    for program in (executor, node):  # so that the node gives work to this program and to no other
        assert program[program.index("--superexec-auth-secret-file") + 1] == "node.secret"


def test_scripts_are_shell_that_keeps_flower_offline(deployment: Deployment) -> None:
    scripts = sorted(deployment.path.rglob("*.sh"))
    assert len(scripts) == 4 + 3 * 3
    for path in scripts:
        assert os.access(path, os.X_OK)
        assert "FLWR_TELEMETRY_ENABLED=0" in path.read_text() or path.name == "install.sh"
        assert subprocess.run(["sh", "-n", path], check=False).returncode == 0


def test_scripts_find_what_the_guide_puts_beside_them(deployment: Deployment, tmp_path: Path) -> None:
    """Programs, data and the passphrase; and the commands that `dapfl` prints are ones that work there."""
    home = tmp_path / "home"
    shutil.copytree(deployment.server.path, home / "server")
    (home / "data").mkdir()
    (home / "venv" / "bin").mkdir(parents=True)
    (home / "venv" / "bin" / "dapfl").write_text(
        '#!/bin/sh\necho "$DAPFL_DATA" "$DAPFL_PASSPHRASE_FILE" "$DAPFL_COMMAND" "$@"\n'
    )
    (home / "venv" / "bin" / "dapfl").chmod(0o755)
    (home / "server.passphrase").write_text("correct horse")
    environment = {"PATH": os.environ["PATH"]}
    said = [
        subprocess.run([home / "server" / "dapfl.sh", "status", "x"], env=env, text=True, capture_output=True)
        for env in (environment, environment | {"SUDO_USER": "ann"})
    ]
    passphrase, command = home / "server.passphrase", home / "server" / "dapfl.sh"
    assert said[0].stdout == f"{home}/server/../data {passphrase} {command} status x\n"
    assert f" sudo -u {getpass.getuser()} {command} status x\n" in said[1].stdout


def test_units_start_the_scripts_from_their_home(deployment: Deployment) -> None:
    units = {path.name: path for path in deployment.path.rglob("*.service")}
    assert set(units) == {f"dapfl-{part}.service" for part in ("superlink", "gateway", "supernode", "worker")}
    for path in deployment.path.rglob("*.service"):
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(path)
        start = Path(unit["Service"]["ExecStart"])
        home = path.parent.name
        if path.name == "dapfl-supernode.service":
            home = home.replace("client", "node")  # where install.sh puts it
        assert start.parent == Path("/opt/dapfl") / home
        assert (path.parent / start.name).exists()
        assert unit["Service"]["Restart"] == "always"


def test_a_device_is_installed_as_two_users_of_which_one_has_the_keys(tmp_path: Path) -> None:
    home, units, tools = tmp_path / "home", tmp_path / "units", tmp_path / "tools"
    assert init(tmp_path / "out", "--home", str(home)) == 0
    units.mkdir()
    tools.mkdir()
    for name in ("id", "useradd", "chown", "systemctl"):  # which need root; their calls are noted
        (tools / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\ntest {name} != id\n')
        (tools / name).chmod(0o755)
    shutil.copytree(tmp_path / "out" / "client-002", home / "client-002")
    (home / "data").mkdir()
    (home / "client-002.passphrase").write_text("correct horse")
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "DAPFL_UNITS": str(units)}
    elsewhere = subprocess.run(
        [tmp_path / "out" / "client-002" / "install.sh"], env=environment, capture_output=True, text=True
    )
    assert elsewhere.returncode == 1 and f"belongs at {home / 'client-002'}" in elsewhere.stderr
    for _ in range(2):  # it may have been interrupted
        subprocess.run([home / "client-002" / "install.sh"], check=True, env=environment)
    node, worker = home / "node-002", home / "client-002"
    assert stat.S_IMODE(node.stat().st_mode) == stat.S_IMODE(worker.stat().st_mode) == 0o700
    files = {path.name for path in node.iterdir()}
    assert files == {
        "ca.crt",
        "node.key",
        "node.pub",
        "node.secret",
        "node.toml",
        "start-supernode.sh",
        ".flower",
    }
    assert {"client-002.keys", "client.toml", "state", "start-worker.sh"} <= {
        p.name for p in worker.iterdir()
    }
    assert not list(worker.glob("node.*"))
    calls = (tmp_path / "calls").read_text().splitlines()
    assert f"chown -R dapfl: {node}" in calls and "chown -R dapfl-worker: ." in calls
    assert f"chown root: {home}" in calls  # in which the SuperNode's user could exchange the folders
    assert "chown -R dapfl-worker: ../data" in calls  # which the SuperNode's user then cannot read
    assert stat.S_IMODE((home / "data").stat().st_mode) == 0o700
    assert f"chown dapfl-worker: {worker}.passphrase" in calls
    assert calls[-2:] == [f"systemctl {verb} dapfl-worker dapfl-supernode" for verb in ("enable", "restart")]
    supernode, service = (units / f"dapfl-{name}.service" for name in ("supernode", "worker"))
    assert "User=dapfl\n" in supernode.read_text() and f"WorkingDirectory={node}\n" in supernode.read_text()
    assert "User=dapfl-worker\n" in service.read_text()
    assert f"WorkingDirectory={worker}\n" in service.read_text()


def test_the_readme_says_where_folders_go(deployment: Deployment) -> None:
    text = (deployment.path / "README.md").read_text()
    assert "fl.example.org" in text and "client-001 ... client-003" in text


def test_a_directory_that_holds_something_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").touch()
    assert init(tmp_path) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_deadline_leaves_room_for_slow_networks(tmp_path: Path) -> None:
    assert init(tmp_path / "out", "--deadline", "100", "--encryption", "none") == 0
    config = load(tmp_path / "out" / "server" / "config.toml")
    assert config.resources.deadline_seconds == 100
    assert config.round_timeout > 100
    assert not list((tmp_path / "out").rglob("*.keys"))


def test_the_gateway_is_told_where_to_listen(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["deploy", "gateway", str(deployment.server.path), "--listen", "9092"]) == 2
    assert "HOST:PORT" in capsys.readouterr().err
    assert cli.main(["deploy", "gateway", str(deployment.client(1).path)]) == 2
    assert "not the server's folder" in capsys.readouterr().err


def test_keys_can_be_under_a_passphrase_for_each_participant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deployment"
    assert init(out, "--passphrases", "--own-data", "500", "--task", f"{TASK}:TASK") == 0
    assert str(out / "passphrases") in capsys.readouterr().out.replace("\n", "")
    assert cli.main(["deploy", "add", str(out)]) == 0
    words = {path.stem: path for path in (out / "passphrases").iterdir()}
    assert set(words) == {"server", *(f"client-00{i}" for i in range(1, 5))}
    assert len({path.read_text() for path in words.values()}) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in words.values()} == {0o600}
    bundles = [path for path in out.rglob("*.keys") if path.name != "kdc.keys"]
    assert len(bundles) == 5
    for path in bundles:
        monkeypatch.setenv("DAPFL_PASSPHRASE_FILE", str(words[path.stem]))
        assert load_bundle(path, allow_insecure_small_keys=True).federation
        monkeypatch.delenv("DAPFL_PASSPHRASE_FILE")
        assert cli.main(["keys", "show", str(path)]) == 2
        assert "DAPFL_PASSPHRASE_FILE" in capsys.readouterr().err


def test_a_deployment_with_a_committee_says_who_is_on_it(tmp_path: Path) -> None:
    out = tmp_path / "deployment"
    assert init(out, "--decryption", "committee") == 0
    text = (out / "README.md").read_text()
    assert "client-001, client-002, client-003 decrypt together: any 2 of them" in text
    bundle = load_bundle(bundle_path(Deployment(out).client(1).path, 1), allow_insecure_small_keys=True)
    assert isinstance(bundle, ClientBundle)
    assert bundle.sk_cs_enc is None
    assert bundle.share is not None
