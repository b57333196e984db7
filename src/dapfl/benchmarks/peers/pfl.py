"""The workload in apple/pfl-research: FederatedAveraging on its SimulatedBackend, one process per core."""

import sys
import time
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from dapfl.benchmarks.peers.workload import PeerReport, Workload

INSTALL = "pip install pfl"


def _module_for_pfl(module: Any, loss: Any) -> Any:
    """The module with the two methods that pfl calls: its loss and its metrics."""
    import torch
    from pfl.metrics import Weighted

    def loss_of(images: Any, labels: Any) -> Any:
        module.train()
        return loss(module(images), labels)

    @torch.no_grad()
    def metrics_of(images: Any, labels: Any) -> dict[str, Any]:
        module.eval()
        outputs = module(images)
        right = (outputs.argmax(1) == labels).sum().item()
        total = loss(outputs, labels).item() * len(labels)
        return {"loss": Weighted(total, len(labels)), "accuracy": Weighted(right, len(labels))}

    module.loss, module.metrics = loss_of, metrics_of
    return module


def main(text: str) -> int:
    """Runs the workload given as JSON and prints a PeerReport."""
    began = time.perf_counter()
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops.pytorch_ops import distributed
    from pfl.metrics import Metrics, StringMetricName, get_overall_value
    from pfl.model.pytorch import PyTorchModel

    from dapfl.benchmarks.peers.training import PeerClients

    work = msgspec.json.decode(text, type=Workload)
    clients = PeerClients(work)
    clients.layout.assign(clients.module, clients.initial())
    module = _module_for_pfl(clients.module, clients.task.loss)
    np.random.seed(work.seed)  # both processes must draw the same users
    users = {client: clients.samples(client) for client in range(work.clients)}
    data = FederatedDataset(
        lambda user: Dataset(users[user], user_id=user), get_user_sampler("minimize_reuse", list(users))
    )
    test = Dataset(clients.test_samples)
    scoring = NNEvalHyperParams(local_batch_size=256)
    ends: list[float] = []
    scores: list[float] = []

    class ScoreThenTrain(FederatedAveraging):  # type: ignore[misc]
        """A client scores the model on its own data before it trains, as ours do."""

        def train_one_user(
            self, initial_model_state: Any, model: Any, user_dataset: Any, context: Any
        ) -> Any:
            before = model.evaluate(user_dataset, StringMetricName, scoring)
            statistics, _ = super().train_one_user(initial_model_state, model, user_dataset, context)
            return statistics, before

    class NoteTheTime(TrainingProcessCallback):  # type: ignore[misc]
        """Runs last, after the test set has been scored."""

        def on_train_begin(self, *, model: Any) -> Any:
            ends.append(time.perf_counter())
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> Any:
            ends.append(time.perf_counter())
            name = StringMetricName("Central val | accuracy")
            scores.append(float(get_overall_value(aggregate_metrics[name])))
            return False, Metrics()

    ScoreThenTrain().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds + 1,
            train_cohort_size=work.clients,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=work.eta, local_batch_size=work.batch_size
        ),
        model_eval_params=scoring,
        callbacks=[CentralEvaluationCallback(test, model_eval_params=scoring), NoteTheTime()],
    )
    if distributed.global_rank == 0:
        PeerReport(
            start_seconds=ends[0] - began,
            round_seconds=[end - start for start, end in pairwise(ends)],
            accuracy=scores[-1],
            processes=distributed.world_size,
        ).say()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
