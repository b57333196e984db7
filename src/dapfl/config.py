"""The schema of a run, and the only place for defaults.

A run is one `RunConfig`. It is read from strict TOML (an unknown key is an error), changed by
command-line flags, and written whole into the run's manifest. The structs are frozen; pass them
whole, never field by field.
"""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from dapfl.errors import ConfigError
from dapfl.system import plugins

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Encryption = Literal["paillier", "none"]
Decryption = Literal["shared", "committee"]
EnvelopeName = Literal["paillier", "hybrid"]
CodecName = Literal["exact", "compact"]
Randomness = Literal["djn", "full"]
ArithmeticName = Literal["auto", "gmp", "portable", "avx2", "ifma"]
Generator = Literal["n+1", "random"]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]

SECURE_BITS = 2048  # the smallest Paillier modulus that counts as secure
LARGEST_BITS = 16384  # keys beyond this take hours to make, and protect no better


class _Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A struct that refuses unknown keys."""


class Axis(_Config, frozen=True, kw_only=True):
    """One hyper-parameter that a policy may choose: its range, its scale, or the value it is pinned to."""

    low: float  # the least value
    high: float  # the greatest
    scale: Literal["linear", "log"] = "linear"  # how values are spread in between
    integer: bool = False  # whole numbers only
    pinned: float | None = None  # the one value that is always taken

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"the low end {self.low:g} of an axis must be below its high end {self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"an axis on a log scale must start above 0, not at {self.low:g}")


class ActionSpace(_Config, frozen=True, kw_only=True):
    """The axes of an action a_i(t) (Eq. 21), each free or pinned."""

    eta: Axis = Axis(low=0.02, high=2.0, scale="log")  # of `dap-fl`: in units that each client finds
    alpha: Axis = Axis(low=1, high=30, scale="log", integer=True)  # local epochs
    batch_size: Axis = Axis(low=8, high=128, scale="log", integer=True, pinned=32)  # of SGD


class AgentConfig(_Config, frozen=True, kw_only=True):
    """The DDPG agent (Section IV): its networks, rates and the parts that go beyond the paper.

    The defaults are the agent of the setting `dap-fl`, which sets `steps` to 0; `dap-fl-paper` is a row of
    the settings table.
    """

    # The agent of the paper.
    state: Literal["paper", "rich"] = "rich"  # Eq. 20, or that and further features
    hidden: tuple[Count, ...] = (64, 64)  # widths of the hidden layers
    activation: Literal["relu", "tanh"] = "relu"  # of the hidden layers
    actor_rate: NonNegative = 3e-5  # l^A, Eq. 27
    critic_rate: NonNegative = 3e-4  # l^C, Eq. 26
    lambda_rate: NonNegative = 1e-3  # l^L, Eq. 29
    lambda_start: NonNegative = 0.5  # λ at first
    gamma: Fraction = 0.95  # γ, the discount of later rewards
    beta: Fraction = 0.005  # Eq. 28
    batch: Count = 32  # |B|
    steps: Natural = 2  # how often Eqs 24-29 are applied per round; 0: the agent does not learn
    buffer: Count = 2000  # transitions that are remembered
    noise: NonNegative = 0.0  # exploration: standard deviation on the action, in [-1, 1]
    noise_decay: Fraction = 0.97  # what the noise is multiplied by each round
    noise_floor: NonNegative = 0.0  # and where that ends
    random_rounds: Natural = 0  # so many choices at the start are random
    xi: tuple[NonNegative, NonNegative, NonNegative] = (1.0, 1.0, 1.0)  # Eq. 17
    # What goes beyond the paper.
    twin: bool = True  # two critics, the smaller value counts; the actor learns every second step
    project: bool = True  # the critic judges the action that is executed, after the cap
    constraint: Literal["linear", "hinge"] = "hinge"  # λ·b (Eq. 23), or λ·max(b, 0)
    tolerance: NonNegative = 0.003  # violation that the dual step of "hinge" tolerates
    saturation: NonNegative = 1e-3  # penalty on actor outputs that saturate the tanh
    local_reward: NonNegative = 1.0  # weight of ln(loss before / after own training)
    standardise: bool = True  # Eq. 22 by the client's own running mean and deviation
    price: NonNegative = 0.1  # κ, the price of work
    share: Annotated[float, Meta(gt=0, le=1)] = 0.5  # of the budget that is planned with
    relative: bool = True  # η is chosen in a unit that the client finds by trials
    backoff: Annotated[float, Meta(gt=0, le=1)] = 0.5  # what the unit shrinks by when training overshot
    warm_start: str | None = "packaged"  # "packaged", a file of `dapfl pretrain`, or none


class DQNConfig(_Config, frozen=True, kw_only=True):
    """The rival that picks α from a few levels by a deep Q-network (Sun et al.)."""

    levels: Annotated[int, Meta(ge=2)] = 10  # of α to choose from
    hidden: tuple[Count, ...] = (64, 64)  # widths of the hidden layers
    activation: Literal["relu", "tanh"] = "relu"  # of the hidden layers
    rate: NonNegative = 1e-3  # learning rate
    gamma: Fraction = 0.9  # γ, the discount of later rewards
    beta: Fraction = 0.01  # how far the target network follows in a step
    batch: Count = 32  # transitions of a step
    steps: Natural = 4  # steps of learning per round
    buffer: Count = 2000  # transitions that are remembered
    explore: Fraction = 1.0  # probability of a random level at the start
    explore_decay: Fraction = 0.94  # what it is multiplied by each round
    explore_floor: Fraction = 0.05  # and where that ends
    xi: tuple[NonNegative, NonNegative, NonNegative] = (1.0, 1.0, 1.0)  # Eq. 17
    penalty: NonNegative = 0.5  # taken from the reward when the plan exceeds the budget


class OptimiserConfig(_Config, frozen=True, kw_only=True):
    """How a client takes its steps, given η and α (`dapfl.learning.optimisers`)."""

    kind: Literal["sgd", "delta-sgd", "dog"] = "sgd"  # the paper's, Δ-SGD, or DoG
    gamma: Positive = 2.0  # γ of Δ-SGD: its step sizes by the curvature
    delta: NonNegative = 0.1  # δ of Δ-SGD: how fast they may grow
    first_distance: Positive = 1e-4  # DoG: of its first step, as a part of 1 + ‖W(0)‖


class ServerStepConfig(_Config, frozen=True, kw_only=True):
    """How the next model follows from the average (`dapfl.federation.global_model.server_step`)."""

    kind: Literal["average", "normalised", "fedadam"] = "average"  # the paper's, FedNova's, or FedAdam
    rate: Positive = 0.03  # FedAdam: its learning rate
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9  # β₁
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.99  # β₂
    tau: Positive = 1e-3  # τ, which bounds its steps


class PolicyConfig(_Config, frozen=True, kw_only=True):
    """How a client chooses its hyper-parameters, what trains with them, and what the average becomes."""

    kind: Literal["fixed", "cosine", "random", "probe", "ddpg", "dqn", "own"] = "ddpg"  # how it chooses
    source: str | None = None  # of an own policy: path/to/file.py:NAME
    capped: bool = True  # never plan more epochs than the budget affords
    space: ActionSpace = ActionSpace()
    agent: AgentConfig = AgentConfig()
    dqn: DQNConfig = DQNConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    server_step: ServerStepConfig = ServerStepConfig()


class ResourceConfig(_Config, frozen=True, kw_only=True):
    """What clients have to spend. A simulation's unit is one epoch over 600 samples at full capability."""

    source: Literal["walk", "trace", "measured"] = "walk"  # simulated, from a file, or a device's clock
    trace: str | None = None  # the CSV file of "trace"
    capabilities: tuple[Positive, ...] = (1.0, 0.8, 0.6, 0.4, 0.2)  # of full power, by groups of equal size
    budget: Positive = 32.0  # what a client has in a usual round, in units
    transfer: NonNegative = 1.0  # what sending or receiving the model costs, in units
    jump_probability: Fraction = 0.05  # that a client's budget jumps in a round
    deadline_seconds: Positive = 600.0  # the budget of a device that measures itself, in seconds


