"""Puts participants together from a run's configuration, the same for every engine.

Each participant gets its own bundle and nothing of anyone else's.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dapfl.config import PolicyConfig, RunConfig
from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.packing import Bounds, Segment, codec_named
from dapfl.errors import ConfigError, KeyFileError
from dapfl.federation import kdc
from dapfl.federation.adversary import Adversaries, check_names
from dapfl.federation.client import Client
from dapfl.federation.insiders import INSIDERS
from dapfl.federation.kdc import ClientBundle, ServerBundle
from dapfl.federation.ledger import Ledger
from dapfl.federation.messages import FEDERATION_BYTES, digest
from dapfl.federation.models import ModelStore, Shape
from dapfl.federation.open_suite import OpenClientSuite, OpenServerSuite
from dapfl.federation.paillier_suite import PaillierClientSuite, PaillierServerSuite
from dapfl.federation.round import Federation
from dapfl.federation.server import CentralServer
from dapfl.federation.suite import ClientSuite, ServerSuite
from dapfl.federation.training import LocalTraining
from dapfl.federation.transport import ClientId, Transport
from dapfl.learning.layout import Layout
from dapfl.learning.partition import partition
from dapfl.learning.sgd import Evaluator, Learner, initial_weights
from dapfl.learning.tasks import get_task
from dapfl.learning.workshop import workshop
from dapfl.resources import build_resources, capability_of
from dapfl.tuning.build import build_policy
from dapfl.tuning.selection import build_selector

_SIGMAS = 6  # no client of a normal distribution is larger than this many deviations above the mean


@dataclass(frozen=True)
class Keys:
    """Every participant's bundle; None where nothing is encrypted."""

    server: ServerBundle | None
    clients: Mapping[ClientId, ClientBundle | None]
    insiders: Mapping[ClientId, ClientBundle | None]


def make_keys(config: RunConfig, advance: Callable[[], object] = lambda: None) -> Keys:
    """Phase 0 inside one process: the KDC makes the keys of a whole run."""
    everyone = range(1, config.clients + len(_insiders(config)) + 1)
    if config.crypto.encryption == "none":
        return _split(config, None, dict.fromkeys(everyone))
    server, clients = kdc.generate(len(everyone), config.crypto, advance)
    return _split(config, server, clients)


def save_keys(folder: Path, keys: Keys) -> None:
    """Writes every bundle of a run into a folder; a run without keys writes nothing."""
    if keys.server is not None:
        bundles = {i: bundle for i, bundle in {**keys.clients, **keys.insiders}.items() if bundle is not None}
        kdc.save_bundles(folder, keys.server, bundles)


def load_keys(config: RunConfig, folder: Path) -> Keys:
    """The bundles that `save_keys` wrote for this run."""
    crypto = config.crypto
    server, clients = kdc.load_bundles(
        folder, engine=crypto.engine, allow_insecure_small_keys=crypto.allow_insecure_small_keys
    )
    return _split(config, server, clients)


def load_server_keys(config: RunConfig, folder: Path) -> Keys:
    """The server's own bundle: all that CS has when the clients are on machines of their own."""
    path = kdc.bundle_path(folder, None)
    bundle = kdc.load_bundle(
        path,
        engine=config.crypto.engine,
        allow_insecure_small_keys=config.crypto.allow_insecure_small_keys,
    )
    if not isinstance(bundle, ServerBundle):
        raise KeyFileError(f"{path} is not the bundle of a server.")
    return Keys(bundle, {}, {})


def keys_needed(config: RunConfig) -> int:
    """How often `make_keys` calls `advance`."""
    if config.crypto.encryption == "none":
        return 0
    return kdc.keys_needed(config.clients + len(_insiders(config)))


def _insiders(config: RunConfig) -> list[str]:
    check_names(config.adversaries)
    return [name for name in config.adversaries if name in INSIDERS]


def _split(
    config: RunConfig, server: ServerBundle | None, bundles: Mapping[ClientId, ClientBundle | None]
) -> Keys:
    honest = {client: bundle for client, bundle in bundles.items() if client <= config.clients}
    insiders = {client: bundle for client, bundle in bundles.items() if client > config.clients}
    return Keys(server, honest, insiders)


def bounds_of(config: RunConfig) -> Bounds:
    """What every participant of a run declares never to exceed.

    >>> bounds_of(RunConfig())
    Bounds(max_samples=1800, max_clients=20)
    """
    largest = math.ceil(config.mean_samples + _SIGMAS * config.std_samples)
    return Bounds(max_samples=max(largest, config.batch_size), max_clients=config.clients)


