"""A hyper-parameter policy of your own, in ten lines.

    dapfl run --task logistic-mnist --setting examples/own_policy.py:Plateau

One object of the class serves one client. `choose` sees what the client sees at the start of a round:
the global model on its own data, and its own resources.
"""

from dapfl.tuning import Choice, HyperparameterPolicy, Hyperparameters, Situation, decide


class Plateau(HyperparameterPolicy):
    """Halve the learning rate whenever the loss of the global model did not fall by 1 %."""

    eta, last_loss = 0.1, float("inf")

    def choose(self, situation: Situation) -> Choice:
        """Eight epochs, or what the budget affords."""
        if situation.loss > 0.99 * self.last_loss:
            self.eta = max(self.eta / 2, 1e-3)
        self.last_loss = situation.loss
        return decide(Hyperparameters(self.eta, alpha=8, batch_size=32), situation, capped=True)

    def saved_state(self) -> bytes:
        """What `--resume` needs: without this, a resumed run would start again from 0.1."""
        return f"{self.eta} {self.last_loss}".encode()

    def restore(self, state: bytes) -> None:
        """Back to where `state` was saved."""
        self.eta, self.last_loss = map(float, state.split())
