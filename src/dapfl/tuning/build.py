"""From a `PolicyConfig` to the policy it describes."""

from dapfl.config import PolicyConfig
from dapfl.errors import ConfigError
from dapfl.system.plugins import FORM, Plugin
from dapfl.tuning.agent import AgentPolicy
from dapfl.tuning.dqn import DQNPolicy
from dapfl.tuning.finder import Probe
from dapfl.tuning.policy import Cosine, Fixed, HyperparameterPolicy, Random

KINDS: dict[str, type[HyperparameterPolicy]] = {
    "fixed": Fixed,
    "cosine": Cosine,
    "random": Random,
    "probe": Probe,
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


def load_policy(source: str) -> type[HyperparameterPolicy]:
    """The policy class that `path/to/file.py:NAME` refers to."""
    plugin = Plugin.parse(source)
    if plugin is None:
        raise ConfigError(f"'{source}' is not a policy of your own: refer to one as {FORM}.")
    found = plugin.load()
    if not (isinstance(found, type) and issubclass(found, HyperparameterPolicy)):
        raise ConfigError(f"{plugin} is not a subclass of dapfl.tuning.HyperparameterPolicy.")
    return found
