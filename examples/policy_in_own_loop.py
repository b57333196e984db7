"""Dap-FL's agent in a training loop of your own: no federation, no keys, any framework.

Eight clients fit a linear classifier to data of their own, in plain numpy. Each has the agent of
`dap-fl` choose its learning rate and epochs, within a budget that changes from round to round.

    python examples/policy_in_own_loop.py
"""

import math
from functools import partial

import numpy as np

from dapfl.config import PolicyConfig
from dapfl.tuning import Outcome, Situation, build_policy

CLIENTS, ROUNDS, FEATURES, CLASSES = 8, 12, 20, 4
Weights = np.ndarray


def probabilities(weights: Weights, x: np.ndarray) -> np.ndarray:
    """Softmax of a linear model."""
    z = x @ weights
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def score(weights: Weights, x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Loss, accuracy and macro-F1."""
    p = probabilities(weights, x)
    said = p.argmax(axis=1)
    f1 = [
        2 * np.sum((said == k) & (y == k)) / max(1, np.sum(said == k) + np.sum(y == k))
        for k in range(CLASSES)
    ]
    return (
        -float(np.mean(np.log(p[np.arange(len(y)), y] + 1e-12))),
        float(np.mean(said == y)),
        float(np.mean(f1)),
    )


def train(weights: Weights, x: np.ndarray, y: np.ndarray, eta: float, epochs: int, batch: int) -> Weights:
    """Plain SGD."""
    weights = weights.copy()
    for _ in range(epochs):
        for start in range(0, len(y), batch):
            rows = slice(start, start + batch)
            error = probabilities(weights, x[rows]) - np.eye(CLASSES)[y[rows]]
            weights -= eta * x[rows].T @ error / len(error)
    return weights


def one_epoch(weights: Weights, x: np.ndarray, y: np.ndarray, eta: float) -> float:
    """The loss after an epoch at some rate: how a client finds which rates suit it."""
    return score(train(weights, x, y, eta, epochs=1, batch=32), x, y)[0]


def main(seed: int = 0) -> list[float]:
    """The mean accuracy of the clients before each round and after the last."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(FEATURES, CLASSES))
    data = []
    for _ in range(CLIENTS):
        x = rng.normal(size=(200, FEATURES))
        data.append((x, np.argmax(x @ truth + rng.gumbel(size=(200, CLASSES)), axis=1)))
    policies = [build_policy(PolicyConfig(), seed=seed, client=client) for client in range(CLIENTS)]
    weights, accuracies = np.zeros((FEATURES, CLASSES)), []
    for round_ in range(ROUNDS):
        contributions = []
        for policy, (x, y) in zip(policies, data, strict=True):
            loss, accuracy, f1 = score(weights, x, y)
            situation = Situation(
                round=round_,
                rounds=ROUNDS,
                loss=loss,
                accuracy=accuracy,
                f1=f1,
                budget=rng.uniform(8, 32),
                epoch_cost=1.0,
                transfer_cost=0.5,
                samples=len(y),
                reference_loss=math.log(CLASSES),
            )
            trial = partial(one_epoch, weights, x, y)
            situation = situation.after(policy.prepare(situation, trial))  # trials use up some of the budget
            choice = policy.choose(situation)
            local = train(weights, x, y, choice.eta, choice.alpha, choice.batch_size)
            outcome = Outcome(completed=True, loss_after=score(local, x, y)[0])
            again = policy.retry(situation.after(choice.alpha), choice, outcome)
            if again is not None:  # it overshot, and the budget allows another attempt
                local = train(weights, x, y, again.eta, again.alpha, again.batch_size)
                outcome = Outcome(completed=True, loss_after=score(local, x, y)[0])
            policy.observe(outcome)
            contributions.append(local)
        accuracies.append(float(np.mean([score(weights, x, y)[1] for x, y in data])))
        print(f"round {round_:2}: accuracy {accuracies[-1]:.3f}, the last client trained with {choice}")
        weights = np.mean(contributions, axis=0)
    return [*accuracies, float(np.mean([score(weights, x, y)[1] for x, y in data]))]


if __name__ == "__main__":
    main()
