"""The model, the data, training and testing: nothing here knows of Flower or Dap-FL."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small convolutional network on 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 4 * 4, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """A logit for each digit."""
        return self.layers(images)


def load_data(partition: int, partitions: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """The training and the validation batches of one partition of scikit-learn's digits."""
    digits = load_digits()
    images = torch.tensor(digits.images[:1500], dtype=torch.float32)[partition::partitions, None] / 16
    labels = torch.tensor(digits.target[:1500])[partition::partitions]
    cut = len(labels) * 4 // 5
    train = TensorDataset(images[:cut], labels[:cut])
    valid = TensorDataset(images[cut:], labels[cut:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(valid, batch_size)


def load_test_data(batch_size: int) -> DataLoader:
    """The digits that no partition has."""
    digits = load_digits()
    images = torch.tensor(digits.images[1500:], dtype=torch.float32)[:, None] / 16
    return DataLoader(TensorDataset(images, torch.tensor(digits.target[1500:])), batch_size)


def train(net: nn.Module, batches: DataLoader, epochs: int, lr: float) -> float:
    """Trains the network; returns the mean loss of the last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    net.train()
    total = 0.0
    for _ in range(epochs):
        total = 0.0
        for images, labels in batches:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / len(batches)


def test(net: nn.Module, batches: DataLoader) -> tuple[float, float]:
    """The mean loss and the accuracy of the network."""
    criterion = nn.CrossEntropyLoss(reduction="sum")
    net.eval()
    loss, hits, count = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in batches:
            outputs = net(images)
            loss += criterion(outputs, labels).item()
            hits += int((outputs.argmax(1) == labels).sum())
            count += len(labels)
    return loss / count, hits / count
