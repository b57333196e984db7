"""The networks of the synthetic federations, against torch's autograd."""

import numpy as np
import pytest
import torch

from dapfl.pretraining.perceptron import Perceptron, cross_entropy, softmax

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
CLIENTS, ROWS, CLASSES = 3, 6, 5


def forward(network: Perceptron, weights: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    for layer, part in enumerate(weights):
        x = x @ part[..., :-1, :] + part[..., -1:, :]
        if layer < len(weights) - 1:
            if network.normalised:
                x = torch.nn.functional.layer_norm(x, x.shape[-1:])
            x = ACTIVATIONS[network.activation](x)
    return x


@pytest.mark.parametrize("hidden", [(), (9,), (9, 8), (9, 8, 7, 6)], ids=len)
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_step_is_the_gradient_of_the_cross_entropy(activation, normalised, hidden):
    network = Perceptron((7, *hidden, CLASSES), activation, normalised)
    rng = np.random.default_rng(0)
    first = network.initial(rng)
    local = [np.repeat(part[None], CLIENTS, 0).astype(np.float64) for part in first]
    for part in local:  # every client has weights of its own
        part += rng.normal(0, 0.3, part.shape)
    x = rng.standard_normal((CLIENTS, ROWS, 7))
    labels = rng.integers(0, CLASSES, (CLIENTS, ROWS))
    shares = np.full((CLIENTS, ROWS, 1), 0.1 / 4)
    shares[:, 4:] = 0  # padding
    weights = [torch.tensor(part, requires_grad=True) for part in local]
    logits = forward(network, weights, torch.tensor(x))
    ours = network.logits(local, x)
    np.testing.assert_allclose(ours, logits.detach().numpy(), rtol=1e-5, atol=1e-6)
    losses = torch.nn.functional.cross_entropy(
        logits.reshape(-1, CLASSES), torch.tensor(labels).reshape(-1), reduction="none"
    )
    np.testing.assert_allclose(
        cross_entropy(ours, labels), losses.detach().numpy().reshape(CLIENTS, ROWS), rtol=1e-4, atol=1e-6
    )
    (losses.reshape(CLIENTS, ROWS)[:, :4].sum() / 4).backward()
    before = [part.copy() for part in local]
    network.descend(local, x, np.eye(CLASSES)[labels], shares)
    for old, new, expected in zip(before, local, weights, strict=True):
        np.testing.assert_allclose(old - new, 0.1 * expected.grad.numpy(), rtol=1e-4, atol=1e-7)
        assert np.abs(old - new).max() > 1e-6


def test_weights_start_as_in_torch():
    first = Perceptron((400, 100, 5)).initial(np.random.default_rng(1))
    assert [part.shape for part in first] == [(401, 100), (101, 5)]
    for part, fan_in in zip(first, (400, 100), strict=True):
        assert np.abs(part).max() <= fan_in**-0.5
        assert np.std(part) == pytest.approx(fan_in**-0.5 / 3**0.5, rel=0.1)


def test_large_logits_stay_finite():
    logits = np.array([[1e4, 0.0, -1e4]], np.float32)
    assert cross_entropy(logits, np.array([1]))[0] == pytest.approx(1e4)
    assert softmax(logits.copy()).tolist() == [[1.0, 0.0, 0.0]]