class CryptoConfig(_Config, frozen=True, kw_only=True):
    """How contributions are protected.

    `engine` names the arithmetic engine; `RunConfig.engine` says where the clients run.
    """

    encryption: Encryption = "paillier"  # of contributions
    decryption: Decryption = "committee"  # who can open sums: a few clients together, or every client alone
    committee_members: Annotated[int, Meta(ge=2, le=32)] = 5  # how many clients hold a share of the key
    committee_threshold: Natural = 0  # how many decrypt together; 0: enough to withstand two colluders
    envelope: EnvelopeName = "hybrid"  # ε₂: the paper's blocks, or AES with a Paillier key
    key_bits: Count = 2048  # of the Paillier modulus
    codec: CodecName = "compact"  # float32 weights, or 16 bits of how they change
    randomness: Randomness = "djn"  # short exponents (Damgård, Jurik, Nielsen), or ζⁿ
    generator: Generator = "n+1"  # g of Paillier
    engine: ArithmeticName = "auto"  # of the arithmetic; auto: the fastest here
    allow_insecure_small_keys: bool = False  # accept keys under 2048 bits, for trials

    def __post_init__(self) -> None:
        if self.key_bits < SECURE_BITS and not self.allow_insecure_small_keys:
            raise ValueError(
                f"keys of {self.key_bits} bits are insecure: the minimum is {SECURE_BITS} "
                "(allow_insecure_small_keys accepts smaller ones, for trials)"
            )
        if self.key_bits > LARGEST_BITS:
            raise ValueError(
                f"keys of {self.key_bits} bits cannot be made in a reasonable time: "
                f"take {SECURE_BITS} or 3072, and {LARGEST_BITS} at most"
            )
        if self.decryption == "committee" and (self.generator, self.randomness) != ("n+1", "djn"):
            raise ValueError(
                'a committee decrypts under generator = "n+1" and randomness = "djn" only: '
                'choose these, or decryption = "shared"'
            )


