import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.layout import Layout
from dapfl.learning.models import (
    CNN,
    CharacterLSTM,
    ColourCNN,
    Convolution,
    Logistic,
    ResNet18,
    SignalCNN,
    TwoLayers,
)


@pytest.mark.parametrize(("build", "size"), [(Logistic, 7_850), (CNN, 21_840)])
def test_models_have_the_sizes_of_the_paper(build: type[nn.Module], size: int) -> None:
    assert Layout.of(build()).size == size


def test_resnet18_has_17_convolutions_and_one_fully_connected_layer() -> None:
    model = ResNet18()
    main_path = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and "shortcut" not in name
    ]
    assert len(main_path) == 17
    assert [module.kernel_size for module in main_path] == [(7, 7)] + [(3, 3)] * 16
    assert sum(isinstance(module, nn.Linear) for module in model.modules()) == 1
    layout = Layout.of(model)
    weights = sum(tensor.stop - tensor.start for tensor in layout.tensors if tensor.kind == "weight")
    assert weights == 11_175_370  # torchvision's resnet18 for one input channel and ten classes
    assert layout.size - weights == 2 * 4_800  # a mean and a variance for every normalised channel


@pytest.mark.parametrize("build", [Logistic, CNN, lambda: ResNet18(widths=(4, 4, 8, 8))])
def test_models_give_a_logit_a_class(build: type[nn.Module]) -> None:
    assert build()(torch.rand(3, 28, 28)).shape == (3, 10)


def test_the_closed_form_step_of_logistic_regression_is_that_of_autograd() -> None:
    torch.manual_seed(0)
    images, labels = torch.rand(33, 28, 28), torch.randint(0, 10, (33,))
    model, twin = Logistic(), Logistic()
    twin.load_state_dict(model.state_dict())
    model.cross_entropy_epoch(images, labels, torch.arange(33), [33], Hyperparameters(0.3, 1, 33))
    cross_entropy(twin(images), labels).backward()
    for ours, reference in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, reference - 0.3 * reference.grad)


@pytest.mark.parametrize("side", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_convolution_is_the_usual_one_down_to_a_single_pixel(size: int, stride: int, side: int) -> None:
    torch.manual_seed(0)
    ours = Convolution(5, 6, size, stride)
    usual = nn.Conv2d(5, 6, size, stride, padding=size // 2, bias=False)
    usual.load_state_dict(ours.state_dict())
    images = torch.rand(4, 5, side, side)
    results = [model(images) for model in (ours, usual)]
    torch.testing.assert_close(*results)
    slopes = torch.rand_like(results[0])
    gradients = [
        torch.autograd.grad(result, model.weight, slopes)[0]
        for result, model in zip(results, (ours, usual), strict=True)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "size"),
    [
        (ColourCNN(), torch.rand(3, 3, 32, 32), (3, 10), 49_322),
        (SignalCNN(), torch.rand(3, 6, 128), (3, 6), 12_454),
        (CharacterLSTM(63), torch.zeros(3, 80, dtype=torch.int32), (3, 63, 80), 83_887),
        (TwoLayers(91, 2), torch.rand(3, 91), (3, 2), 3_010),
    ],
)
def test_the_smaller_models_take_what_their_data_hold(
    model: nn.Module, inputs: torch.Tensor, outputs: tuple[int, ...], size: int
) -> None:
    assert model(inputs).shape == outputs
    assert Layout.of(model).size == size
    assert all(tensor.kind == "weight" for tensor in Layout.of(model).tensors)  # no running statistics
