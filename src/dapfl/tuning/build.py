"""From a `PolicyConfig` to the policy it describes."""

import importlib.util
from functools import cache
from pathlib import Path

from dapfl.config import PolicyConfig
from dapfl.errors import ConfigError
from dapfl.tuning.agent import AgentPolicy
from dapfl.tuning.dqn import DQNPolicy
from dapfl.tuning.policy import Cosine, Fixed, HyperparameterPolicy, Random

KINDS: dict[str, type[HyperparameterPolicy]] = {
    "fixed": Fixed,
    "cosine": Cosine,
    "random": Random,
    "ddpg": AgentPolicy,
    "dqn": DQNPolicy,
}


def build_policy(config: PolicyConfig, seed: int, client: int) -> HyperparameterPolicy:
    """The policy of one client. Everything random in ours depends on the seed, the client and the round.

    >>> from dapfl.config import ActionSpace, Axis
    >>> space = ActionSpace(eta=Axis(low=1e-4, high=1, pinned=0.1), alpha=Axis(low=1, high=30, pinned=6))
    >>> build_policy(PolicyConfig(kind="fixed", space=space), seed=0, client=1).plan
    Hyperparameters(eta=0.1, alpha=6, batch_size=32)
    """
    if config.kind == "own":
        return load_policy(config.source or "")(config, seed, client)
    return KINDS[config.kind](config, seed, client)


@cache
def load_policy(source: str) -> type[HyperparameterPolicy]:
    """The policy class `NAME` of `path/to/file.py:NAME`; a process loads a file once."""
    path, _, name = source.rpartition(":")
    spec = importlib.util.spec_from_file_location(f"dapfl_own_policy_{Path(path).stem}", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"The policy {source} cannot be found: name it as path/to/file.py:NAME.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"The file {path} fails when loaded: {type(error).__name__}: {error}.") from error
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, HyperparameterPolicy)):
        raise ConfigError(f"The file {path} has no class {name} that is a HyperparameterPolicy.")
    return found
