"""A whole federation that trains 60 weights, with keys too small to be secure: fast enough to attack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct

from dapfl.config import ActionSpace, Axis, CryptoConfig, PolicyConfig
from dapfl.crypto.envelope import envelope_named
from dapfl.crypto.packing import Bounds, Segment, codec_named
from dapfl.federation.client import Client
from dapfl.federation.kdc import ClientBundle, ServerBundle, generate
from dapfl.federation.ledger import Ledger
from dapfl.federation.messages import (
    VERSION,
    ClientBody,
    Delivery,
    Sealed,
    Signed,
    encode,
    sealing_context,
)
from dapfl.federation.models import ModelStore, Shape, Vector
from dapfl.federation.open_suite import OpenClientSuite, OpenServerSuite
from dapfl.federation.paillier_suite import PaillierClientSuite, PaillierServerSuite
from dapfl.federation.round import Federation
from dapfl.federation.server import CentralServer
from dapfl.federation.suite import ClientSuite, ServerSuite
from dapfl.federation.training import LocalTraining
from dapfl.federation.transport import ClientId, Exchange, LocalTransport, Transport
from dapfl.learning.metrics import Metrics
from dapfl.randomness import stream
from dapfl.resources import Resources
from dapfl.tuning.build import build_policy

SIZE = 60
KEY_BITS = 512
SEGMENTS = (Segment("hidden", 0, 50), Segment("out", 50, SIZE))
OPEN = bytes(range(16))


@cache
def insecure_keys(clients: int = 6, federation: int = 0) -> tuple[ServerBundle, dict[ClientId, ClientBundle]]:
    """The same small keys for all tests of a process; another `federation` has other keys."""
    return generate(clients, CryptoConfig(key_bits=KEY_BITS, allow_insecure_small_keys=True))


def initial_weights() -> Vector:
    return stream(0, "initial").normal(0, 0.3, SIZE).astype(np.float32)


def kind_of(body: Struct) -> str:
    """The name under which a body is signed."""
    return str(type(body).__struct_config__.tag)


class Learner:
    """Pulls the weights towards a target of its own: training that anyone can follow."""

    def __init__(self, client: ClientId, samples: int | None = None) -> None:
        self.samples = 20 + 5 * client if samples is None else samples
        self.target = stream(client, "target").normal(0, 1, SIZE).astype(np.float32)

    def evaluate(self, weights: Vector) -> Metrics:
        loss = float(np.mean((weights - self.target) ** 2))
        return Metrics(loss, 1 / (1 + loss), 1 / (2 + loss))

    def train(
        self, weights: Vector, eta: float, alpha: int, batch_size: int, rng: np.random.Generator
    ) -> Vector:
        local = weights.copy()
        for _ in range(alpha):
            local -= np.float32(eta) * (local - self.target + rng.normal(0, 0.1, SIZE).astype(np.float32))
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
    envelope: str = "hybrid"
    codec: str = "exact"
    min_cohort: int = 3
    carried: bool = False
    standalone: bool = False
    share_reports: bool = True
    policy: PolicyConfig = field(default_factory=fixed_policy)
    learners: Mapping[ClientId, Learner] = field(default_factory=dict)
    budgets: Mapping[ClientId, float] = field(default_factory=dict)
    wrap: Callable[["Small", Transport], Transport] = lambda _, transport: transport
    ledger: Ledger | None = None
    primer: bytes = b""
    keys: tuple[ServerBundle, dict[ClientId, ClientBundle]] | None = None
    guests: tuple[ClientId, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.encryption == "paillier":
            self.keys = self.keys or insecure_keys()
        width = self.keys[0].pk_cs_enc.plaintext_bytes if self.keys else (KEY_BITS - 1) // 8
        codec = codec_named(self.codec, Bounds(max_samples=100, max_clients=self.clients), width)
        self.shape = Shape(codec, SEGMENTS, self.min_cohort)
        self.store = ModelStore()
        self.federation_id = self.keys[0].federation if self.keys else OPEN
        ids = range(1, self.clients + 1)
        self.parts: dict[ClientId, Client] = {i: self.client(i) for i in ids}
        self.server = CentralServer(
            self.federation_id, self.server_suite(), self.shape, [*ids, *self.guests], initial_weights()
        )
        self.local = LocalTransport(self.parts)
        self.transport = self.wrap(self, self.local)
        judge = Learner(99)
        self.federation = Federation(
            self.server,
            self.transport,
            judge.evaluate,
            list(ids),
            carried=self.carried,
            ledger=self.ledger,
            guests=self.guests,
            timeout=5,
            **self.options,
        )

    def client_suite(self, client: ClientId) -> ClientSuite:
        if self.keys is None:
            return OpenClientSuite(self.shape.codec)
        return PaillierClientSuite(self.keys[1][client], envelope_named(self.envelope), self.shape.codec)

    def server_suite(self) -> ServerSuite:
        if self.keys is None:
            return OpenServerSuite(self.shape.codec)
        return PaillierServerSuite(self.keys[0], envelope_named(self.envelope), self.shape.codec)

    def client(self, client: ClientId) -> Client:
        training = LocalTraining(
            client=client,
            seed=7,
            rounds=10,
            capability=1.0,
            shape=self.shape,
            learner=self.learners.get(client, Learner(client)),
            resources=Steady(self.budgets.get(client, 20.0)),
            policy=build_policy(self.policy, 7, client),
        )
        return Client(
            client,
            self.federation_id,
            self.client_suite(client),
            self.shape,
            training,
            self.store,
            share_reports=self.share_reports,
            standalone=self.standalone,
            primer=self.primer,
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
        box = (suite or self.client_suite(client)).seal(delivery, sealing_context(self.federation_id, client))
        return encode(Sealed(VERSION, client, box))

    def play(self, rounds: int = 3) -> list[Any]:
        return list(self.federation.rounds(rounds))


class Dropping:
    """A transport that loses some clients in some rounds; exchanges are counted from 0."""

    def __init__(self, inner: Transport, lost: Callable[[int, ClientId], str | None]) -> None:
        self.inner, self.lost, self.exchanges = inner, lost, -1

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float) -> Exchange:
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

    def exchange(self, messages: Mapping[ClientId, bytes], timeout: float) -> Exchange:
        replies, failures = self.inner.exchange(messages, timeout)
        self.sent.append(dict(messages))
        self.replies.append(dict(replies))
        return Exchange(dict(replies), failures)
