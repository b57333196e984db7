"""Policies that a user writes, and ours in a user's loop: the examples run."""

import runpy
from pathlib import Path

import pytest

from dapfl.config import PolicyConfig
from dapfl.errors import ConfigError
from dapfl.tuning import HyperparameterPolicy, Situation, build_policy

EXAMPLES = Path(__file__).parents[2] / "examples"


FORGETFUL = """
from dapfl.tuning import HyperparameterPolicy

class Mine(HyperparameterPolicy):
    def restore(self, state): pass
"""


def own(source: str, client: int = 1) -> HyperparameterPolicy:
    return build_policy(PolicyConfig(kind="own", source=source), seed=5, client=client)


def situation(round_: int, loss: float, budget: float = 30.0) -> Situation:
    return Situation(round_, 20, loss, 0.5, 0.5, budget, 1.0, 1.0, 600)


def test_example_policy_lowers_its_rate_on_a_plateau_and_keeps_the_budget() -> None:
    policy = own(f"{EXAMPLES / 'own_policy.py'}:Plateau")
    etas = [
        policy.choose(situation(round_, loss)).eta for round_, loss in enumerate([2.0, 1.5, 1.5, 1.2, 1.2])
    ]
    assert etas == [0.1, 0.1, 0.05, 0.05, 0.025]
    assert policy.choose(situation(5, 1.0, budget=5.0)).alpha == 3
    other = own(f"{EXAMPLES / 'own_policy.py'}:Plateau", client=2)
    other.restore(policy.saved_state())
    assert other.choose(situation(6, 1.0)) == policy.choose(situation(6, 1.0))
    assert (policy.seed, policy.client, other.client) == (5, 1, 2)


def test_agent_improves_a_loop_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    accuracies = runpy.run_path(str(EXAMPLES / "policy_in_own_loop.py"))["main"]()
    assert accuracies[0] < 0.4 and accuracies[-1] > 0.6
    assert capsys.readouterr().out.count("round") == 12


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("X = 1", "does not define 'Mine'"),
        ("class Mine: pass", "not a subclass of dapfl.tuning.HyperparameterPolicy"),
        ("import nowhere_at_all", "fails: ModuleNotFoundError"),
        (FORGETFUL, "Mine has `restore` but no `saved_state`"),
    ],
)
def test_unusable_own_policy_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        own(f"{path}:Mine")


def test_a_source_that_is_no_reference_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a policy of your own"):
        own("Plateau")
