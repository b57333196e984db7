"""Client c_i: bytes in, bytes out (Fig. 4, right column).

A client believes nothing that CS has not signed for this federation, this recipient and this round (see
`orders.py`), obeys each order once, and answers only in sealed, signed messages. Whatever goes wrong, only
a short reason leaves the device.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

import msgspec
import numpy as np

from dapfl.arrays import Vector
from dapfl.errors import DataError, ProtocolError
from dapfl.federation.global_model.derivation import Derivation, ModelStore, Part
from dapfl.federation.global_model.models import GlobalModel, from_bytes, view_of
from dapfl.federation.global_model.parameters import PublicParameters
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
    Proposal,
    Refusal,
    Report,
    Sealed,
    Share,
    Signed,
    Snapshot,
    Upload,
    associated_data,
    contribution_binding,
    digest,
    encode,
    make_scope,
)
from dapfl.federation.orders import Received, ReceivedOrder, check_roster, check_sequence, received
from dapfl.federation.protection.base import ClientSuite
from dapfl.federation.protection.committee import CommitteeClientSuite, proposed_sums
from dapfl.federation.training import LocalTraining, Trained
from dapfl.federation.transport import SERVER, ClientId
from dapfl.resources import MeasuredResources
from dapfl.system.stopwatch import Stopwatch
from dapfl.tuning.policy import HyperparameterPolicy

log = logging.getLogger("dapfl.client")

_DEFECT = "the traceback says whether the task, the policy or Dap-FL is at fault"

REMEMBERED_REFUSALS = 16


class _Count(msgspec.Struct, frozen=True):
    """The proof of |D_i|, which is made once, and whether the last aggregate counts this client by it."""

    samples: int
    proof: bytes
    counted: bool


class _Uploaded(NamedTuple):
    """The round of this client's last contribution, and the name of the model that it starts from."""

    round: int
    model: bytes


class _Saved(msgspec.Struct, frozen=True):
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
    memory: bytes | None = None
    run: bytes = b""
    uploaded: _Uploaded | None = None
    step_size: float | None = None
    doubtful: bool = False
    roster: bytes | None = None


def _raw(vector: Vector | None) -> bytes | None:
    """A vector as `_Saved` has it: the encoder takes a view for bytes, and spares a copy of a large model."""
    return None if vector is None else cast(bytes, view_of(vector))


