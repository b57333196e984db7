"""The schema of a run and the only place where defaults live.

A run is one `RunConfig`. It is read from strict TOML (an unknown key is an error), changed by
command-line flags, and written whole into the run's manifest. The structs are frozen; pass them
whole, never field by field.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from dapfl.errors import ConfigError

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]

SECURE_BITS = 2048  # the least size of a Paillier modulus that is not called insecure


class _Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unknown keys are refused everywhere."""


class Axis(_Config, frozen=True, kw_only=True):
    """One hyper-parameter that a policy may choose: its range, its scale, or the value it is pinned to."""

    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"
    integer: bool = False
    pinned: float | None = None

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"the low end {self.low:g} of an axis must be below its high end {self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"an axis on a log scale must start above 0, not at {self.low:g}")


class ActionSpace(_Config, frozen=True, kw_only=True):
    """The axes of an action a_i(t) (Eq. 21), each free or pinned."""

    eta: Axis = Axis(low=1e-4, high=0.3, scale="log")
    alpha: Axis = Axis(low=1, high=30, scale="log", integer=True)
    batch_size: Axis = Axis(low=8, high=128, scale="log", integer=True, pinned=32)


class AgentConfig(_Config, frozen=True, kw_only=True):
    """The DDPG agent (Section IV): its networks, rates and the parts that go beyond the paper.

    The defaults are the agent of the setting `dap-fl`; `dap-fl-paper` is a row of the settings table.
    """

    # The agent of the paper.
    state: Literal["paper", "rich"] = "rich"  # Eq. 20, or that and eight or more features besides
    hidden: tuple[Count, ...] = (64, 64)
    activation: Literal["relu", "tanh"] = "relu"
    actor_rate: NonNegative = 3e-5  # l^A, Eq. 27
    critic_rate: NonNegative = 3e-4  # l^C, Eq. 26
    lambda_rate: NonNegative = 1e-3  # l^L, Eq. 29
    lambda_start: NonNegative = 0.5
    gamma: Fraction = 0.95
    beta: Fraction = 0.005  # Eq. 28
    batch: Count = 32  # |B|
    steps: Natural = 2  # times Eqs 24-29 are applied a round; 0: the agent does not learn
    buffer: Count = 2000
    noise: NonNegative = 0.0  # exploration: standard deviation on the action, in [-1, 1]
    noise_decay: Fraction = 0.97
    noise_floor: NonNegative = 0.0
    random_rounds: Natural = 0  # how many first choices are random
    xi: tuple[NonNegative, NonNegative, NonNegative] = (1.0, 1.0, 1.0)  # Eq. 17
    # What goes beyond it.
    twin: bool = True  # two critics, the smaller value counts; the actor learns every second step
    project: bool = True  # the critic judges the action that is executed, after the cap
    constraint: Literal["linear", "hinge"] = "hinge"  # λ·b (Eq. 23), or λ·max(b, 0)
    tolerance: NonNegative = 0.003  # violation that the dual step of "hinge" tolerates
    saturation: NonNegative = 1e-3  # price of actor outputs far out on the tanh
    local_reward: NonNegative = 1.0  # weight of ln(loss before / after own training)
    standardise: bool = True  # Eq. 22 by the client's own running mean and deviation
    price: NonNegative = 0.4  # κ, the price of work
    backoff: Annotated[float, Meta(gt=0, le=1)] = 0.5  # of an η that overshot, what is the most from then on
    warm_start: str | None = "packaged"  # "packaged", a file of `dapfl pretrain`, or none


class DQNConfig(_Config, frozen=True, kw_only=True):
    """The rival that picks α from a few levels by a deep Q-network (Sun et al.)."""

    levels: Annotated[int, Meta(ge=2)] = 10
    hidden: tuple[Count, ...] = (64, 64)
    activation: Literal["relu", "tanh"] = "relu"
    rate: NonNegative = 1e-3
    gamma: Fraction = 0.9
    beta: Fraction = 0.01
    batch: Count = 32
    steps: Natural = 4
    buffer: Count = 2000
    explore: Fraction = 1.0  # chance of a random level, first
    explore_decay: Fraction = 0.94
    explore_floor: Fraction = 0.05
    xi: tuple[NonNegative, NonNegative, NonNegative] = (1.0, 1.0, 1.0)
    penalty: NonNegative = 0.5  # taken from the reward when the plan exceeds the budget


