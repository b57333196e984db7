"""The central server CS: bytes in, bytes out (Fig. 4, left column).

CS adds up contributions that it cannot read. It takes a message only if it opens with the sender's key, is
signed by the sender for this federation, round and model, was asked for, and has not come before. Anything
else is rejected with a reason, and the round goes on.
"""

import logging
from collections.abc import Mapping, Sequence

from dapfl.arrays import Rows, Vector
from dapfl.errors import ProtocolError
from dapfl.federation.global_model.models import GlobalModel, from_bytes, to_bytes
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.global_model.recovery import RecoveryBuilder
from dapfl.federation.global_model.shared_decryption import SharedDecryption
from dapfl.federation.keys.run_id import new_run_id
from dapfl.federation.messages import (
    DIGEST_BYTES,
    NO_MODEL,
    VERSION,
    Aggregate,
    Call,
    ClientBody,
    Context,
    Delivery,
    Initial,
    Notice,
    Order,
    Proposal,
    Refusal,
    Report,
    Request,
    ServerBody,
    Signed,
    Upload,
    contribution_binding,
    decode_report,
    digest,
    encode,
    order_kind,
)
from dapfl.federation.protection.base import ServerSuite, rows_of
from dapfl.federation.records import Rejection, Status
from dapfl.federation.server.incoming import Incoming, Opened
from dapfl.federation.server.outgoing import Deliveries, KnownRoster, Outgoing
from dapfl.federation.server_state.memory import ServerMemory
from dapfl.federation.server_state.model_history import ModelHistory
from dapfl.federation.server_state.partial_sum import Count, PartialSum
from dapfl.federation.server_state.round_ledger import RoundLedger, SentOrder
from dapfl.federation.transport import EVERYONE, ClientId
from dapfl.system.stopwatch import Stopwatch

log = logging.getLogger("dapfl.server")

_UNREADABLE = (
    "a message in the name of client %d is refused as internal-error: a defect of Dap-FL, please report it"
)

_SignedOrder = tuple[SentOrder, Signed]


