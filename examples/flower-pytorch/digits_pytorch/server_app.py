"""The ServerApp."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import dapfl.flower
from digits_pytorch.task import Net, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation, and saves the model."""
    strategy = dapfl.flower.DapFL(fraction_evaluate=1.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        evaluate_fn=score,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")


def score(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Loss and accuracy of a global model on the server's test data."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_test_data(batch_size=256))
    return MetricRecord({"loss": loss, "accuracy": accuracy})
