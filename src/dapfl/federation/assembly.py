"""Puts participants together from a run's configuration, the same for every engine.

Each participant gets its own bundle and nothing of anyone else's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dapfl.config import PolicyConfig, RunConfig, ServerStepConfig
from dapfl.errors import ConfigError, KeyFileError, ProtocolError
from dapfl.federation.adversaries.adversary import Adversaries, check_names
from dapfl.federation.client import Client
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.keys.bundles import ClientBundle, ServerBundle
from dapfl.federation.keys.roster import SignedRoster, client_bundle_under
from dapfl.federation.keys.updates import Enrolment, ServerRosters
from dapfl.federation.messages import FEDERATION_BYTES, digest
from dapfl.federation.participants import (
    client_suite,
    recovery_of,
    server_suite,
)
from dapfl.federation.protection.base import ClientSuite
from dapfl.federation.round import Federation, NewRoster
from dapfl.federation.run_terms import Shared, client_tests, parameters_of
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.server.outgoing import KnownRoster
from dapfl.federation.server_state.state_file import StateFile
from dapfl.federation.training import LocalTraining
from dapfl.federation.transport import ClientId, Transport
from dapfl.learning import device
from dapfl.learning.optimisers import gradients_per_step
from dapfl.learning.runtime import task_runtime
from dapfl.learning.sgd import Evaluator, Learner, initial_weights
from dapfl.learning.tasks import get_task
from dapfl.resources import build_resources, capability_of
from dapfl.system.provenance import installed_version
from dapfl.tuning.build import build_policy
from dapfl.tuning.selection import Selection, build_selector


def _federation_id(config: RunConfig, bundle: ServerBundle | ClientBundle | None) -> bytes:
    if bundle is not None:
        return bundle.federation
    return digest(b"dapfl open federation %d" % config.seed)[:FEDERATION_BYTES]


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
