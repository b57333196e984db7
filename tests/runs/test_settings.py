"""The settings table and how a run gets its policy from it."""

from pathlib import Path

import msgspec
import pytest

from dapfl import config as configuration
from dapfl.config import AgentConfig, RunConfig
from dapfl.errors import ConfigError
from dapfl.runs.settings import OWN_TASK, SETTINGS, TABLE, resolve

TASKS = ("logistic-mnist", "cnn-mnist", "resnet18-mnist", "cnn-fashion")
# Table I, η/α; a dash is free.
EXPECTED = """
logistic-mnist  dap-fl -/-  large 1e-2/20  small 1e-4/1  ddpg-eta -/16  ddpg-alpha 1e-3/-  ddpg-client 1e-3/16
cnn-mnist       dap-fl -/-  large 1e-2/30  small 1e-4/1  ddpg-eta -/15  ddpg-alpha 1e-3/-  ddpg-client 1e-3/15
resnet18-mnist  dap-fl -/-  large 1e-2/20  small 1e-4/1  ddpg-eta -/11  ddpg-alpha 1e-3/-  ddpg-client 1e-3/11
cnn-fashion     dap-fl -/-  large 5e-4/25  small 1e-4/1  ddpg-eta -/18  ddpg-alpha 1e-3/-  ddpg-client 1e-3/18
"""


def cells() -> list[tuple[str, str, str]]:
    found = []
    for line in EXPECTED.strip().splitlines():
        task, *rest = line.split()
        found += [(task, name, values) for name, values in zip(rest[::2], rest[1::2], strict=True)]
        found += [(task, "dqn-large", "1e-3/-"), (task, "dqn-small", "1e-4/-"), (task, "dap-fl-paper", "-/-")]
    return found


@pytest.mark.parametrize(("task", "setting", "values"), cells())
def test_pinned_values_are_those_of_table_one(task: str, setting: str, values: str) -> None:
    space = resolve(RunConfig(task=task, setting=setting)).policy.space
    expected = [None if value == "-" else float(value) for value in values.split("/")]
    assert [space.eta.pinned, space.alpha.pinned] == expected
    assert space.batch_size.pinned == 32


def test_table_covers_the_four_tasks_and_only_known_settings() -> None:
    assert set(TABLE) == set(TASKS)
    for row in (*TABLE.values(), OWN_TASK):
        assert set(row) <= set(SETTINGS)


def test_every_setting_resolves_for_a_task_of_ones_own() -> None:
    for name, setting in SETTINGS.items():
        given = {name: {"eta": 0.1, "alpha": 6}[name] for name in setting.asks}
        resolved = resolve(RunConfig(task="mine.py:TASK", setting=name, **given))  # type: ignore[arg-type]
        kind = resolved.policy.kind
        pinned = [axis.pinned for axis in (resolved.policy.space.eta, resolved.policy.space.alpha)]
        assert (None in pinned) == (kind in ("ddpg", "dqn"))
        assert resolved.selection == ("ddpg-client" if name == "ddpg-client" else "all")


def test_the_finder_alone_takes_alpha_and_finds_eta() -> None:
    policy = resolve(RunConfig(setting="probe-capped", alpha=6)).policy
    assert policy.kind == "probe" and policy.capped
    assert (policy.space.eta.pinned, policy.space.alpha.pinned) == (1.0, 6)
    with pytest.raises(
        ConfigError, match="needs --alpha, as in `dapfl run --setting probe-capped --alpha 6`"
    ):
        resolve(RunConfig(setting="probe-capped"))
    with pytest.raises(ConfigError, match="probe-capped takes no --eta"):
        resolve(RunConfig(setting="probe-capped", eta=0.1, alpha=6))


@pytest.mark.parametrize("setting", ["fixed", "fixed-capped", "cosine-capped", "fedadam-capped"])
def test_fixed_settings_take_eta_and_alpha(setting: str) -> None:
    policy = resolve(RunConfig(setting=setting, eta=0.03, alpha=9, batch_size=16)).policy
    assert (policy.space.eta.pinned, policy.space.alpha.pinned, policy.space.batch_size.pinned) == (
        0.03,
        9,
        16,
    )
    assert policy.capped == setting.endswith("capped")
    assert policy.kind == ("cosine" if setting == "cosine-capped" else "fixed")