class PolicyConfig(_Config, frozen=True, kw_only=True):
    """How a client chooses its hyper-parameters."""

    kind: Literal["fixed", "cosine", "random", "ddpg", "dqn", "own"] = "ddpg"
    source: str | None = None  # of an own policy: path/to/file.py:NAME
    capped: bool = True
    space: ActionSpace = ActionSpace()
    agent: AgentConfig = AgentConfig()
    dqn: DQNConfig = DQNConfig()


class ResourceConfig(_Config, frozen=True, kw_only=True):
    """What clients have to spend (DESIGN: one unit is one epoch over 600 samples at full capability)."""

    source: Literal["walk", "trace", "measured"] = "walk"
    trace: str | None = None
    capabilities: tuple[Positive, ...] = (1.0, 0.8, 0.6, 0.4, 0.2)
    budget: Positive = 32.0
    transfer: NonNegative = 1.0
    jump_probability: Fraction = 0.05
    deadline_seconds: Positive = 600.0


class CryptoConfig(_Config, frozen=True, kw_only=True):
    """How contributions are protected."""

    encryption: Literal["paillier", "none"] = "paillier"
    envelope: Literal["paillier", "hybrid"] = "hybrid"
    key_bits: Count = 2048
    codec: Literal["exact", "compact"] = "exact"
    randomness: Literal["djn", "full"] = "djn"
    generator: Literal["n+1", "random"] = "n+1"
    engine: Literal["auto", "gmp", "avx2", "ifma"] = "auto"
    allow_insecure_small_keys: bool = False

    def __post_init__(self) -> None:
        if self.key_bits < SECURE_BITS and not self.allow_insecure_small_keys:
            raise ValueError(
                f"keys of {self.key_bits} bits are insecure: {SECURE_BITS} is the least "
                "(allow_insecure_small_keys accepts smaller ones, for trials)"
            )


class RunConfig(_Config, frozen=True, kw_only=True):
    """Everything that decides what a run does."""

    task: str = "cnn-mnist"
    setting: str = "dap-fl"
    rounds: Count = 10
    clients: Count = 20
    seed: Natural = 0
    engine: Literal["local", "flower"] = "local"
    workers: Natural = 0
    partition: str = "iid"
    mean_samples: Positive = 600.0
    std_samples: NonNegative = 200.0
    batch_size: Count = 32
    eta: Positive | None = None
    alpha: Count | None = None
    price: NonNegative | None = None
    min_cohort: Count = 3
    round_timeout: Positive = 3600.0
    share_reports: bool = True
    adversaries: tuple[str, ...] = ()
    log: tuple[Literal["tensorboard", "mlflow"], ...] = ()
    crypto: CryptoConfig = CryptoConfig()
    resources: ResourceConfig = ResourceConfig()
    policy: dict[str, Any] = {}  # changes to the setting's PolicyConfig; "none" stands for no value


def parse(data: object) -> RunConfig:
    """A RunConfig from decoded TOML or JSON; anything unknown or out of range is a ConfigError."""
    try:
        return msgspec.convert(data, RunConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"This configuration cannot be used: {error}.") from None


def load(path: Path) -> RunConfig:
    """A RunConfig from a TOML file."""
    return parse(read_toml(path))


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says; a ConfigError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} is not valid TOML: {error}.") from None


def override(config: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """The same run with some values changed, checked as if they had come from a file.

    A dotted name reaches a nested value: ``{"crypto.key_bits": 3072}``.
    """
    data = msgspec.to_builtins(config)
    for name, value in changes.items():
        *path, last = name.split(".")
        place = data
        for part in path:
            place = place[part]
        place[last] = value
    return parse(data)