class RunConfig(_Config, frozen=True, kw_only=True):
    """Everything that decides what a run does."""

    task: str = "cnn-mnist"  # a built-in task, or FILE.py:NAME
    setting: str = "dap-fl"  # who chooses η and α: a row of the settings table, or FILE.py:NAME
    rounds: Count = 10  # how many
    clients: Count = 20  # how many
    room: Count | None = None  # the most clients that the federation may ever have; none: no more than now
    per_round: Count | None = None  # how many clients a round calls, drawn at random; none: all of them
    seed: Natural = 0  # decides everything random but keys
    engine: Literal["local", "flower"] = "local"  # where the clients run: worker processes, or Flower nodes
    workers: Natural = 0  # processes of the local engine; 0: one per core
    device: DeviceName = "cpu"  # where models train and are scored; auto: a GPU if PyTorch finds one
    partition: str = "iid"  # who has which samples: iid, dirichlet:A, natural, resampled or own
    # samples of a client; none: the paper's 600, or, in a task of one's own, an equal part of all
    mean_samples: Positive | None = None
    std_samples: NonNegative | None = None  # their standard deviation; none: 200, or 0
    batch_size: Count = 32  # samples of a step of SGD
    eta: Positive | None = None  # η, the learning rate of fixed settings; none: the setting's
    alpha: Count | None = None  # α, the local epochs of fixed settings; none: the setting's
    price: NonNegative | None = None  # κ, what 30 epochs cost the dap-fl agent in reward; none: its own
    min_cohort: Count = 3  # the fewest contributions that are added up
    round_timeout: Positive = 3600.0  # seconds until a client that has not answered is left out
    wait: NonNegative = 86400.0  # seconds that a round waits for enough clients, in a deployment
    share_reports: bool = True  # whether clients tell the server |D_i|, their resources and choices
    adversaries: tuple[str, ...] = ()  # live attackers, by name
    log: tuple[Literal["tensorboard", "mlflow"], ...] = ()  # logs besides rounds.jsonl
    crypto: CryptoConfig = CryptoConfig()
    resources: ResourceConfig = ResourceConfig()
    policy: dict[str, Any] = {}  # changes to the setting's PolicyConfig; "none" means no value


