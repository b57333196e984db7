"""Puts participants together from a run's configuration, the same for every engine.

Each participant gets its own bundle and nothing of anyone else's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from dapfl.config import PolicyConfig, RunConfig, ServerStepConfig
from dapfl.crypto.packing import Bounds, Segment, codec_named
from dapfl.errors import ConfigError, KeyFileError, ProtocolError
from dapfl.federation.adversaries.adversary import Adversaries, check_names
from dapfl.federation.client import Client
from dapfl.federation.global_model.derivation import ModelStore
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.global_model.server_step import server_step
from dapfl.federation.keys.bundles import ClientBundle, ServerBundle
from dapfl.federation.keys.roster import SignedRoster, client_bundle_under
from dapfl.federation.keys.updates import Enrolment, ServerRosters
from dapfl.federation.messages import FEDERATION_BYTES, digest
from dapfl.federation.participants import (
    client_suite,
    has_committee,
    recovery_of,
    server_suite,
    smallest_cohort,
)
from dapfl.federation.protection.base import ClientSuite
from dapfl.federation.round import Federation, NewRoster
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.server.outgoing import KnownRoster
from dapfl.federation.server_state.state_file import StateFile
from dapfl.federation.training import LocalTraining
from dapfl.federation.transport import ClientId, Transport
from dapfl.learning import device
from dapfl.learning.data import Dataset
from dapfl.learning.fairness import ClientTests
from dapfl.learning.optimisers import gradients_per_step
from dapfl.learning.partition import chosen_clients, partition
from dapfl.learning.runtime import TaskRuntime, task_runtime
from dapfl.learning.sgd import Evaluator, Learner, initial_weights
from dapfl.learning.tasks import TASKS, get_task
from dapfl.randomness import stream
from dapfl.resources import REFERENCE_SAMPLES, build_resources, capability_of
from dapfl.system.provenance import installed_version
from dapfl.tuning.build import build_policy
from dapfl.tuning.selection import Selection, build_selector

_PAPER_MEAN, _PAPER_STD = 600.0, 200.0  # of |D_i|
_SIGMAS = 6  # no client of a normal distribution is larger than this many deviations above the mean


def check_numbers(config: RunConfig) -> None:
    """ConfigError if the numbers of clients do not go together; needs no data."""
    called = config.per_round or config.clients  # at most
    if called > config.clients:
        raise ConfigError(f"A round cannot call {called} clients: the federation has {config.clients}.")
    if config.min_cohort > called:
        raise ConfigError(
            f"A minimum cohort of {config.min_cohort} can never be reached by {called} clients: "
            "add clients, or lower --min-cohort (below 3, members can read each other's models)."
        )
    if config.room is not None and config.room < config.clients:
        raise ConfigError(f"There is no room for {config.clients} clients in a federation of {config.room}.")
    smallest_cohort(config)


@dataclass(frozen=True)
class Sizes:
    """How |D_i| is distributed: the paper's N(600, 200), or as the configuration says.

    The data of a user's own task are all shared out unless it says otherwise; the mean is None then.
    """

    mean: float | None
    std: float

    @classmethod
    def of(cls, config: RunConfig) -> "Sizes":
        """The sizes of a run's clients."""
        shared_out = config.mean_samples is None and config.task not in TASKS and config.partition != "own"
        mean = None if shared_out else config.mean_samples or _PAPER_MEAN
        std = config.std_samples
        return cls(mean, std if std is not None else 0.0 if shared_out else _PAPER_STD)

    def largest(self, samples: int, clients: int) -> int:
        """What no client of a set of so many samples exceeds."""
        mean = samples / clients if self.mean is None else self.mean
        return math.ceil(mean + _SIGMAS * self.std)


def bounds_of(config: RunConfig, data: Dataset | None = None) -> Bounds:
    """What every participant of a run declares never to exceed. Natural clients are as large as they are.

    >>> bounds_of(RunConfig())
    Bounds(max_samples=1800, max_clients=20)
    """
    if config.partition == "natural" and data is not None and data.natural is not None:
        largest = int(np.bincount(data.natural.train[data.natural.train >= 0]).max())
    else:
        largest = Sizes.of(config).largest(0 if data is None else len(data.train_labels), config.clients)
    return Bounds(
        max_samples=max(largest, config.batch_size),
        max_clients=config.per_round or max(config.clients, config.room or 0),
    )


