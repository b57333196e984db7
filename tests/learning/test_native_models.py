"""The kernels of native/ against torch, and what they refuse."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dapfl.hyperparameters import Hyperparameters
from dapfl.learning import models
from dapfl.learning.models import CNN, Logistic, NativeCNN, NativeLogistic

pytestmark = pytest.mark.skipif(models.native is None, reason="dapfl was built without a C compiler")
ALL_LANES = models.native.lanes() if models.native else [0]


@pytest.fixture(autouse=True, params=ALL_LANES)
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is of all kernels that this CPU can run."""
    monkeypatch.setattr(models._Native, "lanes", request.param)


def batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(samples, 28, 28), torch.randint(0, 10, (samples,))


def step(model: Any, images: torch.Tensor, labels: torch.Tensor, eta: float) -> None:
    model.cross_entropy_epoch(
        images, labels, torch.arange(len(labels)), [len(labels)], Hyperparameters(eta, 1, 32)
    )


@pytest.mark.parametrize("samples", [1, 2, 7, 8, 9, 15, 16, 17, 32, 33])
@pytest.mark.parametrize("kinds", [(NativeCNN, CNN), (NativeLogistic, Logistic)])
def test_a_step_is_that_of_autograd(kinds: tuple[Any, Any], samples: int) -> None:
    torch.manual_seed(samples)
    model, twin = (kind() for kind in kinds)
    twin.load_state_dict(model.state_dict())
    images, labels = batch(samples)
    step(model, images, labels, eta=0.3)
    cross_entropy(twin(images), labels).backward()
    for ours, reference in zip(model.parameters(), twin.parameters(), strict=True):
        assert reference.grad is not None
        torch.testing.assert_close(ours, reference - 0.3 * reference.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("samples", [1, 2, 8, 13, 16, 21, 256])
@pytest.mark.parametrize(("kind", "reference"), [(NativeCNN, CNN), (NativeLogistic, Logistic)])
def test_scores_are_those_of_torch(kind: Any, reference: Any, samples: int) -> None:
    torch.manual_seed(samples)
    model = kind()
    images, _ = batch(samples)
    with torch.inference_mode():
        scores = model(images)
    torch.testing.assert_close(scores, reference.forward(model, images))


@pytest.mark.parametrize("kind", [NativeCNN, NativeLogistic])
def test_an_epoch_is_a_step_on_each_batch_in_the_order_given(kind: Any) -> None:
    torch.manual_seed(0)
    model, twin = kind(), kind()
    twin.load_state_dict(model.state_dict())
    images, labels = batch(20)
    order = torch.randperm(20)
    model.cross_entropy_epoch(images, labels, order, [8, 3, 9], Hyperparameters(0.3, 1, 32))
    for rows in torch.split(order, [8, 3, 9]):
        step(twin, images[rows], labels[rows], eta=0.3)
    for ours, reference in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, reference)


@pytest.mark.parametrize("kind", [NativeCNN, NativeLogistic])
def test_a_step_leaves_nothing_behind_for_the_next(kind: Any) -> None:
    torch.manual_seed(0)
    start = kind().state_dict()
    images, labels = batch(20)

    def after_a_step() -> Any:
        model = kind()
        model.load_state_dict(start)
        step(model, images, labels, eta=0.1)
        return model

    first = after_a_step()
    step(kind(), *batch(33), eta=1.0)
    for ours, again in zip(first.parameters(), after_a_step().parameters(), strict=True):
        assert torch.equal(ours, again)


@pytest.mark.parametrize("kind", [NativeCNN, NativeLogistic])
def test_it_learns(kind: Any) -> None:
    torch.manual_seed(0)
    model = kind()
    images, labels = batch(16)
    losses = []
    for _ in range(4):
        losses.append(cross_entropy(model(images), labels).item())
        for _ in range(25):
            step(model, images, labels, eta=0.1)
    assert all(after < before for before, after in pairwise(losses))


def good_arguments(kind: Any) -> dict[str, Any]:
    images, labels = batch(3)
    return {
        "lanes": kind.lanes,
        "weights": kind()._arrays(),
        "images": images.numpy(),
        "labels": labels.numpy(),
        "order": np.array([2, 0, 1]),
        "lengths": [2, 1],
        "eta": 0.1,
    }


