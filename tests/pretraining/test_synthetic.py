from dataclasses import replace

import numpy as np
import pytest
import torch

from dapfl.learning.metrics import macro_f1
from dapfl.pretraining.synthetic import Kind, SyntheticFederation, image_like, table_like
from dapfl.randomness import stream
from tests.pretraining.test_perceptron import forward

PLAIN = Kind(
    images=True, classes=10, hidden=(), activation="relu", normalised=False, scale=1.0, samples=200.0,
    dirichlet=None,
)  # fmt: skip
DEEP = replace(
    PLAIN, images=False, classes=4, hidden=(12, 11), activation="tanh", normalised=True, dirichlet=0.3
)


@pytest.fixture(scope="module", params=[PLAIN, DEEP], ids=["iid-softmax", "dirichlet-deep"])
def federation(request) -> SyntheticFederation:
    return SyntheticFederation(5, request.param, clients=5)


def test_training_is_stochastic_gradient_descent_of_each_client(federation):
    federation.reset()
    eta, alpha = np.array([0.1, 0.03, 0.01, 0.1, 0.05], np.float32), np.array([2, 1, 3, 0, 1])
    ours = federation.train(eta, alpha, stream(1, "sgd"))
    # The same epochs, drawn in the same order, run one by one with torch.
    rng = stream(1, "sgd")
    inputs = torch.tensor(federation.inputs.reshape(-1, federation.inputs.shape[2]))
    labels = torch.tensor(federation.labels.reshape(-1))
    for client, (epochs, shares) in enumerate(federation._epochs):
        weights = [torch.tensor(part, requires_grad=True) for part in federation.weights]
        for epoch in epochs[rng.integers(0, len(epochs), alpha[client])]:
            for rows, share in zip(epoch, shares, strict=True):
                real = rows[share > 0]
                logits = forward(federation.network, weights, inputs[real])
                loss = torch.nn.functional.cross_entropy(logits, labels[real])
                for part, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                    part.data -= float(eta[client]) * gradient
        for part, expected in zip(ours, weights, strict=True):
            np.testing.assert_allclose(part[client], expected.detach().numpy(), atol=2e-4)


def test_every_row_of_a_client_is_seen_once_an_epoch(federation):
    for client, (epochs, shares) in enumerate(federation._epochs):
        for epoch in epochs:
            rows = epoch[shares > 0] - client * federation.inputs.shape[1]
            assert sorted(rows.tolist()) == list(range(federation.rows[client]))
        np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)


def test_scores_are_those_of_the_learning_room(federation):
    federation.reset()
    trained = federation.train(np.full(5, 0.05, np.float32), np.full(5, 1), stream(2, "sgd"))
    federation.aggregate(trained, np.ones(5, bool), np.ones(5, int))
    scores, classes = federation.evaluate(), federation.kind.classes
    weights = [torch.tensor(part) for part in federation.weights]
    for client in range(5):
        count = federation.rows[client]
        labels = torch.tensor(federation.labels[client, :count])
        logits = forward(federation.network, weights, torch.tensor(federation.inputs[client, :count]))
        confusion = np.zeros((classes, classes), np.int64)
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


@pytest.mark.parametrize("alpha", [[1, 1, 1, 1, 1], [1, 2, 3, 9, 1]])
def test_the_aggregate_is_the_normalised_mean_of_those_who_took_part(federation, alpha):
    federation.reset()
    start = [part.copy() for part in federation.weights]
    local = federation.train(np.full(5, 0.05, np.float32), np.array(alpha), stream(4, "sgd"))
    part, steps = np.array([True, False, True, False, True]), federation.steps(np.array(alpha))
    federation.aggregate(local, part, steps)
    assert federation.alignment is None
    shares = federation.rows * part / np.sum(federation.rows * part)
    factors = np.clip(np.sum(shares * steps) / steps, 0.25, 4)
    for before, mean, each in zip(start, federation.weights, local, strict=True):
        change = np.einsum("c,cij->ij", shares * factors, each - before)
        np.testing.assert_allclose(mean, before + change, atol=1e-5)
    before = federation.weights
    federation.aggregate(local, np.zeros(5, bool), steps)
    assert federation.weights is before
    back = [2 * now - then for now, then in zip(federation.weights, start, strict=True)]
    federation.aggregate([np.repeat(each[None], 5, axis=0) for each in back], part, np.ones(5, int))
    assert federation.alignment == pytest.approx(1.0, abs=1e-5)


