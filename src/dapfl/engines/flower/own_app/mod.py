"""The client's line: `ClientApp(mods=[dapfl.flower.mod()])`.

A mod stands between Flower and the app's functions. Ours takes messages of the protocol, which say nothing to
Flower; hands the decrypted model to the train function, with the learning rate and the epochs that the
client's agent has chosen; and sends what the function returns encrypted and signed. Of a failure, only a
short code leaves the node; the sentence that explains it is in the node's own log.
"""

import traceback
from dataclasses import dataclass, replace
from logging import WARNING
from pathlib import Path

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from dapfl.config import Decryption, Encryption, PolicyConfig, ResourceConfig
from dapfl.crypto.signature import sign
from dapfl.engines.flower.apps.node_identity import (
    challenge_in,
    is_identity_query,
    pack_identity,
    statement,
)
from dapfl.engines.flower.apps.persistent_client import PersistentClient
from dapfl.engines.flower.apps.transport import pack, pack_failure, transfer_seconds, unpack
from dapfl.engines.flower.apps.worker import failure_code
from dapfl.engines.flower.own_app.functions import AppFunctions, calling_app
from dapfl.engines.flower.own_app.keys import check_state_folder, client_number, load_client_keys
from dapfl.engines.flower.own_app.learner import AppLearner, Memory, MetricNames, metrics_in
from dapfl.engines.flower.own_app.model_arrays import ModelArrays
from dapfl.engines.flower.own_app.notebook import Notebook
from dapfl.engines.flower.own_app.plan import Plan, decode_plan, federation_id
from dapfl.engines.flower.own_app.tuning import Tunables, Tuned, Unlimited, Usual
from dapfl.errors import ConfigError, DapflError, ProtocolError, TransportError
from dapfl.federation.client import Client
from dapfl.federation.global_model.derivation import ModelStore
from dapfl.federation.keys.bundles import ClientBundle
from dapfl.federation.messages import digest
from dapfl.federation.participants import client_suite, least_cohort
from dapfl.federation.training import LocalTraining
from dapfl.federation.transport import ClientId
from dapfl.resources import MeasuredResources, ResourceProcess
from dapfl.tuning.policy import HyperparameterPolicy

PLAN = "dapfl-plan"


def mod(
    *,
    tuning: bool = True,
    encryption: Encryption = "paillier",
    decryption: Decryption = "committee",
    min_cohort: int = 3,
    keys: str | Path | None = None,
    deadline: float = 600.0,
    lr: str | None = None,
    epochs: str | None = None,
    loss: str | None = None,
    accuracy: str | None = None,
    f1: str | None = None,
    policy: PolicyConfig | None = None,
    share_reports: bool = True,
    allow_insecure_small_keys: bool = False,
) -> "DapflMod":
    """Dap-FL for the ClientApp of an existing Flower app. The strategy must be `dapfl.flower.DapFL`.

    - `tuning`: whether this node's agent chooses the learning rate and the number of epochs. They are handed
      to the train function in the message's config, and in `context.run_config` where it has them, under the
      names that the app's configuration has for them (`lr` and `epochs` name others than the usual).
    - `encryption`, `decryption`, `min_cohort`: a node refuses a strategy that asks for less.
    - `keys`: the folder or file of this node's keys. By default the node config says it (`keys`); in a
      simulation there are keys of their own.
    - `deadline`: how many seconds a node may take for a round; an agent plans within it.
    - `loss`, `accuracy`, `f1`: what the app's functions call them, if it does not show.
    - `policy`: another agent or rule than the default. The app trains by itself, and its strategy averages: a
      policy may not bring an optimiser or a server step.
    - `share_reports`: whether the server learns the number of samples, the choices and the metrics.
    """
    if deadline <= 0:
        raise ConfigError(f"deadline must be more than 0 seconds, not {deadline:g}.")
    if policy is not None and (policy.optimiser.kind, policy.server_step.kind) != ("sgd", "average"):
        raise ConfigError(
            "A Flower app trains by its own function: use a policy without an optimiser or a server step."
        )
    return DapflMod(
        Settings(
            tuning=tuning,
            encryption=encryption,
            decryption=decryption,
            min_cohort=min_cohort,
            keys=keys,
            deadline=deadline,
            lr=lr,
            epochs=epochs,
            metrics=MetricNames(loss, accuracy, f1),
            policy=policy or PolicyConfig(),
            share_reports=share_reports,
            allow_insecure_small_keys=allow_insecure_small_keys,
        )
    )


