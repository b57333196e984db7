"""A client of the SuperLink's control API: registers nodes, starts our app, stops it."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dapfl.engines.flower.deployment.folders import ServerFolder
from dapfl.engines.flower.deployment.programs import unproxied
from dapfl.errors import TransportError
from dapfl.federation.transport import ClientId

# The files of our Flower app. It only names its code, which is installed on every machine.
_APP = {
    "pyproject.toml": b"""\
[project]
name = "dapfl-run"
version = "1.0.0"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "dapfl"

[tool.flwr.app.components]
serverapp = "dapfl.engines.flower.apps.server_app:app"
clientapp = "dapfl.engines.flower.apps.client_app:app"

[tool.flwr.app.config]
folder = ""
"""
}

_NODE_NAME = "dapfl client "


class Control:
    """A SuperLink's control API."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def register(self, keys: Mapping[bytes, ClientId]) -> None:
        """Registers these node keys, as far as the SuperLink does not know them yet. A node of ours that has
        no key among them is not let in any more."""
        from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest

        nodes = self._call("list its nodes", self._client.ListNodes, ListNodesRequest()).nodes_info
        known = {node.public_key: node for node in nodes if node.status != "unregistered"}
        for key, node in known.items():
            if key not in keys and node.name.startswith(_NODE_NAME):
                request = UnregisterNodeRequest(node_id=node.node_id)
                self._call(f"remove {node.name}", self._client.UnregisterNode, request)
        for key, client in keys.items():
            if key not in known:
                request = RegisterNodeRequest(public_key=key, name=f"{_NODE_NAME}{client}")
                self._call(f"register client {client}", self._client.RegisterNode, request)

    def start(self, folder: ServerFolder) -> int:
        """Starts our app; returns Flower's id of its run."""
        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        bundle, _ = build_fab_from_files(_APP)
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})),
            override_config=user_config_to_proto({"folder": str(folder.path.resolve())}),
        )
        return int(self._call("start the app", self._client.StartRun, request).run_id)

    def stop(self, run: int) -> None:
        """Stops a run of our app."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._call("stop the app", self._client.StopRun, StopRunRequest(run_id=run))

    def _call(self, what: str, method: Any, request: Any) -> Any:
        import httpx

        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            raise TransportError(f"The SuperLink refused to {what}: {error.response.text[:300]}") from None
        except httpx.HTTPError as error:
            raise TransportError(
                f"The SuperLink cannot be reached to {what}: {error}. See that it runs and that --superlink "
                "is its address, then try again."
            ) from None


@contextmanager
def connect(address: str, folder: ServerFolder) -> Iterator[Control]:
    """Connects to the SuperLink at `address`, whose certificate must be that of this deployment."""
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    with _environment(unproxied()):  # read by httpx when the client is made
        client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=folder.authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
    try:
        yield Control(client)
    finally:
        client.close()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
