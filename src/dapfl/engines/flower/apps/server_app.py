"""The ServerApp of `dapfl run`: sends the messages of a run that another process controls (see `bridge`)."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dapfl.engines.flower.apps.bridge import serve
from dapfl.engines.flower.apps.transport import FlowerTransport, lookup_by_key
from dapfl.engines.flower.deployment.folders import NodeKeys, ServerFolder

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Connects Flower's `Grid` to the run; `folder` in the run config is the server's folder."""
    folder = ServerFolder(Path(str(context.run_config["folder"])))
    serve(folder.bridge, FlowerTransport(grid, lookup_by_key(NodeKeys(folder))))
