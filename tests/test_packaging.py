"""What is made of the repository: a source distribution, and containers (read here, not built)."""

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dapfl import cli

ROOT = Path(__file__).parents[1]
CONTAINERS = ROOT / "containers"


def test_the_source_distribution_has_every_file_of_the_package(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "egg_info",
        "-e",
        str(tmp_path),
        "sdist",
        "-d",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    made = {".so", ".pyc"}
    wanted = [
        each for each in (ROOT / "src" / "dapfl").rglob("*") if each.is_file() and each.suffix not in made
    ]
    assert [str(each) for each in wanted if str(each.relative_to(ROOT)) not in there] == []
    assert {"LICENSE", "setup.py", "requirements.lock", "examples/own_task.py", "tests/conftest.py"} <= there
    assert {"containers/Dockerfile", "scripts/check-wheel", ".dockerignore"} <= there


def test_a_build_without_a_compiler_says_what_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_ext"]
    command += ["--build-lib", str(tmp_path / "built"), "--build-temp", str(tmp_path)]
    environment = {**os.environ, "CC": "/bin/false"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "encryption computes with GMP, about five times slower" in done.stdout
    assert "train with PyTorch, about three times slower" in done.stdout


# Containers ------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile and their arguments."""
    text = re.sub(r"^\s*#.*\n", "", (CONTAINERS / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())
    return found


def stages() -> list[str]:
    return [rest.split(" AS ")[1] for word, rest in instructions() if word == "FROM"]


def test_the_dockerfile_has_known_instructions_and_stages() -> None:
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD", "EXPOSE"}
    assert {word for word, _ in instructions()} <= known
    for word, rest in instructions():
        if word == "FROM" and ":" not in (base := rest.split(" AS ")[0]):
            assert base in stages()
        for stage in re.findall(r"--from=(\S+)", rest):
            assert stage in stages()
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users == ["10001"]  # nothing runs as root
    assert any(f"useradd --create-home --uid {users[0]} dapfl" in rest for word, rest in instructions())


def test_what_the_dockerfile_copies_is_there() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [rest for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    sources = [name for rest in copied for name in shlex.split(rest)[:-1] if not name.startswith("--")]
    assert {"pyproject.toml", "setup.py", "src"} <= set(sources)
    for name in sources:
        assert (ROOT / name).exists(), name
        assert name.partition("/")[0] not in ignored


def test_the_containers_install_parts_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r"\.whl\)\[([a-z,]+)\]", (CONTAINERS / "Dockerfile").read_text())
    assert set(named.split(",")) <= extras.keys()


def test_the_containers_take_the_pytorch_of_the_lock() -> None:
    (version,) = re.findall(r"torch==(\S+)", (CONTAINERS / "Dockerfile").read_text())
    assert f"torch=={version} " in (ROOT / "requirements-torch.lock").read_text()


def test_the_scripts_of_the_containers_are_sound() -> None:
    for script in CONTAINERS.glob("*.sh"):
        assert subprocess.run(["sh", "-n", script]).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "begun", "started"),
    [
        ([], False, "run.sh --out RESULTS/run"),
        ([], True, "dapfl.sh run --resume RESULTS/run"),
        (["--out", "elsewhere"], True, "run.sh --out elsewhere"),
    ],
)
def test_a_server_that_is_started_again_continues_its_run(
    tmp_path: Path, arguments: list[str], begun: bool, started: str
) -> None:
    results = tmp_path / "results"
    (results / "run").mkdir(parents=True)
    if begun:
        (results / "run/manifest.json").touch()
    for name in ("start-superlink", "start-gateway", "run", "dapfl"):
        script = tmp_path / f"{name}.sh"
        script.write_text('#!/bin/sh\necho "$(basename "$0") $*"\n')
        script.chmod(0o755)
    (tmp_path / "python").write_text("#!/bin/sh\n")  # the SuperLink is there
    (tmp_path / "python").chmod(0o755)
    text = (CONTAINERS / "start-server.sh").read_text()
    text = text.replace("/deployment", str(tmp_path)).replace("/results", str(results))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", text, "start-server", *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert started.replace("RESULTS", str(results)) in done.stdout.splitlines()


def test_a_server_whose_superlink_does_not_start_ends(tmp_path: Path) -> None:
    (tmp_path / "start-superlink.sh").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "start-superlink.sh").chmod(0o755)
    for name, text in (("python", "#!/bin/sh\nexit 1\n"), ("sleep", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    text = (CONTAINERS / "start-server.sh").read_text().replace("/deployment", str(tmp_path))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(["sh", "-c", text], env=environment, capture_output=True).returncode == 1


def test_the_try_out_has_a_server_and_clients_that_see_their_own_folders_alone() -> None:
    services, volumes = compose()["services"], compose()["volumes"]
    for name, service in services.items():
        assert service["build"]["target"] in stages()
        assert (CONTAINERS / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        for mount in service["volumes"]:
            if isinstance(mount, dict):
                assert mount["volume"]["subpath"] == name and mount["source"] in volumes
            elif not mount.startswith("."):
                assert mount.partition(":")[0] in volumes
    assert [name for name in services if name.startswith("client-")] == [f"client-00{i}" for i in (1, 2, 3)]


def test_the_try_out_makes_its_folders_by_a_command_that_dapfl_takes() -> None:
    (line,) = compose()["services"]["kdc"]["command"]
    words = shlex.split(line.partition("||")[2])
    assert words[0] == "dapfl"
    args = cli.parser().parse_args(words[1:])
    task = args.task.partition(":")[0].removeprefix("/")
    assert (ROOT / task).is_file() and args.clients == 3 and args.host == "server"
