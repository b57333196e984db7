"""The settings of Table I, and simple rules to compare them with, as data.

A setting is a row of `SETTINGS`: a policy whose axes are free or pinned, and who is selected. Where a
pinned value depends on the task it stands in `TABLE`. `resolve` puts the two together with what the
user asked for; nothing else in the package asks for a setting by name.
"""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from dapfl.config import (
    ActionSpace,
    AgentConfig,
    Axis,
    OptimiserConfig,
    PolicyConfig,
    RunConfig,
    ServerStepConfig,
    in_words,
)
from dapfl.errors import ConfigError
from dapfl.system.plugins import FORM, Plugin
from dapfl.tuning.selection import Selection

# The paper's range of η, and the epochs that its settings choose from.
PAPER_ETA = Axis(low=1e-4, high=1e-2, scale="log")
PAPER_ALPHA = Axis(low=1, high=40, integer=True)
RIVAL_SPACE = ActionSpace(eta=PAPER_ETA, alpha=Axis(low=1, high=30, integer=True))

# The paper's formulation with the constants of the authors' public code.
PAPER_AGENT = AgentConfig(
    state="paper",
    hidden=(10, 5),
    activation="tanh",
    actor_rate=1e-5,
    critic_rate=1e-4,
    lambda_rate=1e-4,
    lambda_start=0.0,
    gamma=0.99,
    beta=0.001,
    batch=2,
    steps=1,
    buffer=10_000,
    noise=0.3,
    noise_decay=0.99,
    noise_floor=0.05,
    random_rounds=1,
    xi=(1.0, 1.0, 1.0),
    twin=False,
    project=False,
    constraint="linear",
    saturation=0.0,
    local_reward=0.0,
    standardise=False,
    price=0.0,
    share=1.0,
    relative=False,
    backoff=1.0,
    warm_start=None,
)

# The same formulation with constants that learn within tens of rounds: the rivals get the better ones.
RIVAL_AGENT = replace(
    PAPER_AGENT,
    hidden=(64, 64),
    activation="relu",
    actor_rate=1e-3,
    critic_rate=1e-3,
    lambda_rate=1e-2,
    gamma=0.9,
    beta=0.01,
    batch=32,
    steps=4,
    buffer=2000,
    random_rounds=2,
)


@dataclass(frozen=True)
class Setting:
    """One way of running a federation. `asks` names the values that the user must give."""

    summary: str
    policy: PolicyConfig
    selection: Selection = "all"
    asks: tuple[Literal["eta", "alpha"], ...] = ()
    priced: bool = False  # takes --price

    @property
    def example(self) -> str:
        """The values that it asks for, as they could be given."""
        return " ".join({"eta": "--eta 0.1", "alpha": "--alpha 6"}[name] for name in self.asks)


@dataclass(frozen=True)
class Pins:
    """The values of Table I that a task pins; None is free."""

    eta: float | None = None
    alpha: int | None = None


@dataclass(frozen=True)
class Resolved:
    """The policy of a run, and how its clients are selected."""

    policy: PolicyConfig
    selection: Selection


_FIXED = PolicyConfig(kind="fixed", capped=False, space=RIVAL_SPACE)
_RIVAL = PolicyConfig(kind="ddpg", capped=False, space=RIVAL_SPACE, agent=RIVAL_AGENT)
_DQN = PolicyConfig(kind="dqn", capped=False, space=RIVAL_SPACE)
_CAPPED = replace(_FIXED, capped=True)


def _self_tuned(optimiser: OptimiserConfig, eta: float) -> PolicyConfig:
    """α under the cap; the optimiser finds its step sizes, and `eta` is what its authors start it with."""
    space = replace(RIVAL_SPACE, eta=replace(PAPER_ETA, pinned=eta))
    return replace(_CAPPED, space=space, optimiser=optimiser)


SETTINGS: dict[str, Setting] = {
    "dap-fl": Setting(
        "our best agent: η and α free, within the budget; normalised averaging",
        # Learning during the run has shown no gain with this averaging (docs/tuning.md).
        PolicyConfig(agent=AgentConfig(steps=0), server_step=ServerStepConfig(kind="normalised")),
        priced=True,
    ),
    "dap-fl-paper": Setting(
        "the paper's agent with its authors' constants, η up to 0.01, no cap",
        PolicyConfig(
            kind="ddpg",
            capped=False,
            space=ActionSpace(eta=PAPER_ETA, alpha=PAPER_ALPHA),
            agent=PAPER_AGENT,
        ),
    ),
    "large": Setting("large fixed η and α", _FIXED),
    "small": Setting("small fixed η and α", _FIXED),
    "ddpg-eta": Setting("the paper's agent on η, α fixed", _RIVAL),
    "ddpg-alpha": Setting("the paper's agent on α, η fixed", _RIVAL),
    "ddpg-client": Setting("fixed η and α; a server-side DDPG selects clients", _FIXED, "ddpg-client"),
    "dqn-large": Setting("a DQN on α, η = 0.001", _DQN),
    "dqn-small": Setting("a DQN on α, η = 0.0001", _DQN),
    "fixed": Setting("any fixed η and α", _FIXED, asks=("eta", "alpha")),
    "fixed-capped": Setting(
        "any fixed η and α, but never more epochs than the budget affords",
        _CAPPED,
        asks=("eta", "alpha"),
    ),
    "probe-capped": Setting(
        "the η that a learning-rate finder gives on each client, α capped by the budget; no agent",
        replace(
            _FIXED,
            kind="probe",
            capped=True,
            space=replace(
                RIVAL_SPACE, eta=Axis(low=0.1, high=10, scale="log", pinned=1)
            ),  # of what was found
        ),
        asks=("alpha",),
    ),
    "cosine-capped": Setting(
        "η falling along a cosine to a tenth, α capped by the budget",
        replace(_CAPPED, kind="cosine"),
        asks=("eta", "alpha"),
    ),
    "delta-sgd": Setting(
        "Δ-SGD: step sizes by the curvature, two gradients per step, α capped by the budget",
        _self_tuned(OptimiserConfig(kind="delta-sgd"), eta=0.2),
        asks=("alpha",),
    ),
    "dog-capped": Setting(
        "DoG: step sizes by distance over gradients, α capped by the budget",
        _self_tuned(OptimiserConfig(kind="dog"), eta=1.0),
        asks=("alpha",),
    ),
    "fedadam-capped": Setting(
        "fixed η and α under the cap, and Adam on the server",
        replace(_CAPPED, server_step=ServerStepConfig(kind="fedadam")),
        asks=("eta", "alpha"),
    ),
}