class Client:
    """One participant with its keys (inside `suite`), its data and its agent (inside `training`).

    `standalone` is for a client on a device of its own: its saved state then includes the global model and
    its last reply, so that a server that asks again after a crash gets the same answer again. `new_policy`
    makes the policy with which it begins another run. `enrol` verifies a roster, and returns its serial and
    what this client does with the keys of it; there is none in a federation whose clients never change.
    `software` is the version that it reports.
    """

    def __init__(
        self,
        client: ClientId,
        federation: bytes,
        suite: ClientSuite,
        parameters: PublicParameters,
        training: LocalTraining,
        store: ModelStore,
        *,
        share_reports: bool = True,
        standalone: bool = False,
        primer: bytes = b"",
        new_policy: Callable[[], HyperparameterPolicy] | None = None,
        enrol: "Callable[[bytes], tuple[int, ClientSuite]] | None" = None,
        software: str | None = None,
    ) -> None:
        self.id = client
        self._federation = federation
        self._suite = suite
        self._parameters = parameters
        self._training = training
        self._store = store
        self._share_reports = share_reports
        self._standalone = standalone
        self._primer = primer
        self._new_policy = new_policy
        self._enrol = enrol
        self._software = software
        self._roster: bytes | None = None  # the newest that it has seen, as the KDC has signed it
        self._roster_serial = 0
        self._run = b""  # the run that this client takes part in: the latest that CS has called it to
        self._model: GlobalModel | None = None
        self._latest: dict[str, int] = {}  # the last round in which an order of each kind was taken
        self._refused: list[str] = []  # since the last report
        self._faulty = False  # whether its data have been found unusable
        self._uploaded: _Uploaded | None = None  # until it is known what became of it
        self._count: _Count | None = None
        self._answered: bytes | None = None  # the hash of the last orders that were answered
        self._reply: bytes | None = None
        self._doubtful = False  # whether it may have served a proposal that it does not remember

    def handle(self, message: bytes) -> bytes:
        """The reply to a message. Never raises."""
        try:
            return self._answer(message)
        except ProtocolError as error:
            log.info("client %d refused a message: %s", self.id, error)
            self._remember_refusal(error.reason)
            reason = error.reason
        except DataError as error:
            if not self._faulty:  # once: it will be called in every round
                log.warning("client %d cannot take part: %s", self.id, error)
            self._faulty = True
            reason = "bad-data"  # a fault of its own, and no message that was refused
        except Exception:
            log.warning("client %d could not answer a message: " + _DEFECT, self.id, exc_info=True)
            self._remember_refusal("internal-error")
            reason = "internal-error"
        try:
            return self._refuse(reason, message)
        except Exception:
            log.warning("client %d could not even refuse one: " + _DEFECT, self.id, exc_info=True)
            return b""

    def record_transfer(self, seconds: float) -> None:
        """Notes how long the engine took to carry a message to or from this client's device."""
        if isinstance(self._training.resources, MeasuredResources):
            self._training.resources.record_transfer(seconds)

    def doubt_memory(self) -> None:
        """The state that it was restored from is not its last one: it may have served a proposal since.

        From then on it serves none, since it could be the second of a round. Only an empty state, which its
        owner makes when no run is going on, ends that.
        """
        self._doubtful = True

    def prepare(self) -> bool:
        """Does a little of the next round's work while this device waits; whether there was any to do."""
        return self._suite.prepare(self._parameters.contribution_rows)

    # Receiving ---------------------------------------------------------------------------------

    def _answer(self, message: bytes) -> bytes:
        watch = Stopwatch()
        with watch.phase("open"):
            delivery = self._open(message)
            models, orders = delivery.models, delivery.orders
            if not orders:
                raise ProtocolError("malformed", "a delivery that asks for nothing")
            self._enter(delivery.run)
            for roster in delivery.rosters:
                self._adopt(roster)
            check_roster(orders, self._roster_serial)
            answered = digest(b"".join(order.digest for order in orders))
            if answered == self._answered and self._reply is not None:
                return self._reply  # CS asks again after a crash: the same answer, and nothing is done twice
            check_sequence(orders, self._latest)
            first = orders[0].body
            if not isinstance(first, Proposal):
                self._model = self._derive(first.context.model, models)
                self._notice_cohort(models)
                self._notice_loss(first.context, models)
        replies = [reply for order in orders for reply in self._obey(order, watch)]
        for order in orders:
            self._latest[order.kind] = order.body.context.round
        sealed = self._seal(replies)
        if self._standalone:
            self._answered, self._reply = answered, sealed
        return sealed

    def _open(self, message: bytes) -> Received:
        """What is in a delivery; all signed by CS for this client (Eqs 31, 41)."""
        limit = self._parameters.delivery_limit(self._suite.row_bytes)
        return received(self._store.opened(message, limit, self._suite), self._federation, self.id)

    def _enter(self, run: bytes) -> None:
        """Takes part in a later run as if there had been none before; never goes back to an earlier one."""
        if run < self._run:
            raise ProtocolError("old-run", "of a run that is over")
        if run == self._run:
            return
        if self._run or self._latest:
            self._model, self._latest, self._answered, self._reply = None, {}, None, None
            self._uploaded = None
            self._training.residual = self._training.learner.step_size = None
            if self._count is not None:
                self._count = msgspec.structs.replace(self._count, counted=False)
            if self._new_policy is not None:
                self._training.policy = self._new_policy()
        self._run = run

    def _adopt(self, signed: bytes) -> None:
        """Goes over to a newer roster that the KDC has signed, and to the keys that it brings."""
        if self._enrol is None:
            raise ProtocolError("bad-roster", "in a federation whose clients never change")
        serial, suite = self._enrol(signed)
        if serial < self._roster_serial:
            raise ProtocolError("old-roster", f"{serial}, where this client has {self._roster_serial}")
        if serial > self._roster_serial:
            self._suite, self._roster, self._roster_serial = suite, signed, serial
            self._count = None  # its proof is of use under the old key only

    def _derive(self, name: bytes, models: Sequence[Part]) -> GlobalModel:
        return Derivation(self._parameters, self._suite, self._store, self._model).model(name, models)

    def _notice_cohort(self, models: Sequence[Part]) -> None:
        """Looks up whether CS has taken this client's last contribution, and so knows its count."""
        for part in models:
            if isinstance(part.body, Aggregate | Snapshot) and part.body.cohort and self._count is not None:
                self._count = msgspec.structs.replace(self._count, counted=self.id in part.body.cohort)

    def _notice_loss(self, asked: Context, models: Sequence[Part]) -> None:
        """Says in the log of this device if its last contribution is not in the model that came of it."""
        if self._uploaded is None or asked.round <= self._uploaded.round:
            return
        t, start = self._uploaded
        self._uploaded = None
        cohorts = [
            p.body.cohort for p in models if isinstance(p.body, Aggregate | Snapshot) and p.body.cohort
        ]
        if asked.model == start:
            log.info("client %d: round %d made no new model, and its contribution is lost", self.id, t)
        elif cohorts and self.id not in cohorts[-1]:
            log.info(
                "client %d: its contribution to round %d is not in the model: CS refused it, or it came too "
                "late (rounds.jsonl on the server says why)",
                self.id,
                t,
            )

    # Acting ------------------------------------------------------------------------------------

    def _obey(self, order: ReceivedOrder, watch: Stopwatch) -> list[ClientBody]:
        context = self._context(order.body.context.round, order.body.context.model)
        if isinstance(order.body, Proposal):
            return [self._decryption_share(order.body, order.digest, context)]
        model = self._model
        assert model is not None, "an order is obeyed only once the model that it is about is known"
        if isinstance(order.body, Call):
            return self._take_part(order, model, context, watch)
        # "c_i would upload the global model to CS after verifying the legality of the request."
        weights = model.contents if order.body.whole else b""
        return [Answer(context, order.digest, model.commitment, weights)]

    def _take_part(
        self, order: ReceivedOrder, model: GlobalModel, context: Context, watch: Stopwatch
    ) -> list[ClientBody]:
        trained = self._training.run(order.body.context.round, model, watch)
        contribution = trained.contribution
        if isinstance(contribution, str):
            report = self._report(trained, watch)
            return [Notice(context, order.digest, model.commitment, contribution, report)]
        with watch.phase("encrypt"):
            weighted = self._suite.encrypt(contribution, contribution_binding(context))  # Eq. 33
            count = self._proved_count()  # ε₁(|D_i|), Eq. 33
        self._uploaded = _Uploaded(order.body.context.round, model.name)
        report = self._report(trained, watch)
        if not (report and self._parameters.committee):
            return [Upload(context, order.digest, model.commitment, weighted, count, report)]  # Eq. 34
        # Members see uploads, and reports are for CS only.
        upload = Upload(context, order.digest, model.commitment, weighted, count, b"")
        return [upload, Report(context, order.digest, report)]

    def _decryption_share(self, proposal: Proposal, name: bytes, context: Context) -> Share:
        """This member's part in the decryption of a proposal that it has checked."""
        suite, parameters = self._suite, self._parameters
        if not isinstance(suite, CommitteeClientSuite):
            raise ProtocolError("not-a-member", "a proposal, in a federation without a committee")
        if self._doubtful:
            raise ProtocolError("lost-state", "this member may have served another proposal of this round")
        sums = self._store.sums(
            name,
            lambda: proposed_sums(
                proposal, name, suite.checks, parameters.contribution_rows, parameters.min_cohort
            ),
        )
        numbers, proof = suite.decryption_share(sums, name)
        return Share(context, name, numbers, proof)

    def _proved_count(self) -> bytes:
        """ε₁(|D_i|) with its proof; the hash of it, once CS has counted this client by it."""
        count = self._training.learner.sample_count
        if self._count is None or self._count.samples != count:
            self._count = _Count(count, self._suite.prove_count(count), counted=False)
        return digest(self._count.proof) if self._count.counted else self._count.proof

    def _report(self, trained: Trained, watch: Stopwatch) -> bytes:
        """What this client tells about its round, if it shares that."""
        if not self._share_reports:
            return b""
        refused, self._refused = tuple(self._refused), []
        more = {"seconds": dict(watch.seconds), "refused": refused, "software": self._software}
        return encode(msgspec.structs.replace(trained.report, **more))

    def _remember_refusal(self, reason: str) -> None:
        if len(self._refused) < REMEMBERED_REFUSALS:
            self._refused.append(reason)

    def _refuse(self, reason: str, message: bytes) -> bytes:
        name = self._model.name if self._model is not None else NO_MODEL
        context = self._context(max(self._latest.values(), default=0), name)
        return self._seal([Refusal(context, digest(message), reason)])

    def _context(self, t: int, model: bytes) -> Context:
        scope = make_scope(self._federation, self._run, self._roster_serial)
        return Context(VERSION, scope, t, self.id, SERVER, model)

    def _seal(self, bodies: list[ClientBody]) -> bytes:
        """Signs the bodies (Eq. 35) and seals them together (Eq. 36); lets go of each copy after the next."""
        encoded = [encode(body) for body in bodies]
        bodies.clear()
        delivery = encode(Delivery(VERSION, tuple(map(Signed, encoded, self._suite.sign_each(encoded)))))
        del encoded
        box = self._suite.seal(delivery, associated_data(self._federation, self.id))
        del delivery
        return encode(Sealed(VERSION, self.id, box))

    # Saving -------------------------------------------------------------------------------

    def saved_state(self) -> bytes:
        """Everything needed to go on later exactly as now (but for the model, unless standalone)."""
        training, model = self._training, self._model if self._standalone else None
        measured = training.resources if isinstance(training.resources, MeasuredResources) else None
        return msgspec.msgpack.encode(
            _Saved(
                client=self.id,
                latest=self._latest,
                refused=self._refused,
                count=self._count,
                policy=training.policy.saved_state(),
                residual=_raw(training.residual),
                resources=None if measured is None else measured.saved_state(),
                model=None if model is None else model.name,
                weights=None if model is None else _raw(model.weights),
                previous=None if model is None else _raw(model.previous),
                answered=self._answered,
                reply=self._reply,
                memory=None if model is None else _raw(model.memory),
                run=self._run,
                uploaded=self._uploaded,
                step_size=training.learner.step_size,
                doubtful=self._doubtful,
                roster=self._roster,
            )
        )

    def restore(self, state: bytes) -> None:
        """Goes on from a saved state."""
        try:
            old = msgspec.msgpack.decode(state, type=_Saved)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ProtocolError("bad-state", f"the saved state of client {self.id} is damaged") from None
        if old.client != self.id:
            raise ProtocolError("bad-state", f"this is the state of client {old.client}, not {self.id}")
        size = self._parameters.size
        self._run = old.run
        if old.roster is not None:
            self._adopt(old.roster)
        self._latest = dict(old.latest)
        self._refused = list(old.refused)
        self._count = old.count
        self._training.policy.restore(old.policy)
        self._training.residual = None if old.residual is None else np.frombuffer(old.residual, "<f4").copy()
        self._training.learner.step_size = old.step_size
        if old.resources is not None and isinstance(self._training.resources, MeasuredResources):
            self._training.resources.restore(old.resources)
        self._answered, self._reply = old.answered, old.reply
        self._uploaded = old.uploaded
        self._doubtful = old.doubtful
        if old.model is not None and old.weights is not None:
            previous = None if old.previous is None else from_bytes(old.previous, size)
            memory = from_bytes(old.memory or b"", len(old.memory or b"") // 4)
            self._model = GlobalModel(old.model, from_bytes(old.weights, size), previous, memory)
        elif self._primer:
            self._prime()

    def _prime(self) -> None:
        """Derives the model that the server's primer ends with: a client that never stopped has it, too.

        If it does not decode, CS is about to withdraw it. Then such a client still has the one before.
        """
        models = self._open(self._primer).models
        for part in reversed(models):
            with suppress(ProtocolError):
                self._model = self._derive(part.model, models)
                return