class CentralServer:
    """CS with its keys (inside `suite`) and what it has been sent."""

    def __init__(
        self,
        federation: bytes,
        suite: ServerSuite,
        parameters: PublicParameters,
        members: Sequence[ClientId],
        initial: Vector,
        *,
        recovery: RecoveryBuilder = SharedDecryption,
        run: bytes | None = None,
        roster: KnownRoster | None = None,
    ) -> None:
        """`run` is the id of the run; a fresh one unless told otherwise. `roster` is the newest one, in a
        federation whose clients have changed."""
        run = new_run_id() if run is None else run
        self.row_bytes = suite.row_bytes
        self._federation = federation
        self._suite = suite
        self._parameters = parameters
        self._watch = Stopwatch()
        self._outgoing = Outgoing(federation, run, suite, self._watch)
        limit = parameters.upload_limit(suite.row_bytes)
        self._incoming = Incoming(federation, run, suite, frozenset(members), limit, self._watch)
        self._outgoing.roster, self._incoming.roster = roster, roster.serial if roster else 0
        body = Initial(self._outgoing.context(0, EVERYONE, NO_MODEL), to_bytes(initial))
        head = self._outgoing.head(body)  # Eq. 30
        latest = parameters.initial_model(head.name, from_bytes(body.weights, parameters.size))
        history = ModelHistory(parameters.relative, head, latest)
        self.memory = ServerMemory(history, roster=self._incoming.roster)
        self.recovery = recovery(parameters, self.memory, len(members))
        self._partial_sums: dict[bytes, PartialSum] = {}  # by the model that their contributions start from

    @property
    def run(self) -> bytes:
        """The id of this run: what was signed in another run of the federation is not taken."""
        return self._outgoing.run

    @property
    def roster(self) -> int:
        """The serial of the roster under which the federation works; 0 until its clients change."""
        return self.memory.roster

    @property
    def knows_model(self) -> bool:
        """Whether CS knows the current model, and could seal it anew."""
        return self.memory.history.is_known

    def renew(
        self,
        roster: KnownRoster,
        suite: ServerSuite,
        members: Sequence[ClientId],
        recovery: RecoveryBuilder,
    ) -> None:
        """From now on these are the members and the keys. CS must know the current model."""
        self.memory.renew(roster.serial)
        self._suite = self._outgoing.suite = self._incoming.suite = suite
        self._outgoing.roster, self._incoming.roster = roster, roster.serial
        self._incoming.members = frozenset(members)
        self.recovery = recovery(self._parameters, self.memory, len(members))

    @property
    def min_cohort(self) -> int:
        """The fewest contributions that are aggregated."""
        return self._parameters.min_cohort

    @property
    def round(self) -> int:
        """The round that is open or was closed last."""
        return self.memory.ledger.round

    @property
    def rejections(self) -> Sequence[Rejection]:
        """What has been rejected since the round was opened."""
        return self.memory.ledger.rejections

    @property
    def weights(self) -> Vector:
        """The last global model that CS knows."""
        return self.memory.history.latest.weights

    @property
    def may_defer_recovery(self) -> bool:
        """Whether a round may begin before CS knows the model that it starts from."""
        return self.recovery.deferrable

    @property
    def decrypted_by(self) -> tuple[ClientId, ...]:
        """The clients that have decrypted the last aggregate together, where a committee does."""
        return self.recovery.decrypted_by

    def lap(self) -> dict[str, float]:
        """The seconds that CS has worked since it was last asked, phase by phase."""
        return self._watch.lap()

    # Sending -----------------------------------------------------------------------------------

    def open_round(
        self, t: int, clients: Sequence[ClientId], *, ask: ClientId | None = None
    ) -> dict[ClientId, bytes]:
        """The messages that begin round t; one client may be asked for W(t) along with its call."""
        self.memory.ledger = RoundLedger(t, tuple(clients))
        self._partial_sums = {}
        call = self._order(Call(self.context(EVERYONE)))
        deliveries = Deliveries()
        messages: dict[ClientId, bytes] = {}
        for client in clients:
            orders = [call]
            if client == ask:
                orders.append(self._order(Request(self._address(client), whole=True)))
            messages[client] = self._deliver(client, orders, "call", deliveries)
        return messages

    def request_model(self, clients: Sequence[ClientId]) -> dict[ClientId, bytes]:
        """The next messages by which CS tries to get to know the current model ("CS would request the global
        model to any clients", Fig. 4); none if CS knows it or there is no one left to ask among `clients`."""
        deliveries, messages = Deliveries(), dict[ClientId, bytes]()
        signed: dict[int, tuple[SentOrder, Signed]] = {}  # what several clients are asked is signed once
        with self._watch.phase("recover"):
            requests = self.recovery.requests(clients, self._address)
        for client, request in requests.items():
            if id(request) not in signed:
                signed[id(request)] = self._order(request, deliveries)
            kind = "proposal" if isinstance(request, Proposal) else "request"
            messages[client] = self._deliver(client, [signed[id(request)]], kind, deliveries)
        return messages

    def signed(self, body: ServerBody) -> Signed:
        """A body with the signature of CS."""
        return self._outgoing.sign(body)

    def context(self, recipient: ClientId) -> Context:
        """What a message of this round about the current model is bound to."""
        return self._outgoing.context(self.round, recipient, self.memory.history.head.name)

    def primer(self) -> bytes:
        """Everything that leads to the current model, for clients that were restored without it."""
        return encode(Delivery(VERSION, tuple(self.recovery.parts_for(None, self._seal))))

    def _deliver(
        self, client: ClientId, orders: Sequence[_SignedOrder], kind: str, deliveries: Deliveries
    ) -> bytes:
        """Orders, and the models that this client needs to obey them."""
        ledger = self.memory.ledger
        for order, signed in orders:
            ledger.note_order(client, digest(signed.body), order)
        known = self.memory.acknowledged.get(client)
        models = self._outgoing.membership(self.round) if known is None else []
        if kind != "proposal":  # a member need not have the model that the proposal is about
            models = models + self.recovery.parts_for(known, self._seal)
        message, name = deliveries.pack([*models, *(signed for _, signed in orders)])
        ledger.note_delivery(client, name, kind)
        return message

    def _order(self, body: Order, deliveries: Deliveries | None = None) -> _SignedOrder:
        order = SentOrder(order_kind(body), body.context.model)
        if isinstance(body, Proposal) and deliveries is not None:
            signed, shared = self._outgoing.propose(body, deliveries)
            self.recovery.hold(shared)
            return order, signed
        return order, self._outgoing.sign(body)

    def _seal(self, model: GlobalModel, cohort: tuple[ClientId, ...] = ()) -> Signed:
        return self._outgoing.snapshot(max(self.round, 0), model, cohort)

    def _address(self, client: ClientId) -> Context:
        return self._outgoing.context(self.memory.ledger.model_round, client, self.memory.history.head.name)

    # Receiving ---------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """How many messages CS opens in about the time of one."""
        return self._suite.batch

    def receive(self, sender: ClientId, data: bytes) -> None:
        """Takes what came in the name of a client, or notes why it is rejected. Never raises."""
        (opened,) = self.open_each([(sender, data)])
        self.take(sender, opened)

    def open_each(self, messages: Sequence[tuple[ClientId, bytes]]) -> list[Opened]:
        """Opens and verifies messages, in any order: nothing is taken yet. Never raises."""
        try:
            return self._incoming.open_each(messages)
        except Exception:
            if len(messages) > 1:  # nobody's message may spoil another's
                return [opened for each in messages for opened in self.open_each([each])]
            log.warning(_UNREADABLE, messages[0][0], exc_info=True)
            return [ProtocolError("internal-error")]

    def take(self, sender: ClientId, opened: Opened) -> None:
        """Takes what `open_each` has opened, or notes why it is rejected. Never raises."""
        try:
            if isinstance(opened, ProtocolError):
                raise opened
            self._incoming.check(sender, [body for _, body in opened], self.memory.ledger)
            for signed, body in opened:
                self._take(sender, body, signed)
        except ProtocolError as error:
            log.info("rejected a message in the name of client %d: %s", sender, error)
            self.memory.ledger.reject(sender, error.reason)
        except Exception:
            log.warning(_UNREADABLE, sender, exc_info=True)
            self.memory.ledger.reject(sender, "internal-error")

    def note_failures(self, failures: Mapping[ClientId, str]) -> None:
        """These clients could not be reached in the open round, for these reasons."""
        for client, reason in failures.items():
            self.memory.ledger.fail(client, reason)

    def open(self, sender: ClientId, data: bytes) -> list[ClientBody]:
        """What a client has sealed and signed (Eqs 37, 38); ProtocolError if it has not."""
        return [body for _, body in self.opened(sender, data)]

    def opened(self, sender: ClientId, data: bytes) -> list[tuple[Signed, ClientBody]]:
        """The same, as signed and as read."""
        return self._incoming.open(sender, data)

    def _take(self, sender: ClientId, body: ClientBody, signed: Signed) -> None:
        match body:
            case Upload():
                self._take_upload(sender, body, signed)
            case Report():
                self.memory.ledger.expect_report(sender, body.answers)
                self._take_report(sender, body.report)
            case Notice():
                order = self.memory.ledger.expect(sender, body.answers, "call")
                self._take_commitment(sender, body, order)
                self.memory.ledger.status[sender] = Status(body.outcome)
                self._take_report(sender, body.report)
                if body.outcome == "diverged":
                    self.memory.ledger.reject(sender, "diverged")
            case Refusal():
                self._take_refusal(sender, body)
            case _:
                self.recovery.take_answer(sender, body)

    def _take_upload(self, sender: ClientId, upload: Upload, signed: Signed) -> None:
        """One more member of C(t), if its ciphertexts can be multiplied."""
        ledger, parameters = self.memory.ledger, self._parameters
        order = ledger.expect(sender, upload.answers, "call")
        with self._watch.phase("verify"):
            binding = contribution_binding(upload.context)
            contribution = self._suite.check_contribution(
                upload.contribution, parameters.contribution_rows, binding
            )
            count = self._count(sender, upload.sample_count)
        most = parameters.codec.bounds.max_clients
        if sum(len(each.senders) for each in self._partial_sums.values()) >= most:
            raise ProtocolError("cohort-full", "more contributions than a slot has room for")
        self._take_commitment(sender, upload, order)
        ledger.status[sender] = Status.ACCEPTED
        self._take_report(sender, upload.report)
        if self.recovery.needs_evidence:
            ledger.keep(sender, signed)
        partial_sum = self._partial_sums.setdefault(upload.commitment, PartialSum(self._suite))
        with self._watch.phase("aggregate"):
            partial_sum.add(sender, contribution, count)

    def _count(self, sender: ClientId, data: bytes) -> Rows:
        """ε₁(|D_i|). Once a client is counted in an aggregate, the hash of its proof stands for it."""
        counts = self.memory.counts
        if len(data) == DIGEST_BYTES:
            known = counts.get(sender)
            if known is None or known.digest != data:
                raise ProtocolError("unknown-count", f"client {sender} refers to a proof that it never sent")
        else:
            row = self._suite.check_count(sender, data)
            shown = data if self.recovery.needs_evidence else b""
            known = counts[sender] = Count(digest(data), row.tobytes(), shown)
        return rows_of(known.ciphertext, 1, self.row_bytes)

    def _take_commitment(self, sender: ClientId, body: Upload | Notice, order: SentOrder) -> None:
        self.memory.answer(sender, body, order)
        self.recovery.take_commitment(sender, body.commitment)

    def _take_report(self, sender: ClientId, data: bytes) -> None:
        """Takes a report, or drops it by name: the contribution that it comes with is as good without it."""
        ledger = self.memory.ledger
        try:
            report = decode_report(data) if data else None
        except ProtocolError as error:
            ledger.reject(sender, error.reason)
            return
        if report is not None:
            ledger.reports[sender] = report
            ledger.rejections.extend(Rejection(sender, reason, at="client") for reason in report.refused)

    def _take_refusal(self, sender: ClientId, refusal: Refusal) -> None:
        kind = self.memory.ledger.take_refusal(sender, refusal.answers)
        if kind == "call":
            self.memory.ledger.fail(sender, refusal.reason)
        if refusal.reason in ("unknown-model", "unknown-roster"):
            self.memory.acknowledged.pop(sender, None)
        self.recovery.take_refusal(sender, refusal.reason)

    # Deciding ----------------------------------------------------------------------------------

    def aggregate(self) -> tuple[ClientId, ...]:
        """Makes and signs Ω_CS(t) out of the contributions of C(t) (Eqs 39, 40) and returns C(t).

        C(t) is empty, and the model stays, if fewer than the minimum cohort are legitimate, or if clients do
        not agree on the model that they start from: then nobody can say whose contribution is wrong.
        """
        ledger, history, least = self.memory.ledger, self.memory.history, self._parameters.min_cohort
        agreed = self.recovery.commitment
        if agreed is None:
            senders = [client for each in self._partial_sums.values() for client in each.senders]
            reason = "min-cohort" if len(senders) < least else "no-agreement"
            ledger.mark(senders, Status.FAILED.because(reason))
            return ()
        for commitment, partial_sum in self._partial_sums.items():
            if commitment != agreed:
                for client in partial_sum.senders:
                    ledger.note_mismatch(client)
                ledger.mark(partial_sum.senders, Status.REJECTED.because("model-mismatch"))
        legitimate = self._partial_sums.get(agreed, PartialSum(self._suite))
        cohort = tuple(sorted(legitimate.senders))
        if len(cohort) < least:
            ledger.mark(cohort, Status.FAILED.because("min-cohort"))
            return ()
        with self._watch.phase("aggregate"):
            contributions, counts = legitimate.contributions().tobytes(), legitimate.counts().tobytes()
        context = self._outgoing.context(ledger.round, EVERYONE, history.head.name)
        omega = self._outgoing.head(Aggregate(context, cohort, contributions, counts))  # Eqs 39, 40
        history.advance(omega)
        self._partial_sums = {}
        ledger.cohort = cohort
        self.recovery.begin()
        ledger.evidence.clear()  # large, and in the proposal now
        return cohort

    def close_round(self) -> RoundLedger:
        """Ends the open round and returns what happened in it."""
        self.memory.ledger.close()
        return self.memory.ledger

    def recovered(self) -> Vector | None:
        """The weights of the current model, if CS knows them."""
        return self.memory.history.latest.weights if self.recovery.settle() else None

    def withdraw(self) -> str | None:
        """Goes back to the model before, and says why, if the last aggregate turns out to make no model."""
        reason = self.recovery.failure
        if reason is None or not self.memory.history.withdraw():
            return None
        self.recovery.begin()
        return reason

    # Saving ------------------------------------------------------------------------------------

    def saved_state(self) -> bytes:
        """What `restore` goes on from, after the round that is closed now."""
        return self.memory.saved_state(self._federation, self.run, self.recovery.saved_state())

    def restore(self, state: bytes) -> None:
        """Goes on from a saved state."""
        run, recovery = self.memory.restore(state, self._federation, self._parameters.size)
        if self.memory.roster != self._incoming.roster:
            raise ProtocolError("bad-state", f"the saved state is of roster {self.memory.roster}")
        wanted = len(self._parameters.step.initial_memory(self._parameters.size))
        if len(self.memory.history.latest.memory) != wanted:
            raise ProtocolError(
                "bad-state", "it was saved by a dapfl with another server step: start a new run"
            )
        self._outgoing.run = self._incoming.run = run
        self.recovery.restore(recovery)