# Table I: the rows are tasks, the columns settings. The paper leaves ddpg-client and the DQNs out for
# three of the tasks; we run them everywhere.
_EVERYWHERE = {
    "small": Pins(1e-4, 1),
    "ddpg-alpha": Pins(1e-3, None),
    "dqn-large": Pins(1e-3, None),
    "dqn-small": Pins(1e-4, None),
}
TABLE: dict[str, dict[str, Pins]] = {
    "logistic-mnist": _EVERYWHERE
    | {"large": Pins(1e-2, 20), "ddpg-eta": Pins(None, 16), "ddpg-client": Pins(1e-3, 16)},
    "cnn-mnist": _EVERYWHERE
    | {"large": Pins(1e-2, 30), "ddpg-eta": Pins(None, 15), "ddpg-client": Pins(1e-3, 15)},
    "resnet18-mnist": _EVERYWHERE
    | {"large": Pins(1e-2, 20), "ddpg-eta": Pins(None, 11), "ddpg-client": Pins(1e-3, 11)},
    "cnn-fashion": _EVERYWHERE
    | {"large": Pins(5e-4, 25), "ddpg-eta": Pins(None, 18), "ddpg-client": Pins(1e-3, 18)},
}
# A task of the user's own: the most common values of Table I, and the middle of its epochs.
OWN_TASK = _EVERYWHERE | {"large": Pins(1e-2, 20), "ddpg-eta": Pins(None, 16), "ddpg-client": Pins(1e-3, 16)}


def resolve(config: RunConfig) -> Resolved:
    """The policy and the selection of a run. `RunConfig.policy` has the last word on the policy.

    >>> resolve(RunConfig(task="cnn-mnist", setting="large")).policy.space.alpha.pinned
    30
    """
    setting = SETTINGS.get(config.setting) or _own(config.setting)
    _check_options(config, setting)
    pins = TABLE.get(config.task, OWN_TASK).get(config.setting, Pins(config.eta, config.alpha))
    space = setting.policy.space
    space = replace(
        space,
        eta=replace(space.eta, pinned=space.eta.pinned if pins.eta is None else pins.eta),
        alpha=replace(space.alpha, pinned=pins.alpha),
        batch_size=replace(space.batch_size, pinned=config.batch_size),
    )
    policy = replace(setting.policy, space=space)
    if config.price is not None:
        policy = replace(policy, agent=replace(policy.agent, price=config.price))
    return Resolved(_changed(policy, config.policy), setting.selection)


def _own(name: str) -> Setting:
    """A policy of the user's own, `path/to/file.py:NAME`."""
    if Plugin.parse(name) is None:
        raise ConfigError(
            f"There is no setting called {name!r}. The settings are: {', '.join(SETTINGS)}; or a policy of "
            f"your own, {FORM}."
        )
    return Setting("a policy of one's own", PolicyConfig(kind="own", source=name))


def _check_options(config: RunConfig, setting: Setting) -> None:
    given = {name: getattr(config, name) for name in ("eta", "alpha")}
    missing = [f"--{name}" for name in setting.asks if given[name] is None]
    if missing:
        raise ConfigError(
            f"The setting {config.setting} needs {' and '.join(missing)}, as in "
            f"`dapfl run --setting {config.setting} {setting.example}`."
        )
    extra = [f"--{name}" for name, value in given.items() if value is not None and name not in setting.asks]
    if config.price is not None and not setting.priced:
        extra.append("--price")
    if extra:
        raise ConfigError(
            f"The setting {config.setting} takes no {' or '.join(extra)}: it has its own. "
            f"--eta is for {_taking('eta')}, --alpha for {_taking('alpha')}, --price for dap-fl."
        )
    if setting.selection == "ddpg-client" and not config.share_reports:
        raise ConfigError(
            "The setting ddpg-client selects clients by what they report: it needs share_reports = true."
        )


def _taking(option: Literal["eta", "alpha"]) -> str:
    *names, last = (name for name, setting in SETTINGS.items() if option in setting.asks)
    return f"{', '.join(names)} and {last}"


def _changed(policy: PolicyConfig, changes: dict[str, Any]) -> PolicyConfig:
    """The policy with a table of changes laid over it; an unknown key is an error."""
    if not changes:
        return policy
    try:
        return msgspec.convert(_merged(msgspec.to_builtins(policy), changes), PolicyConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"The changes to the policy cannot be used: {in_words(error)}.") from None


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for name, value in changes.items():
        nested = isinstance(value, dict) and isinstance(base.get(name), dict)
        result[name] = _merged(base[name], value) if nested else None if value == "none" else value
    return result