def parameters_of(
    config: RunConfig,
    runtime: TaskRuntime,
    step: ServerStepConfig = ServerStepConfig(),  # noqa: B008 - frozen
) -> PublicParameters:
    """What the participants of a run all know: codec, tensors, minimum cohort, server step."""
    check_numbers(config)
    segments = tuple(
        Segment(tensor.name, tensor.start, tensor.stop, nonnegative=tensor.name.endswith("running_var"))
        for tensor in runtime.layout.tensors
    )
    bounds = bounds_of(config, runtime.data)
    codec = codec_named(config.crypto.codec, bounds, (config.crypto.key_bits - 1) // 8)
    learned = max(tensor.stop for tensor in runtime.layout.tensors if tensor.kind == "weight")
    return PublicParameters(
        codec,
        segments,
        smallest_cohort(config),
        step=server_step(step, learned),
        committee=has_committee(config.crypto),
    )


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
    policy: PolicyConfig = PolicyConfig()  # noqa: RUF009 - frozen
    primer: bytes = b""
    store: ModelStore = field(default_factory=ModelStore)

    def __post_init__(self) -> None:
        device.use(self.config.device)

    @cached_property
    def partition(self) -> "list[NDArray[np.int32]]":
        """Every client's samples; each process derives the same from the seed."""
        config, sizes = self.config, Sizes.of(self.config)
        data = task_runtime(get_task(config.task)).data
        shares = partition(
            data.train_labels,
            config.clients,
            config.seed,
            config.partition,
            mean=sizes.mean,
            std=sizes.std,
            minimum=config.batch_size,
            natural=data.natural,
        )
        if config.partition == "own" and len(shares[0]) > (most := self.parameters.codec.bounds.max_samples):
            chosen = stream(config.seed, "partition", "own").choice(len(shares[0]), most, replace=False)
            return [np.sort(chosen).astype(np.int32)] * config.clients
        return shares

    @property
    def usual_samples(self) -> float:
        """How many samples an epoch has that costs one unit in a simulation.

        With large data of a user's own, weak clients could else afford no epoch at all.
        """
        if Sizes.of(self.config).mean is not None:
            return REFERENCE_SAMPLES
        return max(REFERENCE_SAMPLES, float(np.mean([len(share) for share in self.partition])))

    @cached_property
    def parameters(self) -> PublicParameters:
        """The public parameters of the run."""
        return parameters_of(self.config, task_runtime(get_task(self.config.task)), self.policy.server_step)


def client_tests(config: RunConfig) -> ClientTests | None:
    """The test samples of each client; None where only the devices know what their data are like."""
    if config.partition == "own":
        return None
    data = task_runtime(get_task(config.task)).data
    if config.partition == "natural" and data.natural is not None:
        natural = chosen_clients(data.natural, config.clients, config.seed)
        return ClientTests.natural(data, natural) if data.classes else None
    if not data.classes:
        return None  # what a model is worth to a client is told by an accuracy, and there is none
    return ClientTests.by_class(data, Shared(config).partition)


def samples_used(config: RunConfig) -> tuple[int, int]:
    """How many training samples the clients of a run have together, and how many there are."""
    shared = Shared(config)
    used = np.unique(np.concatenate(shared.partition)).size
    return int(used), len(task_runtime(get_task(config.task)).data.train_labels)


def client_names(config: RunConfig) -> tuple[str, ...]:
    """The names of the clients, in order, where the data have them."""
    natural = task_runtime(get_task(config.task)).data.natural if config.partition == "natural" else None
    if natural is None:
        return ()
    return tuple(natural.names[each] for each in chosen_clients(natural, config.clients, config.seed))


def check(config: RunConfig, *, clients_here: bool = True) -> None:
    """Says what cannot work, before keys are made or workers are started.

    Unless the clients are here, nothing is known about their data.
    """
    check_names(config.adversaries)
    shared = Shared(config)
    most = shared.parameters.codec.bounds.max_samples  # task, data, codec, cohort
    largest = max(map(len, shared.partition))
    if config.partition == "own":
        largest = len(task_runtime(get_task(config.task)).data.train_labels)
    if clients_here and largest > most:
        raise ConfigError(
            f"A client would have {largest:,} samples, but at most {most:,} are declared: "
            + (
                "--partition own is for devices that have data of their own (dapfl deploy init --own-data)."
                if config.partition == "own"
                else "raise mean_samples in the configuration."
            )
        )
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
    place = 0 if config.partition == "own" else client - 1  # a client that joined later has its own data
    learner = Learner(get_task(config.task), shared.partition[place], policy.optimiser)
    training = LocalTraining(
        client=client,
        seed=config.seed,
        rounds=config.rounds,
        capability=(
            None
            if config.resources.source == "measured"
            else capability_of(config.resources, client, config.clients)
        ),
        parameters=shared.parameters,
        learner=learner,
        resources=build_resources(
            config.resources,
            client,
            config.clients,
            learner.sample_count,
            config.seed,
            shared.usual_samples,
        ),
        policy=build_policy(policy, config.seed, client),
        gradients_per_step=gradients_per_step(policy.optimiser),
    )
    return Client(
        client,
        _federation_id(config, bundle),
        client_suite(config.crypto, bundle, shared.parameters.codec),
        shared.parameters,
        training,
        shared.store,
        share_reports=config.share_reports,
        standalone=standalone,
        primer=shared.primer,
        new_policy=partial(build_policy, policy, config.seed, client),
        enrol=None if bundle is None else partial(_enrol, config, bundle, shared.parameters),
        software=installed_version(),
    )


def _enrol(
    config: RunConfig, bundle: ClientBundle, parameters: PublicParameters, signed: bytes
) -> tuple[int, ClientSuite]:
    """The serial of a roster, and what a client does with its keys under it; ProtocolError if the KDC has not
    signed it or this client is not on it."""
    try:
        if bundle.pk_kdc_sign is None:
            raise KeyFileError("This federation was made without a KDC that changes it.")
        roster = SignedRoster.from_bytes(signed).verified(bundle.pk_kdc_sign, bundle.federation)
        renewed = client_bundle_under(bundle, roster, config.crypto)
    except KeyFileError as error:
        raise ProtocolError("bad-roster", str(error)) from None
    return roster.serial, client_suite(config.crypto, renewed, parameters.codec)


def build_federation(
    config: RunConfig,
    selection: Selection,
    bundle: ServerBundle | None,
    transport: Transport,
    *,
    one_exchange_per_round: bool = False,
    state_file: StateFile | None = None,
    insiders: Mapping[ClientId, ClientBundle | None] = {},
    run: bytes | None = None,
    step: ServerStepConfig = ServerStepConfig(),  # noqa: B008 - frozen
    before_round: Callable[[Sequence[ClientId], int], None] = lambda *_: None,
    rosters: ServerRosters | None = None,
    roster: int | None = None,
) -> Federation:
    """CS of a run, over a transport to its clients; the run's adversaries sit on that transport.

    `run` is the id of a new run with keys that may have served others (`run_id.begin_run`). `step` is that of
    the clients' policies: they make the next model as CS does. Where clients come and go, `rosters` say who
    takes part; `roster` is the serial of the one to begin with, the newest unless told otherwise.
    """
    if selection != "all" and not config.share_reports:
        raise ConfigError("A server that selects clients needs their reports: share_reports must be true.")
    device.use(config.device)
    task = get_task(config.task)
    evaluator = Evaluator(task, client_tests(config))
    parameters = parameters_of(config, task_runtime(task), step)
    clients: Sequence[ClientId] = range(1, config.clients + 1)
    enrolment: Enrolment | None = None
    if rosters is not None:
        enrolment = rosters.at(rosters.newest if roster is None else roster)
        bundle, clients = enrolment.bundle, enrolment.members
    server = CentralServer(
        _federation_id(config, bundle),
        server_suite(config.crypto, bundle, parameters.codec),
        parameters,
        [*clients, *insiders],
        initial_weights(task, config.seed),
        recovery=recovery_of(config.crypto, bundle),
        run=run,
        roster=None if enrolment is None else _known(enrolment),
    )
    attacks: Callable[[], tuple[str, ...]] = tuple
    if config.adversaries:
        codec = parameters.codec
        suites = {client: client_suite(config.crypto, keys, codec) for client, keys in insiders.items()}
        committee = None if bundle is None else bundle.committee
        adversaries = Adversaries(config.adversaries, transport, server, parameters, suites, committee)
        transport, attacks = adversaries, adversaries.summary
    return Federation(
        server,
        transport,
        evaluator.evaluate,
        clients,
        selector=build_selector(selection, config.seed, parameters.min_cohort, config.per_round),
        timeout=config.round_timeout,
        simulated=config.resources.source != "measured",
        before_round=before_round,
        one_exchange_per_round=one_exchange_per_round,
        state_file=state_file,
        insiders=tuple(insiders),
        attacks=attacks,
        newer_roster=partial(_newer_roster, config, parameters, rosters),
    )


def _known(enrolment: Enrolment) -> KnownRoster | None:
    return None if enrolment.roster is None else KnownRoster(enrolment.serial, enrolment.roster)


def _newer_roster(
    config: RunConfig, parameters: PublicParameters, rosters: ServerRosters | None, serial: int
) -> NewRoster | None:
    """What CS needs to go over to the newest roster, if that is newer than the one with this serial."""
    if rosters is None or (newest := rosters.newer(serial)) is None:
        return None
    old, new, roster = rosters.at(serial).bundle, newest.bundle, _known(newest)
    assert roster is not None, "only the first has no roster"
    return NewRoster(
        roster,
        server_suite(config.crypto, new, parameters.codec),
        newest.members,
        recovery_of(config.crypto, new),
        unchanged=frozenset(i for i in new.pk_sign if old.pk_sign.get(i) == new.pk_sign[i]),
    )