@pytest.mark.parametrize(("setting", "eta"), [("delta-sgd", 0.2), ("dog-capped", 1.0)])
def test_rules_that_find_their_step_sizes_take_alpha_alone(setting: str, eta: float) -> None:
    policy = resolve(RunConfig(setting=setting, alpha=9)).policy
    assert (policy.space.eta.pinned, policy.space.alpha.pinned, policy.capped) == (eta, 9, True)
    assert policy.optimiser.kind == setting.removesuffix("-capped")
    changed = RunConfig(
        setting=setting, alpha=9, policy={"space": {"eta": {"pinned": 0.5}}, "optimiser": {"gamma": 1.0}}
    )
    assert resolve(changed).policy.space.eta.pinned == 0.5
    assert resolve(changed).policy.optimiser.gamma == 1.0


def test_only_the_new_rivals_have_another_optimiser_or_server_step() -> None:
    def names(part: str, kind: str) -> set[str]:
        return {name for name, row in SETTINGS.items() if getattr(row.policy, part).kind != kind}

    assert names("optimiser", "sgd") == {"delta-sgd", "dog-capped"}
    assert names("server_step", "average") == {"dap-fl", "fedadam-capped"}
    assert resolve(RunConfig(setting="dap-fl")).policy.server_step.kind == "normalised"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"setting": "fixed"}, "needs --eta and --alpha"),
        ({"setting": "fixed-capped", "eta": 0.1}, "needs --alpha"),
        ({"setting": "large", "eta": 0.1}, "large takes no --eta.*--eta is for fixed, .* and fedadam-capped"),
        ({"setting": "delta-sgd"}, "delta-sgd needs --alpha.*--setting delta-sgd --alpha 6`"),
        ({"setting": "delta-sgd", "alpha": 6, "eta": 0.1}, "delta-sgd takes no --eta"),
        ({"setting": "dap-fl", "alpha": 3}, "dap-fl takes no --alpha"),
        ({"setting": "dap-fl-paper", "price": 0.1}, "takes no --price"),
        ({"setting": "ddpg-client", "share_reports": False}, "needs share_reports"),
        ({"setting": "dapfl"}, "no setting called 'dapfl'.*dap-fl, dap-fl-paper, large.*cosine-capped"),
    ],
)
def test_a_setting_that_cannot_be_says_why(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(RunConfig(**given))  # type: ignore[arg-type]


def test_policy_of_ones_own_is_a_setting_by_its_reference() -> None:
    resolved = resolve(RunConfig(setting="mine.py:Halving"))
    assert resolved.policy.kind == "own" and resolved.policy.source == "mine.py:Halving"
    with pytest.raises(ConfigError, match="takes no --eta"):
        resolve(RunConfig(setting="mine.py:Halving", eta=0.1))


def test_price_reaches_the_agent() -> None:
    assert resolve(RunConfig(price=0.05)).policy.agent.price == 0.05
    assert resolve(RunConfig()).policy.agent == AgentConfig(steps=0)


def test_the_papers_agent_has_none_of_our_parts() -> None:
    policy = resolve(RunConfig(setting="dap-fl-paper")).policy
    agent = policy.agent
    assert not policy.capped and not agent.twin and not agent.project and not agent.standardise
    assert agent.state == "paper" and agent.warm_start is None and agent.constraint == "linear"
    assert agent.local_reward == agent.price == agent.saturation == 0
    assert (policy.space.eta.low, policy.space.eta.high) == (1e-4, 1e-2)


def test_policy_table_of_a_file_changes_parts_of_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'setting = "dap-fl"\n[policy]\ncapped = false\n[policy.agent]\nsteps = 16\nwarm_start = "none"\n'
        '[policy.space.batch_size]\npinned = "none"\n'
    )
    policy = resolve(configuration.load(file)).policy
    assert policy.capped is False and policy.agent.steps == 16 and policy.agent.warm_start is None
    assert policy.space.batch_size.pinned is None
    assert policy.agent.gamma == AgentConfig().gamma


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"agent": {"step": 3}}, "there is no key agent.step"),
        ({"agent": {"gamma": 2.0}}, "agent.gamma must be at most 1"),
        ({"space": {"eta": {"low": 4.0}}}, ""),
        ({"kin": "x"}, "there is no key kin"),
    ],
)
def test_a_wrong_change_to_the_policy_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=f"changes to the policy cannot be used: {why}"):
        resolve(RunConfig(policy=changes))


def test_a_resolved_policy_survives_the_manifest() -> None:
    policy = resolve(RunConfig(setting="ddpg-eta")).policy
    again = msgspec.convert(msgspec.json.decode(msgspec.json.encode(policy)), type(policy))
    assert again == policy
