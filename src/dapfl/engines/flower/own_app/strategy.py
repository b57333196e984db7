"""The server's line: `strategy = dapfl.flower.DapFL(...)` instead of `FedAvg(...)`."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING
from os import environ
from pathlib import Path
from typing import Any

import msgspec
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.supercore import log

from dapfl.arrays import Vector
from dapfl.config import CodecName, CryptoConfig, Decryption, Encryption, EnvelopeName
from dapfl.crypto.signature import verify
from dapfl.engines.flower.apps.node_identity import UNPROVED, LookupByQuery
from dapfl.engines.flower.apps.transport import FlowerTransport, pack
from dapfl.engines.flower.own_app.explanations import explained, explained_status
from dapfl.engines.flower.own_app.keys import ENVIRONMENT, load_server_keys, simulation_keys
from dapfl.engines.flower.own_app.mod import PLAN
from dapfl.engines.flower.own_app.model_arrays import ModelArrays
from dapfl.engines.flower.own_app.plan import Plan, federation_id
from dapfl.errors import ConfigError, InvalidSignature, TransportError
from dapfl.federation.keys import kdc
from dapfl.federation.keys.bundles import ServerBundle
from dapfl.federation.participants import least_cohort, recovery_of, server_suite
from dapfl.federation.records import RoundRecord, Status
from dapfl.federation.round import Federation
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.transport import ClientId
from dapfl.learning.metrics import Score
from dapfl.tuning.selection import build_selector

_LEAST_PATIENCE = 1.0  # seconds: a message must live longer than nothing


class DapFL(FedAvg):
    """Federated averaging of models that the server cannot read, each trained as its node's agent chose.

    It takes the arguments of Flower's FedAvg, and has its interface: `start` returns the same `Result`, with
    the metrics of training and evaluation, weighted by the number of examples, and calls `evaluate_fn` with
    the global model of every round. The nodes' ClientApps need `dapfl.flower.mod` among their mods.

    - `encryption`: "none" leaves the tuning alone. `decryption`: by a "committee", or by every
      node alone ("shared").
    - `keys`: the folder with `server.keys`, or that file, as `dapfl keys generate` makes them; by default the
      one that the environment variable DAPFL_KEYS names. Without any, keys are made for one simulation.
    - `key_bits`: of keys made for a simulation.
    - `min_cohort`: sums of fewer contributions are not published.
    - `max_samples`: the most examples of a node; each proves that its encrypted number is not above it.
    - `codec`: "exact" to float32, or "compact" with a quarter of the bytes.
    - `on_round`: called with each round's `dapfl.RoundRecord`: choices, costs, statuses, seconds.
    - `patience`: how many seconds to wait for all nodes at the start.
    """

    def __init__(
        self,
        *fedavg: Any,
        encryption: Encryption = "paillier",
        decryption: Decryption = "committee",
        envelope: EnvelopeName = "hybrid",
        codec: CodecName = "exact",
        keys: str | Path | None = None,
        key_bits: int = 2048,
        min_cohort: int = 3,
        max_samples: int = 100_000,
        seed: int = 0,
        patience: float = 180.0,
        on_round: Callable[[RoundRecord], object] = lambda record: None,
        allow_insecure_small_keys: bool = False,
        **more_fedavg: Any,
    ) -> None:
        super().__init__(*fedavg, **more_fedavg)
        if self.fraction_train == 0.0:
            raise ConfigError("fraction_train is 0: a federation without training has nothing to encrypt.")
        self._crypto = CryptoConfig(
            encryption=encryption,
            decryption=decryption,
            envelope=envelope,
            codec=codec,
            key_bits=key_bits,
            allow_insecure_small_keys=allow_insecure_small_keys,
        )
        self._keys = keys or environ.get(ENVIRONMENT)
        self._min_cohort, self._max_samples, self._seed = min_cohort, max_samples, seed
        self._patience, self._on_round = patience, on_round

    def summary(self) -> None:
        """Logs what the strategy does."""
        super().summary()
        crypto = self._crypto
        who = "a committee" if crypto.decryption == "committee" else "every node"
        protection = "none" if crypto.encryption == "none" else f"Paillier (decrypted by {who}), signed"
        log(INFO, "\t└──> Dap-FL: encryption %s, at least %d nodes per sum", protection, self._min_cohort)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs the federation, as FedAvg's `start` would."""
        log(INFO, "Starting %s strategy: %d rounds", type(self).__name__, num_rounds)
        self.summary()
        result, began = Result(arrays=initial_arrays), time.monotonic()
        model = ModelArrays.of(initial_arrays)
        if evaluate_fn and (found := evaluate_fn(0, initial_arrays)) is not None:
            log(INFO, "Initial global evaluation results: %s", found)
            result.evaluate_metrics_serverapp[0] = found
        with self._participants(grid) as (clients, bundle):
            plan = self._plan(model, clients, bundle, num_rounds, train_config or ConfigRecord())
            lookup = LookupByQuery(
                clients,
                proved=None if bundle is None else partial(_has_signed, bundle),
                message_type=MessageType.TRAIN,
                timeout=max(self._patience, _LEAST_PATIENCE),
            )
            initial = model.vector(initial_arrays)
            evaluated = self.fraction_evaluate > 0 or evaluate_fn is not None
            federation = self._federation(grid, lookup, plan, bundle, initial, timeout, evaluated)
            for record in federation.rounds(num_rounds):
                number = record.round + 1
                log(INFO, "")
                log(INFO, "[ROUND %s/%s]", number, num_rounds)
                self._show(record, lookup)
                lookup.ask_again()
                if record.cohort:
                    result.arrays = model.arrays(federation.weights)
                if (metrics := self._train_metrics(record)) is not None:
                    log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
                    result.train_metrics_clientapp[number] = metrics
                self._evaluate(number, grid, result, timeout, evaluate_config, evaluate_fn)
                self._on_round(record)
        log(INFO, "")
        log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
        for line in str(result).splitlines():
            log(INFO, "\t%s", line)
        return result

    # Participants ------------------------------------------------------------------------------

    @contextmanager
    def _participants(self, grid: Grid) -> Iterator[tuple[int, ServerBundle | None]]:
        """How many clients there are, and the server's keys."""
        small = self._crypto.allow_insecure_small_keys
        if self._crypto.encryption != "none" and self._keys:
            bundle = load_server_keys(Path(self._keys), allow_insecure_small_keys=small)
            yield len(bundle.sk_enc), bundle
            return
        least = max(self.min_available_nodes, self._min_cohort)
        nodes = self._wait_for_nodes(grid, least)
        if self._crypto.encryption == "none":
            yield nodes, None
            return
        log(INFO, "Dap-FL: making keys for %d nodes on this machine (a simulation)", nodes)
        server, clients = kdc.generate(nodes, self._crypto)
        with simulation_keys(grid.run.run_id, server, clients):
            yield nodes, server

    def _wait_for_nodes(self, grid: Grid, least: int) -> int:
        deadline = time.monotonic() + self._patience
        log(INFO, "Dap-FL: waiting for %d nodes, %.0f s at most", least, self._patience)
        while (count := len(list(grid.get_node_ids()))) < least:
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"{count} nodes are connected after {self._patience:.0f} s, and {least} are needed: a "
                    f"sum of fewer than {self._min_cohort} would give single models away. Start more nodes, "
                    "or lower min_cohort in DapFL and in the mod (below 3, nodes can read each other's "
                    "models, and both need decryption='shared')."
                )
            time.sleep(0.5)
        return count

    def _plan(
        self,
        model: ModelArrays,
        clients: int,
        bundle: ServerBundle | None,
        rounds: int,
        train_config: ConfigRecord,
    ) -> Plan:
        crypto = self._crypto
        bits = bundle.pk_cs_enc.n.bit_length() if bundle else crypto.key_bits
        if clients < self._min_cohort:
            raise ConfigError(
                f"There are keys for {clients} clients, and min_cohort is {self._min_cohort}: no sum could "
                "ever be published."
            )
        return Plan(
            started=time.time(),
            nonce=secrets.token_bytes(16),
            rounds=rounds,
            clients=clients,
            seed=self._seed,
            encryption=crypto.encryption,
            decryption=crypto.decryption,
            envelope=crypto.envelope,
            codec=crypto.codec,
            key_bits=bits,
            max_samples=self._max_samples,
            min_cohort=least_cohort(bundle, self._min_cohort, clients),
            model=model,
            train_config=dict(train_config),
            arrays_key=self.arrayrecord_key,
            config_key=self.configrecord_key,
            weight_key=self.weighted_by_key,
        )

    def _federation(
        self,
        grid: Grid,
        lookup: LookupByQuery,
        plan: Plan,
        bundle: ServerBundle | None,
        initial: Vector,
        timeout: float,
        evaluated: bool,
    ) -> Federation:
        encoded, parameters = plan.encode(), plan.parameters()
        name = federation_id(bundle.federation if bundle else b"", encoded)
        bound = None if bundle is None else replace(bundle, federation=name)
        crypto = msgspec.structs.replace(self._crypto, key_bits=plan.key_bits)
        clients = range(1, plan.clients + 1)
        server = CentralServer(
            name,
            server_suite(crypto, bound, parameters.codec),
            parameters,
            clients,
            initial,
            recovery=recovery_of(crypto, bound),
        )

        def packed(data: bytes) -> RecordDict:
            content = pack(data)
            content[PLAN] = ConfigRecord({"plan": encoded, "server-round": max(server.round, 0) + 1})
            return content

        transport = FlowerTransport(grid, lookup, pack=packed)
        log(INFO, "Dap-FL: asking %d nodes for their keys, %.0f s at most", plan.clients, self._patience)
        missing = transport.wait_for(
            set(clients),
            self._patience,
            # Strangers say nothing about the clients that are missing.
            lambda missing: (
                len([code for code in lookup.refusals.values() if code != UNPROVED]) >= len(missing)
            ),
        )
        if plan.clients - len(missing) < plan.min_cohort:
            self._show_refusals(lookup)
            raise TransportError(
                f"{plan.clients - len(missing)} of {plan.clients} clients can take part, and a round needs "
                f"{plan.min_cohort}. The lines above and the nodes' logs say why."
            )
        if missing:
            absent = ", ".join(map(str, sorted(missing)))
            log(WARNING, "Dap-FL: beginning without client %s, who may come later", absent)
        wanted = max(int(plan.clients * self.fraction_train), self.min_train_nodes, plan.min_cohort)
        return Federation(
            server,
            transport,
            lambda weights: Score(float("nan"), float("nan"), float("nan")),  # the app scores models itself
            clients,
            selector=build_selector(
                "all", self._seed, plan.min_cohort, wanted if wanted < plan.clients else None
            ),
            timeout=timeout,
            one_exchange_per_round=not evaluated,
        )

    # What is told ------------------------------------------------------------------------------

    def _show(self, record: RoundRecord, lookup: LookupByQuery) -> None:
        log(
            INFO,
            "aggregate_train: %d contributions, %.1f MB up, %.1f MB down",
            record.participants,
            record.bytes_up / 1e6,
            record.bytes_down / 1e6,
        )
        for client in record.clients:
            if client.status == Status.ACCEPTED:
                if client.eta is not None:
                    log(INFO, "\t> client %d: lr %.3g, epochs %s", client.id, client.eta, client.alpha)
            elif client.status != Status.UNSELECTED:
                log(WARNING, "\t> client %d: %s", client.id, explained_status(client.status))
        self._show_refusals(lookup)

    @staticmethod
    def _show_refusals(lookup: LookupByQuery) -> None:
        for node, code in lookup.refusals.items():
            log(WARNING, "\t> node %d takes no part: %s", node, explained(code))

    def _train_metrics(self, record: RoundRecord) -> MetricRecord | None:
        """The metrics that the cohort's train functions returned, as FedAvg aggregates them."""
        told = [client for client in record.clients if client.id in record.cohort and client.metrics]
        if not told:
            return None
        contents = []
        for client in told:
            metrics = {name: value for name, value in (client.metrics or {}).items() if value is not None}
            contents.append(
                RecordDict({"metrics": MetricRecord({**metrics, self.weighted_by_key: client.samples or 1})})
            )
        names = [set(content["metrics"]) for content in contents]
        if any(each != names[0] for each in names):
            log(WARNING, "The nodes return different metrics of training: they are not averaged.")
            return None
        return self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def _evaluate(
        self,
        number: int,
        grid: Grid,
        result: Result,
        timeout: float,
        config: ConfigRecord | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        """The evaluation by nodes and by the server, as in FedAvg."""
        config = ConfigRecord() if config is None else config
        if self.fraction_evaluate > 0:
            messages = self.configure_evaluate(number, result.arrays, config, grid)
            replies = grid.send_and_receive(messages=messages, timeout=timeout)
            if (metrics := self.aggregate_evaluate(number, replies)) is not None:
                log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
                result.evaluate_metrics_clientapp[number] = metrics
        if evaluate_fn and (found := evaluate_fn(number, result.arrays)) is not None:
            log(INFO, "Global evaluation: %s", found)
            result.evaluate_metrics_serverapp[number] = found


def _has_signed(bundle: ServerBundle, client: ClientId, said: bytes, signature: bytes) -> bool:
    try:
        verify(said, signature, bundle.pk_sign[client])
    except (InvalidSignature, KeyError):
        return False
    return True
