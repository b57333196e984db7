"""From a `PolicyConfig` to the policy it describes."""

from dapfl.config import PolicyConfig
from dapfl.tuning.agent import AgentPolicy
from dapfl.tuning.dqn import DQNPolicy
from dapfl.tuning.policy import Cosine, Fixed, HyperparameterPolicy, Random


def build_policy(config: PolicyConfig, seed: int, client: int) -> HyperparameterPolicy:
    """The policy of one client. Everything random in it depends on the seed and the client only.

    >>> from dapfl.config import ActionSpace, Axis
    >>> space = ActionSpace(eta=Axis(low=1e-4, high=1, pinned=0.1), alpha=Axis(low=1, high=30, pinned=6))
    >>> build_policy(PolicyConfig(kind="fixed", space=space), seed=0, client=1).plan
    Hyperparameters(eta=0.1, alpha=6, batch_size=32)
    """
    match config.kind:
        case "fixed":
            return Fixed(config)
        case "cosine":
            return Cosine(config)
        case "random":
            return Random(config, seed, client)
        case "dqn":
            return DQNPolicy(config, seed, client)
        case "ddpg":
            return AgentPolicy(config, seed, client)
