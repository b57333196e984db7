"""The models of the built-in tasks: those of the paper's experiments (Section VI) and four smaller ones.

The paper's take a batch of images as the data sets hold them, (batch, 28, 28) scaled to [0, 1]. Every
model gives a logit for each class.
"""

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, linear, max_pool2d, relu

from dapfl.hyperparameters import Hyperparameters

# The kernels of native/, where they were built and this CPU can run them.
native: ModuleType | None
try:
    kernels = import_module("dapfl.learning._native")
    native = kernels if kernels.lanes() else None
except ImportError:
    native = None


class _Native(nn.Module):
    """A mixin: the model that follows it among the bases trains and scores by the kernels of native/."""

    kernel: str
    lanes: int = native.lanes()[0] if native else 0  # of the vectors, as many as this CPU has

    def __init__(self) -> None:
        super().__init__()  # without arguments: the kernels know no other size
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._weights = tuple(self.parameters())

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch; by torch where it is asked for gradients, or elsewhere than on the CPU."""
        if torch.is_grad_enabled() or images.device.type != "cpu":
            logits: Tensor = super().forward(images)
            return logits
        logits = torch.empty(len(images), 10)
        score = getattr(native, f"{self.kernel}_scores")
        score(self.lanes, self._arrays(), images.contiguous().numpy(), logits.numpy())
        return logits

    def cross_entropy_epoch(
        self,
        images: Tensor,
        labels: Tensor,
        order: Tensor,
        lengths: list[int],
        hyperparameters: Hyperparameters,
    ) -> None:
        """A step of SGD on each batch, in place."""
        samples = images.contiguous().numpy(), labels.numpy(), order.numpy()
        epoch = getattr(native, f"{self.kernel}_epoch")
        epoch(self.lanes, self._arrays(), *samples, lengths, hyperparameters.eta)

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
        self,
        images: Tensor,
        labels: Tensor,
        order: Tensor,
        lengths: list[int],
        hyperparameters: Hyperparameters,
    ) -> None:
        """SGD in closed form: the gradient is (softmax - one-hot)ᵀ·x, averaged over a batch."""
        weight, bias = self.linear.weight.detach(), self.linear.bias.detach()
        for batch in torch.split(order, lengths):
            x, truth = images[batch].flatten(1), self._unit[:, labels[batch]]
            # One row per class, one column per sample: matrices this narrow are faster so.
            error = torch.addmm(bias.unsqueeze(1), weight, x.t()).softmax(0).sub_(truth)
            weight.addmm_(error, x, alpha=-hyperparameters.eta / len(x))
            bias.add_(error.sum(1), alpha=-hyperparameters.eta / len(x))


class NativeLogistic(_Native, Logistic):
    """The same model, 784 → 10, trained and scored by native/logistic.h in a fraction of torch's time."""

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
    """The same model, trained and scored by native/cnn.h in a fraction of torch's time."""

    kernel = "cnn"


def cnn() -> CNN:
    """The CNN, computed in the fastest way that this machine has; the two ways differ in rounding alone."""
    return NativeCNN() if native else CNN()


class Convolution(nn.Conv2d):
    """A square convolution without bias that skips the padding where its output is one pixel.

    The image shrinks to 1x1 in the last stage of ResNet-18, where only the
    centre of a padded 3x3 kernel meets it: the other taps multiply zeros, and their gradients are zero.
    A matrix of the taps that do meet the image gives the same numbers in less than half the time.
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

    As usual, the three 1x1 convolutions on shortcuts are not counted among the 17.
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


class ColourCNN(nn.Module):
    """Three convolutions on images of 32 by 32 in colour, each normalised by groups: 49,322 weights.

    Group normalisation has no running statistics, which clients with different data would average into
    those of nobody. Pooling comes before it: the same shape for a quarter of the work.
    """

    def __init__(self, classes: int = 10, widths: Sequence[int] = (24, 48, 64)) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1)
            for before, after in zip((3, *widths), widths, strict=False)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for width in widths)
        self.fc = nn.Linear(widths[-1] * 4 * 4, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images, (batch, 3, 32, 32)."""
        hidden = (images - 0.5) * 4  # about zero mean and unit variance
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            hidden = relu(norm(max_pool2d(convolution(hidden), 2)))
        logits: Tensor = self.fc(hidden.flatten(1))
        return logits


class SignalCNN(nn.Module):
    """Two convolutions over time and the largest response of each filter: 12,454 weights."""

    def __init__(self, signals: int = 6, classes: int = 6) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(signals, 32, 9, stride=2)
        self.conv2 = nn.Conv1d(32, 64, 5, stride=2)
        self.fc = nn.Linear(64, classes)

    def forward(self, windows: Tensor) -> Tensor:
        """Logits of a batch of windows, (batch, signals, time)."""
        hidden = relu(self.conv2(relu(self.conv1(windows))))
        logits: Tensor = self.fc(hidden.amax(2))
        return logits


class CharacterLSTM(nn.Module):
    """The next character at every place of a passage: embedding, LSTM of 128, one layer on top.

    On a CPU, torch runs an LSTM in half the time of a GRU of the same width.
    """

    def __init__(self, characters: int, embedding: int = 16, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.lstm = nn.LSTM(embedding, width, batch_first=True)
        self.fc = nn.Linear(width, characters)

    def forward(self, passages: Tensor) -> Tensor:
        """Logits (batch, characters, place) of a batch of passages (batch, place)."""
        hidden, _ = self.lstm(self.embedding(passages))
        logits: Tensor = self.fc(hidden).transpose(1, 2)
        return logits


class TwoLayers(nn.Sequential):
    """A hidden layer of 32 over a row of numbers."""

    def __init__(self, inputs: int, classes: int, width: int = 32) -> None:
        super().__init__(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, classes))
