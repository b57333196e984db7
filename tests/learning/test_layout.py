import numpy as np
import pytest
import torch
from torch import nn

from dapfl.errors import TaskError
from dapfl.learning.layout import Layout
from dapfl.learning.models import CNN, ResNet18


def small_resnet() -> nn.Module:
    return ResNet18(widths=(4, 4, 8, 8))


@pytest.mark.parametrize("build", [CNN, small_resnet])
def test_a_vector_survives_the_way_through_a_module(build: type[nn.Module]) -> None:
    layout = Layout.of(build())
    vector = np.random.default_rng(0).random(layout.size).astype(np.float32)
    module = build()
    layout.assign(module, vector)
    assert np.array_equal(layout.flatten(module), vector)


def test_the_flat_order_does_not_depend_on_the_memory_format() -> None:
    plain = CNN()
    layout = Layout.of(plain)
    vector = layout.flatten(plain)
    channels_last = CNN().to(memory_format=torch.channels_last)
    layout.assign(channels_last, vector)
    assert np.array_equal(layout.flatten(channels_last), vector)
    assert torch.equal(channels_last.conv2.weight, plain.conv2.weight)


def test_tensors_lie_one_after_the_other_weights_first() -> None:
    layout = Layout.of(small_resnet())
    kinds = [tensor.kind for tensor in layout.tensors]
    assert kinds == sorted(kinds, reverse=True)
    assert layout.tensors[0].start == 0
    assert all(a.stop == b.start for a, b in zip(layout.tensors, layout.tensors[1:], strict=False))
    assert all(tensor.stop - tensor.start == np.prod(tensor.shape) for tensor in layout.tensors)


def test_running_statistics_travel_and_counters_do_not() -> None:
    buffers = [tensor.name for tensor in Layout.of(nn.BatchNorm1d(3)).tensors if tensor.kind == "buffer"]
    assert buffers == ["running_mean", "running_var"]


def test_a_variance_just_below_zero_is_taken_as_zero() -> None:
    module = nn.BatchNorm1d(2)
    layout = Layout.of(module)
    vector = layout.flatten(module)
    vector[-2:] = [-1e-4, 0.5]
    layout.assign(module, vector)
    assert layout.flatten(module)[-2:].tolist() == [0.0, 0.5]


def test_a_read_only_vector_can_be_assigned() -> None:
    module = nn.Linear(2, 1)
    vector = np.arange(3, dtype=np.float32)
    vector.flags.writeable = False
    Layout.of(module).assign(module, vector)
    assert Layout.of(module).flatten(module).tolist() == [0, 1, 2]


def test_a_vector_of_another_model_is_refused() -> None:
    module = nn.Linear(2, 1)
    with pytest.raises(TaskError, match="3 weights"):
        Layout.of(module).assign(module, np.zeros(4, np.float32))
