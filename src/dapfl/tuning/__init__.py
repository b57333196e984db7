"""Choosing hyper-parameters: states, actions, rewards, and the policies that learn from them.

| name | what it is |
|---|---|
| `HyperparameterPolicy` | what a policy is; the base of one of your own |
| `build_policy` | the policy that a `PolicyConfig` describes, for one client |
| `Situation` | what a client sees at the start of a round |
| `Hyperparameters`, `Choice` | what it trains with, before and after the cap |
| `decide` | from the one to the other |
| `Outcome` | how training went |
| `AgentRecord` | what a learning policy can tell about its last choice |
| `Fixed`, `Cosine`, `Random` | policies that do not learn |

Usable on its own, in a training loop of any kind: see examples/policy_in_own_loop.py.
"""

from dapfl.hyperparameters import Hyperparameters
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
