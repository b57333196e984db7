"""The table of engines: what a run must know about each, and how each is opened.

A new engine is a module beside this one, a row in `ENGINES`, and its name in `RunConfig.engine`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dapfl.config import PolicyConfig, RunConfig
from dapfl.crypto.engines.base import set_threads
from dapfl.engines.base import Deployed, Engine
from dapfl.engines.inline import InlineEngine
from dapfl.engines.local import WorkerPool
from dapfl.federation.assembly import build_client
from dapfl.federation.client import Client
from dapfl.federation.keys.bundles import ClientBundle
from dapfl.federation.run_terms import Shared
from dapfl.federation.transport import ClientId
from dapfl.learning import device


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is given to bring up the clients of a run.

    `keys` has every client's bundle (None where nothing is encrypted; no entries if the clients are
    `deployed` already). `states` are those of the clients at the last checkpoint. `primer` tells clients
    that are built in the middle of a run the current model. `folder` is for the engine's own files: it lies
    in the run directory. `members` are the clients of a deployment whose clients have changed.
    """

    config: RunConfig
    policy: PolicyConfig
    keys: Mapping[ClientId, ClientBundle | None]
    states: Mapping[ClientId, bytes]
    primer: Callable[[], bytes]
    folder: Path
    deployed: Deployed | None = None
    members: Sequence[ClientId] | None = None

    def shared(self) -> Shared:
        """What the clients of one process have in common."""
        return Shared(self.config, self.policy, self.primer())

    def factories(self) -> dict[ClientId, Callable[[Shared], Client]]:
        """For each client a function that builds it; it can be sent to another process."""
        return {
            client: partial(build_client, self.config, self.policy, client, bundle)
            for client, bundle in self.keys.items()
        }

    def samples(self) -> dict[ClientId, int]:
        """How many samples each client has."""
        partition = Shared(self.config).partition
        return {client: len(partition[client - 1]) for client in self.keys}


@dataclass(frozen=True)
class EngineKind:
    """One row of the table.

    `one_exchange_per_round`: an exchange is slow here, so the server asks for the new global model along with
    the next round instead of in an exchange of its own.
    `keeps_client_state`: clients save their states themselves and may be ahead of the run's last checkpoint,
    so the server saves its own state at every step.
    """

    name: str
    one_exchange_per_round: bool
    keeps_client_state: bool
    open: Callable[[EngineSetup], Engine]
    require: Callable[[], None] = lambda: None
    """Says what is not installed, before keys are made."""


def _open_local(setup: EngineSetup) -> Engine:
    workers = device.workers(setup.config.workers)
    return WorkerPool(
        setup.factories(), setup.shared, workers=workers, states=setup.states, work=setup.samples()
    )


def _open_inline(setup: EngineSetup) -> Engine:
    set_threads(1)  # the other cores are busy with other runs
    shared = setup.shared()
    clients = {client: build(shared) for client, build in setup.factories().items()}
    return InlineEngine(clients, setup.states)


def _require_flower() -> None:
    from dapfl.engines.flower.deployment.programs import require_flower

    require_flower()


def _open_flower(setup: EngineSetup) -> Engine:
    from dapfl.engines.flower.host import engine as flower  # an optional dependency

    if setup.deployed:
        return flower.open_at_superlink(
            setup.deployed.superlink, Path(setup.deployed.folder), setup.config, setup.members
        )
    return flower.open_on_this_machine(setup.folder, setup.config, setup.policy, setup.keys)


ENGINES = {
    kind.name: kind
    for kind in (
        EngineKind("local", one_exchange_per_round=False, keeps_client_state=False, open=_open_local),
        EngineKind("inline", one_exchange_per_round=False, keeps_client_state=False, open=_open_inline),
        EngineKind(
            "flower",
            one_exchange_per_round=True,
            keeps_client_state=True,
            open=_open_flower,
            require=_require_flower,
        ),
    )
}
