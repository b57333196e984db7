"""The ServerApp: carries the messages of a run that is driven elsewhere (see `bridge`)."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dapfl.engines.flower.bridge import serve
from dapfl.engines.flower.folders import ServerFolder
from dapfl.engines.flower.transport import FlowerTransport, nodes_by_key

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Connects Flower's `Grid` to the run whose folder the run configuration names."""
    folder = ServerFolder(Path(str(context.run_config["folder"])))
    serve(folder.bridge, FlowerTransport(grid, nodes_by_key(folder.node_keys())))
