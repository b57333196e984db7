"""Client c_i: bytes in, bytes out (Fig. 4, right column).

A client believes nothing that CS has not signed for this federation, this recipient and this
round, takes each order once and in order, and answers only in sealed, signed messages. Whatever
goes wrong, nothing of it leaves the device but a short name.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import numpy as np

from dapfl.errors import ProtocolError
from dapfl.federation.messages import (
    NO_MODEL,
    VERSION,
    Aggregate,
    Answer,
    Call,
    ClientBody,
    Context,
    Delivery,
    Notice,
    Refusal,
    Request,
    Sealed,
    Signed,
    Upload,
    digest,
    encode,
    sealing_context,
)
from dapfl.federation.models import Derivation, GlobalModel, ModelStore, Part, Shape, from_bytes, to_bytes
from dapfl.federation.records import ClientReport
from dapfl.federation.suite import ClientSuite
from dapfl.federation.training import LocalTraining, Stopwatch, Trained
from dapfl.federation.transport import EVERYONE, SERVER, ClientId
from dapfl.resources import MeasuredResources

log = logging.getLogger("dapfl.client")

_REMEMBERED_REFUSALS = 16


@dataclass(frozen=True)
class _Order:
    """A call or request, and the hash of its signed body, which the reply names."""

    body: Call | Request
    digest: bytes

    @property
    def kind(self) -> str:
        """Orders of one kind come in order of rounds."""
        if isinstance(self.body, Call):
            return "call"
        return "request" if self.body.whole else "witness"


class _Count(msgspec.Struct, frozen=True):
    """The proof of |D_i|, made once, and whether the last aggregate counts this client by it."""

    samples: int
    proof: bytes
    counted: bool


class _State(msgspec.Struct, frozen=True):
    """What a client must not forget."""

    client: ClientId
    latest: dict[str, int]
    refused: list[str]
    count: _Count | None
    policy: bytes
    residual: bytes | None
    resources: bytes | None
    model: bytes | None
    weights: bytes | None
    previous: bytes | None
    answered: bytes | None
    reply: bytes | None


class Client:
    """One participant with its keys (inside `suite`), its data and its agent (inside `training`).

    `standalone` is for a client on a device of its own: its state then carries the global model and its
    last reply, so that a server which asks again after a crash gets the same answer again.
    """

    def __init__(
        self,
        client: ClientId,
        federation: bytes,
        suite: ClientSuite,
        shape: Shape,
        training: LocalTraining,
        store: ModelStore,
        *,
        share_reports: bool = True,
        standalone: bool = False,
        primer: bytes = b"",
    ) -> None:
        self.id = client
        self._federation = federation
        self._suite = suite
        self._shape = shape
        self._training = training
        self._store = store
        self._share_reports = share_reports
        self._standalone = standalone
        self._primer = primer
        self._model: GlobalModel | None = None
        self._latest: dict[str, int] = {}  # the last round in which an order of each kind was taken
        self._refused: list[str] = []  # since the last report
        self._count: _Count | None = None
        self._answered: bytes | None = None  # the hash of the last orders that were answered
        self._reply: bytes | None = None

    def handle(self, message: bytes) -> bytes:
        """The reply to a message. Never raises."""
        try:
            return self._answer(message)
        except ProtocolError as error:
            log.info("client %d refused a message: %s", self.id, error)
            reason = error.reason
        except Exception:
            log.warning("client %d could not answer a message", self.id, exc_info=True)
            reason = "internal-error"
        try:
            return self._refuse(reason, message)
        except Exception:
            log.warning("client %d could not even refuse", self.id, exc_info=True)
            return b""

    def record_transfer(self, seconds: float) -> None:
        """How long the engine took to carry a message to or from this client's device."""
        if isinstance(self._training.resources, MeasuredResources):
            self._training.resources.record_transfer(seconds)

    # Receiving ---------------------------------------------------------------------------------

    def _answer(self, message: bytes) -> bytes:
        watch = Stopwatch()
        with watch.phase("open"):
            models, orders = self._authenticated(message)
            if not orders:
                raise ProtocolError("malformed", "a delivery that asks for nothing")
            answered = digest(b"".join(order.digest for order in orders))
            if answered == self._answered and self._reply is not None:
                return self._reply  # CS asks again after a crash: the same answer, and nothing is done twice
            self._check_order(orders)
            self._model = self._derive(orders[0].body.context.model, models)
            self._notice_cohort(models)
        replies = [self._obey(order, self._model, watch) for order in orders]
        for order in orders:
            self._latest[order.kind] = order.body.context.round
        sealed = self._seal(replies)
        if self._standalone:
            self._answered, self._reply = answered, sealed
        return sealed

    def _authenticated(self, message: bytes) -> tuple[list[Part], list[_Order]]:
        """The models and the orders of a delivery; all signed by CS for this client (Eqs 31, 41)."""
        parts = self._store.opened(message, self._shape.delivery_limit(self._suite.row_bytes), self._suite)
        models: list[Part] = []
        orders: list[_Order] = []
        for part in parts:
            self._check_context(part.body.context)
            if isinstance(part.body, Call | Request):
                orders.append(_Order(part.body, part.digest))
            else:
                models.append(part)
        return models, orders

    def _check_context(self, context: Context) -> None:
        if context.federation != self._federation:
            raise ProtocolError("wrong-federation")
        if context.sender != SERVER:
            raise ProtocolError("wrong-sender", "not from CS")
        if context.recipient not in (EVERYONE, self.id):
            raise ProtocolError("wrong-recipient", f"for {context.recipient}, not for {self.id}")

    def _check_order(self, orders: Sequence[_Order]) -> None:
        """Each kind once a round, in order of rounds, and all about one model."""
        if len({order.kind for order in orders}) < len(orders):
            raise ProtocolError("duplicate", "two orders of one kind")
        if len({order.body.context.model for order in orders}) > 1:
            raise ProtocolError("malformed", "orders about different models")
        for order in orders:
            if order.body.context.round <= self._latest.get(order.kind, -1):
                raise ProtocolError("replayed", f"{order.kind} of round {order.body.context.round}")

    def _derive(self, name: bytes, models: Sequence[Part]) -> GlobalModel:
        return Derivation(self._shape, self._suite, self._store, self._model).model(name, models)

    def _notice_cohort(self, models: Sequence[Part]) -> None:
        """Looks up whether CS has taken this client's last contribution, and so knows its count."""
        for part in models:
            if isinstance(part.body, Aggregate) and self._count is not None:
                self._count = msgspec.structs.replace(self._count, counted=self.id in part.body.cohort)

    # Acting ------------------------------------------------------------------------------------

    def _obey(self, order: _Order, model: GlobalModel, watch: Stopwatch) -> ClientBody:
        context = self._context(order.body.context.round, model.name)
        if isinstance(order.body, Call):
            return self._take_part(order, model, context, watch)
        # "c_i would upload the global model to CS after verifying the legality of the request."
        weights = to_bytes(model.weights) if order.body.whole else b""
        return Answer(context, order.digest, model.commitment, weights)

    def _take_part(
        self, order: _Order, model: GlobalModel, context: Context, watch: Stopwatch
    ) -> Upload | Notice:
        trained = self._training.run(order.body.context.round, model, watch)
        contribution = trained.contribution
        if isinstance(contribution, str):
            return Notice(context, order.digest, model.commitment, contribution, self._report(trained, watch))
        with watch.phase("encrypt"):
            weighted = self._suite.encrypt(contribution).tobytes()  # ε₁(|D_i|·ŵ_i), Eq. 33
            samples = self._proved_count()  # ε₁(|D_i|), Eq. 33
        report = self._report(trained, watch)
        return Upload(context, order.digest, model.commitment, weighted, samples, report)  # Eq. 34

    def _proved_count(self) -> bytes:
        """ε₁(|D_i|) with its proof; the hash of it, once CS has counted this client by it."""
        samples = self._training.learner.samples
        if self._count is None or self._count.samples != samples:
            self._count = _Count(samples, self._suite.prove_count(samples), counted=False)
        return digest(self._count.proof) if self._count.counted else self._count.proof

    def _report(self, trained: Trained, watch: Stopwatch) -> ClientReport | None:
        """What this client tells about its round, if it shares that."""
        if not self._share_reports:
            return None
        refused, self._refused = tuple(self._refused), []
        return msgspec.structs.replace(trained.report, seconds=dict(watch.seconds), refused=refused)

    def _refuse(self, reason: str, message: bytes) -> bytes:
        if len(self._refused) < _REMEMBERED_REFUSALS:
            self._refused.append(reason)
        name = self._model.name if self._model is not None else NO_MODEL
        context = self._context(max(self._latest.values(), default=0), name)
        return self._seal([Refusal(context, digest(message), reason)])

    def _context(self, t: int, model: bytes) -> Context:
        return Context(VERSION, self._federation, t, self.id, SERVER, model)

    def _seal(self, bodies: Sequence[ClientBody]) -> bytes:
        """Signs each body (Eq. 35) and seals them together (Eq. 36)."""
        encoded = [encode(body) for body in bodies]
        parts = tuple(Signed(body, self._suite.sign(body)) for body in encoded)
        delivery = encode(Delivery(VERSION, parts))
        box = self._suite.seal(delivery, sealing_context(self._federation, self.id))
        return encode(Sealed(VERSION, self.id, box))

    # Remembering -------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Everything needed to go on later exactly as now (but for the model, unless standalone)."""
        training, model = self._training, self._model if self._standalone else None
        measured = training.resources if isinstance(training.resources, MeasuredResources) else None
        return msgspec.msgpack.encode(
            _State(
                client=self.id,
                latest=self._latest,
                refused=self._refused,
                count=self._count,
                policy=training.policy.state(),
                residual=None if training.residual is None else to_bytes(training.residual),
                resources=None if measured is None else measured.state(),
                model=None if model is None else model.name,
                weights=None if model is None else to_bytes(model.weights),
                previous=None if model is None or model.previous is None else to_bytes(model.previous),
                answered=self._answered,
                reply=self._reply,
            )
        )

    def restore(self, state: bytes) -> None:
        """Goes on from what `state` gave."""
        try:
            old = msgspec.msgpack.decode(state, type=_State)
        except msgspec.MsgspecError:
            raise ProtocolError("bad-state", f"the saved state of client {self.id} is damaged") from None
        if old.client != self.id:
            raise ProtocolError("bad-state", f"this is the state of client {old.client}, not {self.id}")
        size = self._shape.size
        self._latest = dict(old.latest)
        self._refused = list(old.refused)
        self._count = old.count
        self._training.policy.restore(old.policy)
        self._training.residual = None if old.residual is None else np.frombuffer(old.residual, "<f4").copy()
        if old.resources is not None and isinstance(self._training.resources, MeasuredResources):
            self._training.resources.restore(old.resources)
        self._answered, self._reply = old.answered, old.reply
        if old.model is not None and old.weights is not None:
            previous = None if old.previous is None else from_bytes(old.previous, size)
            self._model = GlobalModel(old.model, from_bytes(old.weights, size), previous)
        elif self._primer:
            self._prime()

    def _prime(self) -> None:
        """Takes up the model that the server's primer ends with, as a client that never stopped has it.

        If that cannot be decoded, CS is about to withdraw it, and such a client has the one before it.
        """
        models, _ = self._authenticated(self._primer)
        for part in reversed(models):
            with suppress(ProtocolError):
                self._model = self._derive(part.model, models)
                return