@pytest.mark.parametrize("kind", [NativeCNN, NativeLogistic])
@pytest.mark.parametrize(
    "wrong",
    [
        {"lanes": 0},
        {"lanes": 7},
        {"lanes": -16},
        {"lanes": "eight"},
        {"weights": ()},
        {"weights": [1, 2]},
        {"weights": tuple(np.zeros(11, np.float32) for _ in range(8))},
        {"weights": tuple(np.zeros(11, np.float32) for _ in range(2))},
        {"images": np.zeros((3, 28, 27), np.float32)},
        {"images": np.zeros((3, 28, 28))},
        {"images": np.zeros((0, 28, 28), np.float32)},
        {"images": np.zeros((3, 28, 56), np.float32)[:, :, ::2]},
        {"labels": np.zeros(2, np.int64)},
        {"labels": np.zeros(3, np.int32)},
        {"labels": "three"},
        {"order": np.array([2, 0, 3])},
        {"order": np.array([2, -1, 1])},
        {"order": np.array([2, 0, 1], np.int32)},
        {"order": np.array([2, 0])},
        {"order": np.array([2, 0, 1, 1])},
        {"order": "all"},
        {"lengths": [2, 2]},
        {"lengths": [3, 0]},
        {"lengths": [4, -1]},
        {"lengths": [2]},
        {"lengths": ["three"]},
        {"lengths": (2, 1)},
        {"lengths": [2**63]},
    ],
)
def test_wrong_arguments_are_refused_before_anything_moves(kind: Any, wrong: dict[str, Any]) -> None:
    assert models.native is not None
    name = "cnn" if kind is NativeCNN else "logistic"
    good = good_arguments(kind)
    before = [part.copy() for part in good["weights"]]
    with pytest.raises((TypeError, ValueError, BufferError, OverflowError)):
        getattr(models.native, f"{name}_epoch")(*(good | wrong).values())
    assert all(np.array_equal(part, old) for part, old in zip(good["weights"], before, strict=True))


@pytest.mark.parametrize("kind", [NativeCNN, NativeLogistic])
@pytest.mark.parametrize("out", [np.empty((2, 10), np.float32), np.empty((3, 10), np.float16), b"nothing"])
def test_a_wrong_place_for_scores_is_refused(kind: Any, out: Any) -> None:
    assert models.native is not None
    name = "cnn" if kind is NativeCNN else "logistic"
    good = good_arguments(kind)
    with pytest.raises((TypeError, ValueError, BufferError)):
        getattr(models.native, f"{name}_scores")(good["lanes"], good["weights"], good["images"], out)


@pytest.mark.parametrize("kind", [NativeCNN, NativeLogistic])
def test_a_last_part_of_another_type_is_refused(kind: Any) -> None:
    assert models.native is not None
    name = "cnn" if kind is NativeCNN else "logistic"
    good = good_arguments(kind)
    weights = (*good["weights"][:-1], np.zeros(10))
    with pytest.raises(ValueError, match="float32 wanted"):
        getattr(models.native, f"{name}_epoch")(*(good | {"weights": weights}).values())


def test_read_only_weights_are_refused() -> None:
    assert models.native is not None
    arguments = good_arguments(NativeCNN)
    arguments["weights"][0].flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        models.native.cnn_epoch(*arguments.values())


def test_the_kernels_with_the_widest_vectors_come_first() -> None:
    assert sorted(ALL_LANES, reverse=True) == ALL_LANES


def test_these_are_all_functions() -> None:
    found = {name for name, value in vars(models.native).items() if callable(value) and name[:2] != "__"}
    assert found == {"cnn_epoch", "cnn_scores", "logistic_epoch", "logistic_scores", "lanes"}


@pytest.mark.parametrize("kind", [NativeCNN, NativeLogistic])
def test_senseless_labels_weights_and_pixels_stay_within_their_arrays(kind: Any) -> None:
    """Of use under the sanitizers (scripts/check-native)."""
    assert models.native is not None
    name = "cnn" if kind is NativeCNN else "logistic"
    epoch, scores = (getattr(models.native, f"{name}_{what}") for what in ("epoch", "scores"))
    good = good_arguments(kind)
    for count in range(1, 36):
        images = np.full((count, 28, 28), (np.nan, np.inf, -np.inf, 3e38, 1e-45, 0.5)[count % 6], np.float32)
        labels = np.full(count, (-(2**63), -1, 10, 2**63 - 1, 3)[count % 5], np.int64)
        order, lengths = np.arange(count), [count] if count % 2 else [1] * count
        weights = tuple(part.copy() for part in good["weights"])
        if count % 4 == 3:
            weights[0].fill(np.nan)
        epoch(kind.lanes, weights, images, labels, order, lengths, (0.1, np.nan, np.inf, -1e300)[count % 4])
        frame = np.full((count + 2, 10), 7.0, np.float32)
        scores(kind.lanes, weights, images, frame[1:-1])
        assert (frame[0] == 7).all() and (frame[-1] == 7).all()