@dataclass(frozen=True)
class Settings:
    """What a node has decided for itself."""

    tuning: bool
    encryption: str
    decryption: str
    min_cohort: int
    keys: str | Path | None
    deadline: float
    lr: str | None
    epochs: str | None
    metrics: MetricNames
    policy: PolicyConfig
    share_reports: bool
    allow_insecure_small_keys: bool


class DapflMod:
    """A Flower mod (see `mod`)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answers a message of the protocol, or lets an evaluation pass."""
        kind = message.metadata.message_type.partition(".")[0]
        if kind == MessageType.EVALUATE:
            return self._evaluate(message, context, call_next)
        if kind != MessageType.TRAIN:
            return call_next(message, context)
        try:
            if is_identity_query(message.content):
                return Message(self._introduce(message, context), reply_to=message)
            if PLAN not in message.content.config_records:
                log(WARNING, "Dap-FL: refused to train without protection: the strategy is not dapfl's.")
                return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, _NOT_OURS), reply_to=message)
            content = pack(self._answer(message, context, call_next))
        except Exception as error:
            _explain(error)
            code = error.reason if isinstance(error, ProtocolError) else failure_code(error)
            content = pack_failure(code)
        return Message(content, reply_to=message)

    # Training ----------------------------------------------------------------------------------

    def _answer(self, message: Message, context: Context, call_next: ClientAppCallable) -> bytes:
        record = message.content.config_records[PLAN]
        encoded, server_round = record["plan"], record["server-round"]
        if not isinstance(encoded, bytes) or not isinstance(server_round, int):
            raise TransportError("A message has a plan that is not bytes.")
        plan = decode_plan(encoded)
        client, bundle = self._identity(context)
        self._check(plan, client, bundle)
        if bundle is not None:
            check_state_folder(self._settings.keys, context, bundle)
        data, seconds = unpack(message.content), transfer_seconds(message)
        federation = federation_id(bundle.federation if bundle else b"", encoded)
        app = calling_app()
        functions = AppFunctions(message, context, call_next, app, plan, server_round)
        book = Notebook(context)
        memory = book.memory()
        learner = self._learner(plan, functions, memory)
        device = PersistentClient(
            lambda: self._build(plan, federation, client, bundle, functions, learner, context),
            book.states_of(federation, plan.started),
        )
        reply = device.answer(data, seconds)
        book.write_memory(memory)
        divergence = functions.training.divergence if functions.training else None
        if (failure := learner.failure or divergence) is not None:
            _explain(failure)
        return reply

    def _check(self, plan: Plan, client: ClientId, bundle: ClientBundle | None) -> None:
        """That the federation is no less protected than this node wants."""
        ours = self._settings
        for name in ("encryption", "decryption"):
            if getattr(plan, name) != getattr(ours, name):
                raise ProtocolError(
                    "other-settings",
                    f"the strategy has {name}={getattr(plan, name)!r}, and this node's mod "
                    f"{name}={getattr(ours, name)!r}: they must agree",
                )
        least = least_cohort(bundle, ours.min_cohort, plan.clients)
        if plan.min_cohort < least:
            raise ProtocolError(
                "other-settings",
                f"the strategy publishes sums of {plan.min_cohort} nodes, and this node's mod asks for "
                f"min_cohort={least}",
            )
        if bundle is not None and bundle.pk_i_enc.n.bit_length() != plan.key_bits:
            raise ProtocolError(
                "other-keys", f"the server's keys have {plan.key_bits} bits, and this node's do not"
            )
        if client > plan.clients:
            raise ProtocolError("other-keys", f"the federation has {plan.clients} clients, this is {client}")

    def _learner(self, plan: Plan, functions: AppFunctions, memory: Memory) -> AppLearner:
        evaluate = functions.evaluate if self._settings.tuning and functions.can_evaluate else None
        return AppLearner(plan, self._settings.metrics, memory, functions.train, evaluate)

    def _build(
        self,
        plan: Plan,
        federation: bytes,
        client: ClientId,
        bundle: ClientBundle | None,
        functions: AppFunctions,
        learner: AppLearner,
        context: Context,
    ) -> Client:
        settings, parameters = self._settings, plan.parameters()
        tunables = Tunables.find(plan.train_config, context.run_config, settings.lr, settings.epochs)
        policy: HyperparameterPolicy
        resources: ResourceProcess
        if settings.tuning:
            functions.tunables = tunables
            policy = Tuned(settings.policy, tunables, plan.seed, client)
            resources = MeasuredResources(ResourceConfig(deadline_seconds=settings.deadline))
        else:
            policy, resources = Usual(tunables), Unlimited()
        functions.policy = policy
        functions.training = training = LocalTraining(
            client=client,
            seed=plan.seed,
            rounds=plan.rounds,
            capability=None,
            parameters=parameters,
            learner=learner,
            resources=resources,
            policy=policy,
        )
        crypto = plan.crypto(allow_insecure_small_keys=settings.allow_insecure_small_keys)
        bound = None if bundle is None else replace(bundle, federation=federation)
        return Client(
            client,
            federation,
            client_suite(crypto, bound, parameters.codec),
            parameters,
            training,
            ModelStore(),
            share_reports=settings.share_reports,
            standalone=True,
        )

    def _introduce(self, message: Message, context: Context) -> RecordDict:
        """Which client this node is, with a proof where it has keys."""
        client, bundle = self._identity(context)
        if bundle is None:
            return pack_identity(client)
        said = statement(challenge_in(message.content), context.node_id, client)
        return pack_identity(client, sign(said, bundle.sk_i_sign))

    def _identity(self, context: Context) -> tuple[ClientId, ClientBundle | None]:
        """Which client this node is, and its keys."""
        settings = self._settings
        if settings.encryption == "none":
            client = client_number(context)
            if client is None:
                raise ConfigError(
                    "Without keys a node is known by its number: start its SuperNode with "
                    "--node-config 'partition-id=0' (1, 2, ... on the others)."
                )
            return client, None
        bundle = load_client_keys(
            settings.keys, context, allow_insecure_small_keys=settings.allow_insecure_small_keys
        )
        return bundle.client, bundle

    # Evaluating --------------------------------------------------------------------------------

    def _evaluate(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Lets the evaluate function do its work, and remembers what it found, for the agent."""
        arrays = next(iter(message.content.array_records.values()), None)
        reply = call_next(message, context)
        if self._settings.tuning and arrays is not None and reply.has_content():
            try:
                book = Notebook(context)
                memory = book.memory()
                memory.evaluated = digest(ModelArrays.of(arrays).vector(arrays).tobytes())
                memory.evaluation = metrics_in(reply.content)
                book.write_memory(memory)
            except DapflError as error:
                _explain(error)
        return reply


def _explain(error: Exception) -> None:
    """To the node's log."""
    if isinstance(error, DapflError):
        log(WARNING, "Dap-FL: this node cannot take part in the round: %s", error)
    else:
        traceback.print_exception(error)


_NOT_OURS = (
    "This node trains under Dap-FL only (dapfl.flower.mod), and the message is a plain one: "
    "use the strategy dapfl.flower.DapFL, or take the mod out of the ClientApp."
)