def parse(data: object) -> RunConfig:
    """A RunConfig from decoded TOML or JSON; anything unknown or out of range is a ConfigError."""
    try:
        return msgspec.convert(data, RunConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"This configuration cannot be used: {in_words(error)}.") from None


_RANGES = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


def in_words(error: msgspec.ValidationError) -> str:
    """What is wrong with a value, as one would say it.

    >>> try:
    ...     msgspec.convert({"crypto": {"committee_members": 99}}, RunConfig)
    ... except msgspec.ValidationError as error:
    ...     in_words(error)
    'crypto.committee_members must be at most 32'
    """
    text, _, place = str(error).partition(" - at `$")
    name = place.rstrip("`").lstrip(".")
    if found := re.fullmatch(r"Expected `[^`]+` (>=|>|<=|<) (\S+)", text):
        return f"{name} must be {_RANGES[found[1]]} {found[2].removesuffix('.0')}"
    if found := re.fullmatch(r"Expected `([^`]+)`, got `([^`]+)`", text):
        wanted = [_KINDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
        return f"{name} must be {' or '.join(wanted)}, not {_KINDS.get(found[2], found[2])}"
    if found := re.fullmatch(r"Object contains unknown field `([^`]+)`", text):
        return f"there is no key {f'{name}.' if name else ''}{found[1]}"
    if found := re.fullmatch(r"Invalid enum value (.+)", text):
        return f"{name} cannot be {found[1]}"
    return f"{name}: {text}" if name else text


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


def relocated(config: RunConfig, place: Callable[[Path], Path]) -> RunConfig:
    """The same run with every file that it names at `place(file)`.

    >>> relocated(RunConfig(task="tasks/wards.py:TASK"), lambda file: Path("device") / file.name).task
    'device/wards.py:TASK'
    """
    changes: dict[str, Any] = {
        "task": plugins.relocated(config.task, place),
        "setting": plugins.relocated(config.setting, place),
        "policy": _relocated_changes(config.policy, place),
    }
    if config.resources.trace:
        changes["resources.trace"] = str(place(Path(config.resources.trace)))
    return override(config, changes)


def relocated_policy(policy: PolicyConfig, place: Callable[[Path], Path]) -> PolicyConfig:
    """The same policy with every file that it names at `place(file)`."""
    return msgspec.convert(_relocated_changes(msgspec.to_builtins(policy), place), PolicyConfig)


def _relocated_changes(policy: dict[str, Any], place: Callable[[Path], Path]) -> dict[str, Any]:
    """Part or all of a PolicyConfig, as decoded from a file; what is of another type is refused elsewhere."""
    result = dict(policy)
    if isinstance(source := policy.get("source"), str):
        result["source"] = plugins.relocated(source, place)
    agent = policy.get("agent")
    if isinstance(agent, dict) and isinstance(weights := agent.get("warm_start"), str):
        result["agent"] = agent | {"warm_start": _relocated_weights(weights, place)}
    return result


def _relocated_weights(source: str, place: Callable[[Path], Path]) -> str:
    return source if source in ("packaged", "none") else str(place(Path(source)))