def test_the_seed_decides_the_federation():
    first, again, other = (SyntheticFederation(seed, PLAIN, clients=5) for seed in (1, 1, 2))
    assert np.array_equal(first.inputs, again.inputs)
    assert first.inputs.shape != other.inputs.shape or not np.array_equal(first.inputs, other.inputs)
    assert first.resources(0)[0].at(3) == again.resources(0)[0].at(3) != first.resources(1)[0].at(3)


def test_dirichlet_clients_differ_in_their_classes():
    def spread(dirichlet: float | None) -> float:
        federation = SyntheticFederation(3, replace(PLAIN, dirichlet=dirichlet), clients=10)
        shares = [
            np.bincount(labels[:count], minlength=10) / count
            for labels, count in zip(federation.labels, federation.rows, strict=True)
        ]
        return float(np.std(shares, axis=0).mean())

    assert spread(0.2) > 4 * spread(None)


@pytest.mark.parametrize("kind", [PLAIN, replace(DEEP, dirichlet=None)], ids=["images", "tables"])
def test_the_tasks_can_be_learned_but_not_perfectly(kind):
    federation = SyntheticFederation(6, kind, clients=5)
    loss, accuracy = federation.test()
    assert loss == pytest.approx(np.log(kind.classes), rel=0.35)
    for step in range(8):
        local = federation.train(np.full(5, 0.1, np.float32), np.full(5, 4), stream(step, "sgd"))
        federation.aggregate(local, np.ones(5, bool), np.ones(5, int))
    assert federation.test()[0] < 0.8 * loss
    assert accuracy + 0.15 < federation.test()[1] < 1


@pytest.mark.parametrize("make", [image_like, table_like])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_inputs_are_of_one_scale_with_all_classes(make, classes):
    inputs, labels = make(3000, classes, stream(classes, "inputs"))
    assert inputs.dtype == np.float32 and np.isfinite(inputs).all()
    assert np.sqrt(np.mean(inputs**2)) == pytest.approx(1, rel=0.1)
    assert labels.min() >= 0 and labels.max() < classes
    assert len(set(labels.tolist())) > 0.7 * classes


def test_images_are_bright_on_dark():
    images, _ = image_like(300, 10, stream(0, "images"))
    assert images.min() == 0
    assert 0.05 < np.mean(images == 0) < 0.95


def test_the_scale_of_a_kind_is_that_of_its_inputs():
    one, four = (SyntheticFederation(1, replace(PLAIN, scale=scale), clients=3) for scale in (1.0, 4.0))
    np.testing.assert_array_equal(4 * one.inputs, four.inputs)


def test_drawn_kinds_cover_what_users_bring():
    kinds = [Kind.drawn(stream(7, "kind", number), number) for number in range(400)]
    assert {len(kind.hidden) for kind in kinds} == {0, 1, 2, 3, 4}  # 1 to 5 layers
    assert {kind.activation for kind in kinds} == {"relu", "tanh", "sigmoid"}
    for choice in ("images", "normalised"):
        assert 0.2 < np.mean([getattr(kind, choice) for kind in kinds]) < 0.8
    classes = [kind.classes for kind in kinds]
    assert min(classes) == 2 and max(classes) > 90 and np.median(classes) < 13
    scales = [kind.scale for kind in kinds]
    assert max(scales) / min(scales) > 10  # what lies outside is scaled before training (learning/inputs.py)
    samples = [kind.samples for kind in kinds]
    assert min(samples) < 75 and max(samples) > 1500
    skewed = [kind.dirichlet for kind in kinds if kind.dirichlet is not None]
    assert len(skewed) == 200 and min(skewed) >= 0.2 and max(skewed) <= 1.0
    assert kinds == [Kind.drawn(stream(7, "kind", number), number) for number in range(400)]
