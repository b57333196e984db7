"""Two lines in a Flower app, with Flower's own programs: in its simulation and in a deployment."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from dapfl.config import CryptoConfig
from dapfl.engines.flower.deployment import programs
from dapfl.engines.flower.host.processes import Program, accepts_connections, free_ports, stop, wait_until
from dapfl.federation.keys import bundles, kdc

EXAMPLES = Path(__file__).parents[3] / "examples"
APPS = ["flower-pytorch", "flower-sklearn"]
pytestmark = [pytest.mark.long, pytest.mark.processes]

Changes = dict[str, str]  # words of an app's two files, and what stands there instead
UNCHANGED: Changes = {}
FEDAVG = {"mods=[dapfl.flower.mod()]": "", "dapfl.flower.DapFL(": "flwr.serverapp.strategy.FedAvg("}
ENCRYPTION_ALONE = {"dapfl.flower.mod()": "dapfl.flower.mod(tuning=False)"}
TUNING_ALONE = {
    "dapfl.flower.mod()": 'dapfl.flower.mod(encryption="none")',
    "dapfl.flower.DapFL(": 'dapfl.flower.DapFL(encryption="none", ',
}


class Flower:
    """A SuperLink on loopback, and what one does with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder, list[Program]()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        own = {"PATH": path, "FLWR_HOME": str(folder / "flower"), "OMP_NUM_THREADS": "1"}
        quiet = {**programs.OFFLINE, **programs.unproxied(), **programs.polling(1)}
        self.environment = {**os.environ, **quiet, **own, "RAY_USAGE_STATS_ENABLED": "0"}

    def start(self, name: str, *command: str, **environment: str) -> Program:
        program = Program(name, command, self.folder, {**self.environment, **environment})
        self.programs.append(program.start())
        return program

    def start_superlink(self, *options: str, **environment: str) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        home = self.folder / "flower"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\ninsecure = true\n'
        )
        command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port), *options]
        link = self.start("superlink", *command, **environment)
        wait_until(lambda: accepts_connections(self.address), "the SuperLink", 120, link.check)

    def start_node(self, number: int, keys: Path, nodes: int, **environment: str) -> None:
        (port,) = free_ports(1)
        state = self.folder / f"state-{number}"
        self.start(
            f"node-{number}",
            *("flower-supernode", "--insecure", "--superlink", self.address),
            *("--host", "127.0.0.1", "--port", str(port)),
            *(
                "--node-config",
                f"partition-id={number} num-partitions={nodes} keys='{keys}' state-dir='{state}'",
            ),
            **environment,
        )

    def run(self, example: str, changes: Changes, rounds: int, *arguments: str) -> str:
        """What `flwr run` shows of a run of an example."""
        app = self.folder / f"{example}-{len(list(self.folder.glob(f'{example}-*')))}"
        shutil.copytree(EXAMPLES / example, app, ignore=shutil.ignore_patterns("__pycache__"))
        for path in app.glob("*/*_app.py"):
            text = path.read_text()
            for old, new in changes.items():
                text = text.replace(old, new)
            text = text.replace(
                "dapfl.flower.DapFL(", "dapfl.flower.DapFL(patience=600, "
            )  # on a busy machine
            path.write_text(
                text.replace("import dapfl.flower", "import dapfl.flower, flwr.serverapp.strategy")
            )
        shown = subprocess.run(
            ["flwr", "run", ".", "here", "--stream", "-c", f"num-server-rounds={rounds}", *arguments],
            cwd=app,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        return re.sub(r"\x1b\[[0-9;]*m", "", shown.stdout)


@contextmanager
def flower(folder: Path) -> Iterator[Flower]:
    it = Flower(folder)
    try:
        yield it
    finally:
        stop(it.programs)


def metrics(shown: str) -> list[dict[str, float]]:
    """The metrics of training and evaluation of each round, in their order."""
    records = re.findall(r"Aggregated MetricRecord: \{(.*?)\}", shown)
    return [{k: float(v) for k, v in re.findall(r"'([^']+)': ([^,]+)", record)} for record in records]


def accuracies(shown: str) -> list[float]:
    return [value for record in metrics(shown) for name, value in record.items() if "acc" in name]


@pytest.mark.skipif(
    find_spec("ray") is None, reason="Flower's simulation needs ray: pip install 'flwr[simulation]'"
)
@pytest.mark.parametrize("example", APPS)
def test_the_examples_in_flowers_simulation(tmp_path: Path, example: str) -> None:
    with flower(tmp_path) as here:
        here.start_superlink("--simulation")
        shown = here.run(example, UNCHANGED, 2, "--federation-config", "num-supernodes=3")
        assert shown.count("aggregate_train: 3 contributions") == 2, shown
        assert "by time alone" not in shown, shown  # agents saw the loss from the first round on
        assert accuracies(shown)[-1] > 0.8, shown


def test_both_examples_in_a_deployment(tmp_path: Path) -> None:
    server, clients = kdc.generate(3, CryptoConfig())
    bundles.save_bundles(tmp_path / "server", server, {})
    for number, bundle in clients.items():
        (tmp_path / f"keys-{number - 1}").mkdir()
        bundles.save_bundle(bundles.bundle_path(tmp_path / f"keys-{number - 1}", number), bundle)
    (tmp_path / "without" / "dapfl").mkdir(parents=True)
    (tmp_path / "without" / "dapfl" / "__init__.py").write_text("raise ModuleNotFoundError('dapfl')")
    with flower(tmp_path) as here:
        here.start_superlink(DAPFL_KEYS=str(tmp_path / "server"))
        for number in range(3):
            here.start_node(number, tmp_path / f"keys-{number}", nodes=5)

        # Training is the same each time, as scikit-learn's model has a seed: so are the sums.
        plain = here.run("flower-sklearn", FEDAVG, 1)
        encrypted = here.run("flower-sklearn", ENCRYPTION_ALONE, 1)
        assert "aggregate_train: 3 contributions" in encrypted, encrypted
        assert len(metrics(plain)) == len(metrics(encrypted)) == 2, plain + encrypted
        for ours, theirs in zip(metrics(encrypted), metrics(plain), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)

        shown = here.run("flower-sklearn", TUNING_ALONE, 1)
        assert "encryption none" in shown and "aggregate_train: 3 contributions" in shown, shown

        here.start_node(3, tmp_path / "nowhere", nodes=5)
        here.start_node(4, tmp_path / "keys-0", nodes=5, PYTHONPATH=str(tmp_path / "without"))
        for example in APPS:
            shown = here.run(example, UNCHANGED, 2)
            assert shown.count("aggregate_train: 3 contributions") == 2, shown
            assert "it has no keys of this federation" in shown, shown
            assert "is dapfl installed there" in shown, shown
            assert accuracies(shown)[-1] > 0.8, shown
        assert "nowhere" in (tmp_path / "node-3.log").read_text()
