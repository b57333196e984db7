"""Choosing hyper-parameters: states, actions, rewards, and the policies that learn from them.

Usable on its own: see `HyperparameterPolicy`, `build_policy` and the examples.
"""

from dapfl.tuning.action_space import Hyperparameters
from dapfl.tuning.build import build_policy
from dapfl.tuning.policy import (
    AgentRecord,
    Choice,
    Cosine,
    Fixed,
    HyperparameterPolicy,
    Outcome,
    Random,
    Situation,
    decide,
)

__all__ = [
    "AgentRecord",
    "Choice",
    "Cosine",
    "Fixed",
    "HyperparameterPolicy",
    "Hyperparameters",
    "Outcome",
    "Random",
    "Situation",
    "build_policy",
    "decide",
]
