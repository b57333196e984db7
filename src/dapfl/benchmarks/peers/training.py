"""How a peer's clients train and score: PyTorch as its tutorials show it, or our own local training."""

from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor, nn

from dapfl.arrays import Vector
from dapfl.benchmarks.peers.workload import Workload
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.layout import Layout
from dapfl.learning.sgd import Evaluator, Learner, initial_weights
from dapfl.learning.tasks import get_task
from dapfl.randomness import stream


class PeerClients:
    """All clients of a workload, in one process of a peer."""

    def __init__(self, workload: Workload) -> None:
        torch.set_num_threads(1)
        self.workload = workload
        self.task = get_task(workload.task)
        self.indices = workload.indices()
        self.data = self.task.load_data()
        self.module: nn.Module = self.task.build_model()
        self.layout = Layout.of(self.module)

    def initial(self) -> Vector:
        """W(0)."""
        return initial_weights(self.task, self.workload.seed)

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's training samples as tensors in memory."""
        chosen = self.indices[client]
        images = torch.from_numpy(self.data.train_images[chosen]).float().div_(255)
        return images, torch.from_numpy(self.data.train_labels[chosen].astype(np.int64))

    @cached_property
    def test_samples(self) -> tuple[Tensor, Tensor]:
        """The test set as tensors in memory."""
        images = torch.from_numpy(np.array(self.data.test_images)).float().div_(255)
        return images, torch.from_numpy(self.data.test_labels.astype(np.int64))

    def train(self, weights: Vector, client: int, round_: int) -> tuple[Vector, int, float]:
        """The trained weights, the number of samples, and the loss that the client found before."""
        work = self.workload
        if work.trainer == "dapfl":
            learner = Learner(self.task, self.indices[client])
            before = learner.evaluate(weights).loss
            rng = stream(work.seed, "sgd", client, round_)
            trained = learner.train(weights, Hyperparameters(work.eta, work.epochs, work.batch_size), rng)
            return trained, learner.sample_count, before
        images, labels = _samples(self, client)
        self.layout.assign(self.module, weights)
        before, _ = self._score(images, labels)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=work.eta, momentum=work.momentum)
        self.module.train()
        for _ in range(work.epochs):
            for batch in torch.split(torch.randperm(len(labels)), work.batch_size):
                optimizer.zero_grad()
                loss = self.task.loss(self.module(images[batch]), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return self.layout.flatten(self.module), len(labels), before

    @cached_property
    def evaluator(self) -> Evaluator:
        """Our own scoring."""
        return Evaluator(self.task)

    def test_accuracy(self, weights: Vector) -> float:
        """The accuracy on the whole test set."""
        if self.workload.trainer == "dapfl":
            return self.evaluator.evaluate(weights).accuracy
        self.layout.assign(self.module, weights)
        return self._score(*self.test_samples)[1]

    @torch.inference_mode()
    def _score(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        self.module.eval()
        loss, right = 0.0, 0
        for batch, truth in zip(torch.split(images, 256), torch.split(labels, 256), strict=True):
            outputs = self.module(batch)
            loss += float(self.task.loss(outputs, truth)) * len(truth)
            right += int((outputs.argmax(1) == truth).sum())
        return loss / len(labels), right / len(labels)


@cache
def clients_of(workload: Workload) -> PeerClients:
    """The one set of clients of this process: made once, kept warm between rounds."""
    return PeerClients(workload)


@cache
def _samples(clients: PeerClients, client: int) -> tuple[Tensor, Tensor]:
    return clients.samples(client)
