import numpy as np
import pytest
import torch

from dapfl.experiments.synthetic import CLASSES, SyntheticFederation, image_like
from dapfl.learning.metrics import macro_f1
from dapfl.randomness import stream


@pytest.fixture(scope="module", params=[(None, 0), (0.3, 12)], ids=["iid-softmax", "dirichlet-hidden"])
def federation(request) -> SyntheticFederation:
    dirichlet, hidden = request.param
    return SyntheticFederation(5, clients=5, dirichlet=dirichlet, hidden=hidden)


def forward(weights: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return x @ weights[0] if len(weights) == 1 else torch.relu(x @ weights[0]) @ weights[1]


def test_training_is_stochastic_gradient_descent_of_each_client(federation):
    federation.reset()
    eta, alpha = np.array([0.1, 0.03, 0.01, 0.1, 0.05], np.float32), np.array([2, 1, 3, 0, 1])
    ours = federation.train(eta, alpha, stream(1, "sgd"))
    # The same epochs, drawn in the same order (longest client first), run one by one with torch.
    rng = stream(1, "sgd")
    batches = [len(shares) for _, shares in federation._epochs]
    images = torch.tensor(federation.images.reshape(-1, federation.images.shape[2]))
    labels = torch.tensor(federation.labels.reshape(-1))
    for client in np.argsort(-alpha * np.array(batches), kind="stable"):
        epochs, shares = federation._epochs[client]
        weights = [torch.tensor(part, requires_grad=True) for part in federation.weights]
        for epoch in epochs[rng.integers(0, len(epochs), alpha[client])]:
            for rows, share in zip(epoch, shares, strict=True):
                real = rows[share > 0]
                loss = torch.nn.functional.cross_entropy(forward(weights, images[real]), labels[real])
                for part, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                    part.data -= float(eta[client]) * gradient
        for part, expected in zip(ours, weights, strict=True):
            np.testing.assert_allclose(part[client], expected.detach().numpy(), atol=2e-4)


def test_every_row_of_a_client_is_seen_once_an_epoch(federation):
    for client, (epochs, shares) in enumerate(federation._epochs):
        for epoch in epochs:
            rows = epoch[shares > 0] - client * federation.images.shape[1]
            assert sorted(rows.tolist()) == list(range(federation.rows[client]))
        np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)


def test_scores_are_those_of_the_learning_room(federation):
    federation.reset()
    trained = federation.train(np.full(5, 0.05, np.float32), np.full(5, 1), stream(2, "sgd"))
    federation.aggregate(trained, np.ones(5, bool))
    scores = federation.evaluate()
    weights = [torch.tensor(part) for part in federation.weights]
    for client in range(5):
        count = federation.rows[client]
        labels = torch.tensor(federation.labels[client, :count])
        logits = forward(weights, torch.tensor(federation.images[client, :count]))
        confusion = np.zeros((CLASSES, CLASSES), np.int64)
        np.add.at(confusion, (labels.numpy(), logits.argmax(1).numpy()), 1)
        assert scores.loss[client] == pytest.approx(
            float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-4
        )
        assert scores.accuracy[client] == pytest.approx(np.trace(confusion) / count)
        assert scores.f1[client] == pytest.approx(macro_f1(confusion), rel=1e-5)


def test_a_client_scores_its_own_model(federation):
    federation.reset()
    trained = federation.train(np.full(5, 0.05, np.float32), np.array([1, 1, 0, 1, 1]), stream(3, "sgd"))
    local, shared = federation.evaluate_local(trained), federation.evaluate().loss
    assert local[2] == pytest.approx(shared[2], rel=1e-6)
    assert (np.delete(local, 2) < np.delete(shared, 2)).all()


def test_the_aggregate_is_the_mean_by_samples_of_those_who_took_part(federation):
    federation.reset()
    local = federation.train(np.full(5, 0.05, np.float32), np.full(5, 1), stream(4, "sgd"))
    part = np.array([True, False, True, False, True])
    federation.aggregate(local, part)
    shares = federation.rows * part / np.sum(federation.rows * part)
    np.testing.assert_allclose(federation.weights[0], np.einsum("c,cij->ij", shares, local[0]), atol=1e-5)
    before = federation.weights
    federation.aggregate(local, np.zeros(5, bool))
    assert federation.weights is before


def test_the_seed_decides_the_federation():
    first, again, other = (SyntheticFederation(seed, clients=5) for seed in (1, 1, 2))
    assert np.array_equal(first.images, again.images)
    assert first.images.shape != other.images.shape or not np.array_equal(first.images, other.images)
    assert first.resources(0)[0].at(3) == again.resources(0)[0].at(3) != first.resources(1)[0].at(3)


def test_dirichlet_clients_differ_in_their_classes():
    def spread(dirichlet: float | None) -> float:
        federation = SyntheticFederation(3, clients=10, dirichlet=dirichlet)
        shares = [
            np.bincount(labels[:count], minlength=CLASSES) / count
            for labels, count in zip(federation.labels, federation.rows, strict=True)
        ]
        return float(np.std(shares, axis=0).mean())

    assert spread(0.2) > 4 * spread(None)


def test_the_tasks_can_be_learned_but_not_perfectly():
    federation = SyntheticFederation(6, clients=5)
    loss, accuracy = federation.test()
    assert loss == pytest.approx(np.log(CLASSES))
    for step in range(5):
        local = federation.train(np.full(5, 0.05, np.float32), np.full(5, 3), stream(step, "sgd"))
        federation.aggregate(local, np.ones(5, bool))
    assert federation.test()[0] < 0.7 * loss
    assert accuracy + 0.3 < federation.test()[1] < 1


def test_images_are_bright_on_dark_with_the_input_of_the_bias():
    images, labels = image_like(300, stream(0, "images"))
    assert (images[:, -1] == 1).all()
    assert images.min() == 0
    assert 0.05 < np.mean(images[:, :-1] == 0) < 0.95
    assert 55 < np.mean(np.sum(images[:, :-1] ** 2, axis=1)) < 265
    assert set(labels) == set(range(CLASSES))
