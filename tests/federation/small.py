"""A whole federation that trains 60 weights, with keys too small to be secure: fast enough to attack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from dapfl.arrays import Vector
from dapfl.config import ActionSpace, Axis, CryptoConfig, PolicyConfig
from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.packing import Bounds, Segment, codec_named
from dapfl.federation.client import Client
from dapfl.federation.global_model.committee_decryption import CommitteeDecryption
from dapfl.federation.global_model.derivation import ModelStore
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.global_model.recovery import RecoveryBuilder
from dapfl.federation.global_model.server_step import ServerStep, TakeAverage
from dapfl.federation.global_model.shared_decryption import SharedDecryption
from dapfl.federation.keys.bundles import ClientBundle, ServerBundle
from dapfl.federation.keys.kdc import generate
from dapfl.federation.messages import (
    VERSION,
    ClientBody,
    Delivery,
    Sealed,
    Signed,
    associated_data,
    encode,
)
from dapfl.federation.protection.base import ClientSuite, ServerSuite
from dapfl.federation.protection.committee import CommitteeClientSuite, CommitteeServerSuite
from dapfl.federation.protection.open import OpenClientSuite, OpenServerSuite
from dapfl.federation.protection.paillier import PaillierClientSuite, PaillierServerSuite
from dapfl.federation.records import Metric
from dapfl.federation.round import Federation
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.server_state.state_file import StateFile
from dapfl.federation.training import LocalTraining
from dapfl.federation.transport import Arrival, ClientId, Exchange, LocalTransport, Transport
from dapfl.hyperparameters import Hyperparameters
from dapfl.learning.metrics import Score
from dapfl.randomness import stream
from dapfl.resources import Resources
from dapfl.tuning.build import build_policy

SIZE = 60
KEY_BITS = 512
SEGMENTS = (Segment("hidden", 0, 50), Segment("out", 50, SIZE))
OPEN = bytes(range(16))


@cache
def insecure_keys(
    clients: int = 6,
    federation: int = 0,
    decryption: Literal["shared", "committee"] = "shared",
    seats: tuple[ClientId, ...] = (),
    bits: int = KEY_BITS,
) -> tuple[ServerBundle, dict[ClientId, ClientBundle]]:
    """The same small keys for all tests of a process; another `federation` has other keys."""
    crypto = CryptoConfig(key_bits=bits, allow_insecure_small_keys=True, decryption=decryption)
    return generate(clients, crypto, seats=seats)


def initial_weights() -> Vector:
    return stream(0, "initial").normal(0, 0.3, SIZE).astype(np.float32)


def kind_of(body: Struct) -> str:
    """The name under which a body is signed."""
    return str(type(body).__struct_config__.tag)


class Learner:
    """Pulls the weights towards a target of its own: training that anyone can follow."""

    metrics: Mapping[str, Metric] = {}
    step_size: float | None = None
    reference_loss: float | None = None
    guess_loss: float | None = None

    def __init__(self, client: ClientId, sample_count: int | None = None) -> None:
        self.sample_count = 20 + 5 * client if sample_count is None else sample_count
        self.target = stream(client, "target").normal(0, 1, SIZE).astype(np.float32)

    def evaluate(self, weights: Vector) -> Score:
        loss = float(np.mean((weights - self.target) ** 2))
        return Score(loss, 1 / (1 + loss), 1 / (2 + loss))

    def train(self, weights: Vector, chosen: Hyperparameters, rng: np.random.Generator) -> Vector:
        local, eta = weights.copy(), np.float32(chosen.eta)
        for _ in range(chosen.alpha):
            local -= eta * (local - self.target + rng.normal(0, 0.1, SIZE).astype(np.float32))
        return local


class Diverging(Learner):
    def train(self, *args: Any) -> Vector:
        return np.full(SIZE, np.nan, np.float32)


class Broken(Learner):
    def train(self, *args: Any) -> Vector:
        raise RuntimeError("the secret of client data")


@dataclass(frozen=True)
class Steady:
    """The same resources every round."""

    budget: float = 20.0

    def at(self, t: int) -> Resources:
        return Resources(self.budget, 1.0, 1.0)


def fixed_policy(eta: float = 0.1, alpha: int = 3) -> PolicyConfig:
    space = ActionSpace(
        eta=Axis(low=1e-4, high=1, scale="log", pinned=eta),
        alpha=Axis(low=1, high=50, integer=True, pinned=alpha),
    )
    return PolicyConfig(kind="fixed", capped=False, space=space)


@dataclass
class Small:
    """Everything of a federation, built for a test."""

    clients: int = 4
    encryption: str = "paillier"
    decryption: Literal["shared", "committee"] = "shared"
    envelope: str = "hybrid"
    codec: str = "exact"
    min_cohort: int = 3
    one_exchange_per_round: bool = False
    standalone: bool = False
    share_reports: bool = True
    policy: PolicyConfig = field(default_factory=fixed_policy)
    learners: Mapping[ClientId, Learner] = field(default_factory=dict)
    budgets: Mapping[ClientId, float] = field(default_factory=dict)
    wrap: Callable[["Small", Transport], Transport] = lambda _, transport: transport
    state_file: StateFile | None = None
    primer: bytes = b""
    keys: tuple[ServerBundle, dict[ClientId, ClientBundle]] | None = None
    insiders: tuple[ClientId, ...] = ()
    run: bytes | None = None
    step: ServerStep = field(default_factory=TakeAverage)
    recovery: Callable[["Small"], RecoveryBuilder] = lambda small: small.usual_recovery()
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.encryption == "paillier":
            self.keys = self.keys or insecure_keys(decryption=self.decryption)
        width = self.keys[0].pk_cs_enc.plaintext_bytes if self.keys else (KEY_BITS - 1) // 8
        codec = codec_named(self.codec, Bounds(max_samples=100, max_clients=self.clients), width)
        committee = self.decryption == "committee"
        self.parameters = PublicParameters(codec, SEGMENTS, self.min_cohort, self.step, committee)
        self.store = ModelStore()
        self.federation_id = self.keys[0].federation if self.keys else OPEN
        ids = range(1, self.clients + 1)
        self.parts: dict[ClientId, Client] = {i: self.client(i) for i in ids}
        self.server = CentralServer(
            self.federation_id,
            self.server_suite(),
            self.parameters,
            [*ids, *self.insiders],
            initial_weights(),
            recovery=self.recovery(self),
            run=self.run,
        )
        self.local = LocalTransport(self.parts)
        self.transport = self.wrap(self, self.local)
        judge = Learner(99)
        self.federation = Federation(
            self.server,
            self.transport,
            judge.evaluate,
            list(ids),
            one_exchange_per_round=self.one_exchange_per_round,
            state_file=self.state_file,
            insiders=self.insiders,
            timeout=5,
            **self.options,
        )

    @property
    def scope(self) -> bytes:
        """What contexts name: the federation and the run."""
        return self.federation_id + self.server.run

    def usual_recovery(self) -> RecoveryBuilder:
        if not self.parameters.committee:
            return SharedDecryption
        assert self.keys is not None and self.keys[0].committee is not None
        return partial(CommitteeDecryption, keys=self.keys[0].committee)

    def client_suite(self, client: ClientId) -> ClientSuite:
        if self.keys is None:
            return OpenClientSuite(self.parameters.codec)
        suite = CommitteeClientSuite if self.parameters.committee else PaillierClientSuite
        return suite(self.keys[1][client], envelope_named(self.envelope), self.parameters.codec)

    def server_suite(self) -> ServerSuite:
        if self.keys is None:
            return OpenServerSuite(self.parameters.codec)
        suite = CommitteeServerSuite if self.parameters.committee else PaillierServerSuite
        return suite(self.keys[0], envelope_named(self.envelope), self.parameters.codec)

    def client(self, client: ClientId) -> Client:
        training = LocalTraining(
            client=client,
            seed=7,
            rounds=10,
            capability=1.0,
            parameters=self.parameters,
            learner=self.learners.get(client, Learner(client)),
            resources=Steady(self.budgets.get(client, 20.0)),
            policy=build_policy(self.policy, 7, client),
        )
        return Client(
            client,
            self.federation_id,
            self.client_suite(client),
            self.parameters,
            training,
            self.store,
            share_reports=self.share_reports,
            standalone=self.standalone,
            primer=self.primer,
            new_policy=partial(build_policy, self.policy, 7, client),
        )

    def sealed(self, client: ClientId, *bodies: ClientBody, signer: ClientId | None = None) -> bytes:
        """Bodies signed and sealed with a client's keys (or signed with another's)."""
        suite = self.client_suite(client)
        sign = self.client_suite(signer or client).sign
        encoded = [encode(body) for body in bodies]
        delivery = encode(Delivery(VERSION, tuple(Signed(body, sign(body)) for body in encoded)))
        return self.resealed(client, delivery, suite)

    def resealed(self, client: ClientId, delivery: bytes, suite: ClientSuite | None = None) -> bytes:
        """Any bytes in an envelope that opens."""
        box = (suite or self.client_suite(client)).seal(delivery, associated_data(self.federation_id, client))
        return encode(Sealed(VERSION, client, box))

    def play(self, rounds: int = 3) -> list[Any]:
        return list(self.federation.rounds(rounds))


class Dropping:
    """A transport that loses some clients in some rounds; exchanges are counted from 0."""

    def __init__(self, inner: Transport, lost: Callable[[int, ClientId], str | None]) -> None:
        self.inner, self.lost, self.exchanges = inner, lost, -1

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        self.exchanges += 1
        reasons = {client: self.lost(self.exchanges, client) for client in messages}
        replies, failures = self.inner.exchange(
            {client: data for client, data in messages.items() if reasons[client] is None}, timeout
        )
        gone = {client: reason for client, reason in reasons.items() if reason is not None}
        return Exchange(replies, {**failures, **gone})


class Recording:
    """A transport that keeps a copy of everything."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.sent: list[dict[ClientId, bytes]] = []
        self.replies: list[dict[ClientId, bytes]] = []

    def exchange(
        self, messages: Mapping[ClientId, bytes], timeout: float, arrived: Arrival | None = None
    ) -> Exchange:
        replies, failures = self.inner.exchange(messages, timeout)
        self.sent.append(dict(messages))
        self.replies.append(dict(replies))
        return Exchange(dict(replies), failures)


class Lying:
    """A client with real keys that alters what it says before it signs it."""

    def __init__(self, small: Small, client: int, alter: Callable[[Any], Any]) -> None:
        self.small, self.client, self.alter = small, client, alter
        self.honest = small.parts[client]

    def handle(self, message: bytes) -> bytes:
        bodies = self.small.server.open(self.client, self.honest.handle(message))
        return self.small.sealed(self.client, *(self.alter(body) for body in bodies))