def shape_of(config: RunConfig, layout: Layout) -> Shape:
    """The federation's numbers: codec, tensors, minimum cohort."""
    if config.min_cohort > config.clients:
        raise ConfigError(
            f"A minimum cohort of {config.min_cohort} can never be reached by {config.clients} clients: "
            "add clients, or lower --min-cohort (below 3, members can read each other's models)."
        )
    segments = tuple(
        Segment(tensor.name, tensor.start, tensor.stop, nonnegative=tensor.name.endswith("running_var"))
        for tensor in layout.tensors
    )
    codec = codec_named(config.crypto.codec, bounds_of(config), (config.crypto.key_bits - 1) // 8)
    return Shape(codec, segments, config.min_cohort)


def _federation_id(config: RunConfig, bundle: ServerBundle | ClientBundle | None) -> bytes:
    if bundle is not None:
        return bundle.federation
    return digest(b"dapfl open federation %d" % config.seed)[:FEDERATION_BYTES]


@dataclass
class Shared:
    """What the clients of one process have in common: the task, the data, the models they decoded.

    `primer` is `Federation.primer()` of a run that is being resumed.
    """

    config: RunConfig
    primer: bytes = b""
    store: ModelStore = field(default_factory=ModelStore)

    @cached_property
    def partition(self) -> "list[NDArray[np.int32]]":
        """Every client's samples; each process works it out alike from the seed."""
        config = self.config
        labels = workshop(get_task(config.task)).data.train_labels
        return partition(
            labels,
            config.clients,
            config.seed,
            config.partition,
            mean=config.mean_samples,
            std=config.std_samples,
            minimum=config.batch_size,
        )

    @cached_property
    def shape(self) -> Shape:
        """The federation's numbers."""
        return shape_of(self.config, workshop(get_task(self.config.task)).layout)


def check(config: RunConfig) -> None:
    """Says what cannot work, before keys are made or workers are started."""
    check_names(config.adversaries)
    shared = Shared(config)
    _ = shared.shape  # task, data, codec, cohort
    _ = shared.partition
    build_resources(config.resources, 1, config.clients, len(shared.partition[0]), config.seed)


def build_client(
    config: RunConfig,
    policy: PolicyConfig,
    client: ClientId,
    bundle: ClientBundle | None,
    shared: Shared,
    *,
    standalone: bool = False,
) -> Client:
    """Client i of a run. `standalone` is for a client on a device of its own (see `Client`)."""
    learner = Learner(get_task(config.task), shared.partition[client - 1])
    training = LocalTraining(
        client=client,
        seed=config.seed,
        rounds=config.rounds,
        capability=capability_of(config.resources, client, config.clients),
        shape=shared.shape,
        learner=learner,
        resources=build_resources(config.resources, client, config.clients, learner.samples, config.seed),
        policy=build_policy(policy, config.seed, client),
    )
    return Client(
        client,
        _federation_id(config, bundle),
        client_suite(config, bundle, shared.shape),
        shared.shape,
        training,
        shared.store,
        share_reports=config.share_reports,
        standalone=standalone,
        primer=shared.primer,
    )


def client_suite(config: RunConfig, bundle: ClientBundle | None, shape: Shape) -> ClientSuite:
    """What a client does with its keys, or without."""
    if bundle is None:
        return OpenClientSuite(shape.codec)
    return PaillierClientSuite(bundle, envelope_named(config.crypto.envelope), shape.codec)


def server_suite(config: RunConfig, bundle: ServerBundle | None, shape: Shape) -> ServerSuite:
    """What CS does with its keys, or without."""
    if bundle is None:
        return OpenServerSuite(shape.codec)
    return PaillierServerSuite(bundle, envelope_named(config.crypto.envelope), shape.codec)


def build_federation(
    config: RunConfig,
    selection: Literal["all", "ddpg-client"],
    bundle: ServerBundle | None,
    transport: Transport,
    *,
    carried: bool = False,
    ledger: Ledger | None = None,
    insiders: Mapping[ClientId, ClientBundle | None] = {},
) -> Federation:
    """CS of a run, over a transport to its clients; the run's adversaries sit on that transport."""
    if selection != "all" and not config.share_reports:
        raise ConfigError("A server that selects clients needs their reports: share_reports must be true.")
    task = get_task(config.task)
    evaluator = Evaluator(task)
    shape = shape_of(config, evaluator.layout)
    clients = range(1, config.clients + 1)
    server = CentralServer(
        _federation_id(config, bundle),
        server_suite(config, bundle, shape),
        shape,
        [*clients, *insiders],
        initial_weights(task, config.seed),
    )
    attacks: Callable[[], tuple[str, ...]] = tuple
    if config.adversaries:
        suites = {client: client_suite(config, keys, shape) for client, keys in insiders.items()}
        adversaries = Adversaries(config.adversaries, transport, server, shape, suites)
        transport, attacks = adversaries, adversaries.summary
    return Federation(
        server,
        transport,
        evaluator.evaluate,
        clients,
        selector=build_selector(selection, config.seed, config.min_cohort),
        timeout=config.round_timeout,
        carried=carried,
        ledger=ledger,
        guests=tuple(insiders),
        attacks=attacks,
    )
