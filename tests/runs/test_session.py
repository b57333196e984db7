"""A run names its files so that it can be resumed from any folder."""

from pathlib import Path

import pytest

from dapfl.config import PolicyConfig, RunConfig, override
from dapfl.randomness import stream
from dapfl.runs.session import resume, start
from dapfl.tuning.ddpg import DDPG

SMALL = override(
    RunConfig(),
    {
        "task": "logistic-mnist",
        "clients": 3,
        "rounds": 2,
        "mean_samples": 40,
        "std_samples": 5,
        "crypto.encryption": "none",
    },
)

# A dataclass under postponed annotations looks up its module by name.
POLICY = """
from __future__ import annotations
from dataclasses import KW_ONLY, dataclass
from dapfl.tuning import HyperparameterPolicy, Hyperparameters, decide

@dataclass(frozen=True)
class Rule:
    _: KW_ONLY
    eta: float = 0.1

class Mine(HyperparameterPolicy):
    def choose(self, situation):
        return decide(Hyperparameters(Rule().eta, 2, 16), situation, capped=True)
"""

TRACE = "round,client,budget,epoch_cost,transfer_cost\n" + "".join(f"0,{i},30,1,1\n" for i in (1, 2, 3))


def stopped_after_one_round(config: RunConfig, path: Path) -> None:
    with start(config, path, inline=True) as session:
        next(iter(session))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def test_a_run_with_a_policy_of_ones_own_resumes_from_another_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "mine.py").write_text(POLICY)
    stopped_after_one_round(override(SMALL, {"setting": "mine.py:Mine"}), home / "run")
    monkeypatch.chdir(home.parent / "elsewhere")
    with resume(home / "run", inline=True) as session:
        assert session.config.setting == f"{home / 'mine.py'}:Mine"
        assert [record.clients[0].alpha for record in session] == [2]


def test_a_run_with_weights_and_a_trace_of_ones_own_resumes_from_another_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = PolicyConfig()
    DDPG(policy.agent, policy.space, stream(1, "weights")).weights().save(home / "weights.msgpack")
    (home / "trace.csv").write_text(TRACE)
    config = override(
        SMALL,
        {
            "policy": {"agent": {"warm_start": "weights.msgpack"}},
            "resources.source": "trace",
            "resources.trace": "trace.csv",
        },
    )
    stopped_after_one_round(config, home / "run")
    monkeypatch.chdir(home.parent / "elsewhere")
    with resume(home / "run", inline=True) as session:
        assert session.config.policy["agent"]["warm_start"] == str(home / "weights.msgpack")
        assert [record.clients[0].budget for record in session] == [30]


def test_built_in_names_are_no_files(home: Path) -> None:
    config = override(SMALL, {"setting": "dap-fl", "policy": {"agent": {"warm_start": "none"}}})
    with start(config, home / "run", inline=True) as session:
        assert session.config == config
