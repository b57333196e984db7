"""The ServerApp."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import dapfl.flower
from digits_sklearn.task import make_model, weights_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation."""
    strategy = dapfl.flower.DapFL()
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(weights_of(make_model())),
        num_rounds=context.run_config["num-server-rounds"],
    )
