"""The models of the paper's experiments (Section VI): logistic regression, CNN, ResNet-18.

Every model takes a batch of images as the data sets hold them, (batch, 28, 28) scaled to [0, 1],
and gives one logit a class.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, linear, max_pool2d, relu

# The kernels of native/, where they were built and this CPU can run them.
native: ModuleType | None
try:
    from dapfl.learning import _native  # type: ignore[attr-defined]

    native = _native if _native.usable() else None
except ImportError:
    native = None


class _Native(nn.Module):
    """Lets the model that stands after it among the bases train and score by the kernels of native/."""

    kernel: str

    def __init__(self) -> None:
        super().__init__()  # the kernels know no other size
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._weights = tuple(self.parameters())

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch; by torch where it is asked for gradients."""
        if torch.is_grad_enabled():
            logits: Tensor = super().forward(images)
            return logits
        logits = torch.empty(len(images), 10)
        getattr(native, f"{self.kernel}_scores")(self._arrays(), images.contiguous().numpy(), logits.numpy())
        return logits

    def cross_entropy_epoch(
        self, images: Tensor, labels: Tensor, order: Tensor, lengths: list[int], eta: float
    ) -> None:
        """A step of SGD on each batch, in place."""
        samples = images.contiguous().numpy(), labels.numpy(), order.numpy()
        getattr(native, f"{self.kernel}_epoch")(self._arrays(), *samples, lengths, eta)

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        """The weights as they lie in memory: a convolution's channels are its last axis there."""
        weights = (weight.detach() for weight in self._weights)
        return tuple((w.permute(0, 2, 3, 1) if w.ndim == 4 else w).numpy() for w in weights)


class Logistic(nn.Module):
    """Multi-class logistic regression, 784 → 10: 7,850 weights."""

    def __init__(self, inputs: int = 784, classes: int = 10) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes)
        self._unit = torch.eye(classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch."""
        logits: Tensor = self.linear(images.flatten(1))
        return logits

    def cross_entropy_epoch(
        self, images: Tensor, labels: Tensor, order: Tensor, lengths: list[int], eta: float
    ) -> None:
        """SGD in closed form: the gradient is (softmax - one-hot)ᵀ·x, averaged over a batch."""
        weight, bias = self.linear.weight.detach(), self.linear.bias.detach()
        for batch in torch.split(order, lengths):
            x, truth = images[batch].flatten(1), self._unit[:, labels[batch]]
            # Classes by row, samples by column: the faster way round for matrices this narrow.
            error = torch.addmm(bias.unsqueeze(1), weight, x.t()).softmax(0).sub_(truth)
            weight.addmm_(error, x, alpha=-eta / len(x))
            bias.add_(error.sum(1), alpha=-eta / len(x))


class NativeLogistic(_Native, Logistic):
    """The same model, 784 → 10, trained and scored by native/logistic.c in a fraction of torch's time."""

    kernel = "logistic"


def logistic() -> Logistic:
    """Logistic regression on images of 28 by 28, computed in the fastest way that this machine has."""
    return NativeLogistic() if native else Logistic()


class CNN(nn.Module):
    """Two convolutions, two poolings, two fully connected layers: 21,840 weights."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch."""
        hidden = relu(max_pool2d(self.conv1(images.unsqueeze(1)), 2))
        hidden = relu(max_pool2d(self.conv2(hidden), 2))
        logits: Tensor = self.fc2(relu(self.fc1(hidden.flatten(1))))
        return logits


class NativeCNN(_Native, CNN):
    """The same model, trained and scored by native/cnn.c in about a third of torch's time."""

    kernel = "cnn"


def cnn() -> CNN:
    """The CNN, computed in the fastest way that this machine has; the two ways differ in rounding alone."""
    return NativeCNN() if native else CNN()


class Convolution(nn.Conv2d):
    """A square convolution without bias that multiplies by no padding where its output is one pixel.

    The image shrinks to 1x1 in the last stage of ResNet-18, where a padded 3x3 kernel meets it with
    its centre alone: the other taps multiply zeros, and their gradients are zero. The taps that do
    meet the image, taken as a matrix, give the same numbers in less than half the time of a step.
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, size, stride, padding=size // 2, bias=False)
        self._size, self._stride, self._margin = size, stride, size // 2

    def forward(self, features: Tensor) -> Tensor:
        """The convolution of a batch."""
        side, margin = max(features.shape[2:]), self._margin
        if side + 2 * margin - self._size >= self._stride:
            return super().forward(features)
        met = self._size - margin  # taps from the image's first pixel on; the image may have fewer
        image = features[:, :, :met, :met]
        taps = self.weight[:, :, margin : margin + image.shape[2], margin : margin + image.shape[3]]
        return linear(image.flatten(1), taps.flatten(1))[:, :, None, None]


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut around them; 1x1 where the shortcut must change shape."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Convolution(inputs, outputs, 3, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = Convolution(outputs, outputs, 3)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(Convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, features: Tensor) -> Tensor:
        """The block's input plus what its convolutions add."""
        residual = relu(self.norm1(self.conv1(features)))
        return relu(self.norm2(self.conv2(residual)) + self.shortcut(features))


class ResNet18(nn.Module):
    """ResNet-18 for one input channel: 17 convolutions (a 7x7 stem, 16 of 3x3) and one fully connected layer.

    As usual, the three 1x1 convolutions on shortcuts are there and are not counted among the 17.
    """

    def __init__(self, classes: int = 10, widths: Sequence[int] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.conv = Convolution(1, widths[0], 7, stride=2)
        self.norm = nn.BatchNorm2d(widths[0])
        inputs = [widths[0], *widths[:-1]]
        self.stages = nn.ModuleList(
            nn.Sequential(ResidualBlock(before, after, 2 if stage else 1), ResidualBlock(after, after, 1))
            for stage, (before, after) in enumerate(zip(inputs, widths, strict=True))
        )
        self.fc = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch."""
        hidden = max_pool2d(relu(self.norm(self.conv(images.unsqueeze(1)))), 3, stride=2, padding=1)
        for stage in self.stages:
            hidden = stage(hidden)
        logits: Tensor = self.fc(torch.flatten(adaptive_avg_pool2d(hidden, 1), 1))
        return logits
