"""The hand-written gradients and steps against torch."""

import numpy as np
import pytest
import torch

from dapfl.tuning.network import Network, NetworkPair


def torch_twin(network: Network, theta: np.ndarray) -> torch.nn.Sequential:
    modules: list[torch.nn.Module] = []
    for number, (matrix, bias) in enumerate(network.layers(theta)):
        linear = torch.nn.Linear(*matrix.shape)
        linear.weight.data = torch.from_numpy(matrix.T.copy())
        linear.bias.data = torch.from_numpy(bias.copy())
        modules.append(linear)
        if number < len(network.shapes) - 1:
            modules.append(torch.nn.ReLU() if network.activation == "relu" else torch.nn.Tanh())
    return torch.nn.Sequential(*modules)


def flat(module: torch.nn.Module, what: str) -> np.ndarray:
    parts = []
    for layer in module.children():
        if isinstance(layer, torch.nn.Linear):
            weight, bias = (p if what == "weights" else p.grad for p in (layer.weight, layer.bias))
            parts += [weight.detach().numpy().T.reshape(-1), bias.detach().numpy()]
    return np.concatenate(parts)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("sizes", [(3, 10, 5, 2), (14, 64, 64, 1), (4, 1)])
def test_outputs_and_gradients_are_those_of_torch(sizes: tuple[int, ...], activation: str) -> None:
    rng = np.random.default_rng(0)
    network = Network(sizes, activation)  # type: ignore[arg-type]
    theta = rng.normal(0, 0.3, network.size).astype(np.float32)
    x = rng.normal(size=(7, sizes[0])).astype(np.float32)
    pull = rng.normal(size=(7, sizes[-1])).astype(np.float32)
    output, tape = network.forward(theta, x)
    gradient, at_inputs = network.backward(theta, tape, pull.copy())
    twin = torch_twin(network, theta)
    inputs = torch.from_numpy(x).requires_grad_()
    expected = twin(inputs)
    (expected * torch.from_numpy(pull)).sum().backward()
    assert output == pytest.approx(expected.detach().numpy(), abs=1e-5)
    assert gradient == pytest.approx(flat(twin, "gradients"), abs=2e-5)
    assert inputs.grad is not None and at_inputs == pytest.approx(inputs.grad.numpy(), abs=2e-5)
    without, again = network.backward(theta, tape, pull.copy(), weights=False)
    assert without.size == 0 and np.array_equal(again, at_inputs)


def test_ten_steps_are_those_of_torch_adam() -> None:
    rng = np.random.default_rng(1)
    network = Network((3, 8, 1), "tanh")
    pair = NetworkPair(network, 1e-2, rng.normal(0, 0.3, network.size).astype(np.float32))
    twin = torch_twin(network, pair.main)
    adam = torch.optim.Adam(twin.parameters(), 1e-2)
    for _ in range(10):
        x, y = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(5, 1)).astype(np.float32)
        output, tape = network.forward(pair.main, x)
        pair.descend(network.backward(pair.main, tape, 2 / 5 * (output - y))[0])
        adam.zero_grad()
        ((twin(torch.from_numpy(x)) - torch.from_numpy(y)) ** 2).mean().backward()
        adam.step()
    assert pair.main == pytest.approx(flat(twin, "weights"), abs=2e-5)


def test_first_outputs_are_near_zero() -> None:
    network = Network((12, 64, 64, 2), "relu")
    x = np.random.default_rng(0).normal(size=(50, 12)).astype(np.float32)
    assert np.abs(network(network.initial(np.random.default_rng(1)), x)).max() < 0.1
