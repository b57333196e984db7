"""The central server CS: bytes in, bytes out (Fig. 4, left column).

CS adds up contributions that it cannot read. It takes a message only if it opens with the
sender's key, is signed by the sender for this federation, round and model, was asked for, and has
not come before; anything else is turned away by name, and the round goes on.
"""

import logging
from collections.abc import Iterable, Sequence

import msgspec

from dapfl.errors import ProtocolError
from dapfl.federation.ledger import Asked, RoundLedger
from dapfl.federation.lineage import Head, Lineage, SavedLineage
from dapfl.federation.messages import (
    DIGEST_BYTES,
    NO_MODEL,
    VERSION,
    Aggregate,
    Answer,
    Call,
    ClientBody,
    Context,
    Delivery,
    Initial,
    Notice,
    Refusal,
    Request,
    ServerBody,
    Signed,
    Snapshot,
    Upload,
    decode_client_body,
    decode_delivery,
    decode_sealed,
    digest,
    encode,
    sealing_context,
)
from dapfl.federation.models import (
    GlobalModel,
    Shape,
    Vector,
    commitment_of,
    from_bytes,
    is_relative,
    to_bytes,
)
from dapfl.federation.poll import UNUSABLE, Poll
from dapfl.federation.records import Rejection
from dapfl.federation.suite import Rows, ServerSuite, rows_of
from dapfl.federation.tally import Count, Tally
from dapfl.federation.training import Stopwatch
from dapfl.federation.transport import EVERYONE, SERVER, ClientId

log = logging.getLogger("dapfl.server")

# Deliveries made so far, with their hashes, by the ids of their parts (which they keep alive).
_Deliveries = dict[tuple[int, ...], tuple[tuple[Signed, ...], bytes, bytes]]


class CentralServer:
    """CS with its keys (inside `suite`) and what it has been sent."""

    def __init__(
        self,
        federation: bytes,
        suite: ServerSuite,
        shape: Shape,
        members: Sequence[ClientId],
        initial: Vector,
    ) -> None:
        self.members = frozenset(members)
        self.row_bytes = suite.row_bytes
        self.watch = Stopwatch()
        self._federation = federation
        self._suite = suite
        self._shape = shape
        self._limit = shape.upload_limit(suite.row_bytes)
        body = Initial(self._context(0, EVERYONE, NO_MODEL), to_bytes(initial))
        head = self._made(body)  # Eq. 30
        latest = GlobalModel(head.name, from_bytes(body.weights, shape.size))
        self.lineage = Lineage(is_relative(shape.codec), head, latest)
        self.acknowledged: dict[ClientId, bytes] = {}  # the last model that a client has proved to know
        self.counts: dict[ClientId, Count] = {}
        self.poll = self._new_poll()
        self.ledger = RoundLedger(-1)
        self._tallies: dict[bytes, Tally] = {}

    # Sending -----------------------------------------------------------------------------------

    def open_round(
        self,
        t: int,
        clients: Iterable[ClientId],
        *,
        ask: ClientId | None = None,
    ) -> dict[ClientId, bytes]:
        """The messages that begin round t; one client may be asked for W(t) along the way."""
        self.ledger = RoundLedger(t)
        self._tallies = {}
        call = self._signed(Call(self._context(t, EVERYONE, self.lineage.head.name)))
        messages: dict[ClientId, bytes] = {}
        made: _Deliveries = {}
        for client in clients:
            orders = [call] if client != ask else [call, self._request(t, client, whole=True)]
            for order in orders:
                kind = "call" if order is call else "request"
                self.ledger.ask(client, digest(order.body), Asked(kind, self.lineage.head.name))
            messages[client] = self._deliver(client, orders, "call", made)
        return messages

    def request_model(
        self, whole: Sequence[ClientId], witnesses: Sequence[ClientId]
    ) -> dict[ClientId, bytes]:
        """Asks some clients for the current model and others for its hash ("CS would request the global
        model to any clients", Fig. 4)."""
        t = self.ledger.round + self.ledger.closed  # once round t is over, the model is W(t+1)
        messages: dict[ClientId, bytes] = {}
        for client in (*whole, *witnesses):
            order = self._request(t, client, whole=client in whole)
            kind = "request" if client in whole else "witness"
            self.ledger.ask(client, digest(order.body), Asked(kind, self.lineage.head.name))
            messages[client] = self._deliver(client, [order], "request", {})
        return messages

    def primer(self) -> bytes:
        """All that leads to the current model, for clients that were restored without it."""
        return encode(Delivery(VERSION, tuple(self.lineage.parts(self._snapshot))))

    def _deliver(self, client: ClientId, orders: Sequence[Signed], kind: str, made: "_Deliveries") -> bytes:
        """Orders, and the models that this client needs. Equal deliveries are one object, `made` once."""
        models = self.lineage.parts_for(self.acknowledged.get(client), self._snapshot)
        parts = (*models, *orders)
        key = tuple(map(id, parts))
        if key not in made:
            message = encode(Delivery(VERSION, parts))
            made[key] = parts, message, digest(message)
        _, message, name = made[key]
        self.ledger.send(client, name, kind)
        return message

    def _snapshot(self, model: GlobalModel) -> Signed:
        """A model and the one before it, for the eyes of clients only."""
        data = to_bytes(model.weights) + (b"" if model.previous is None else to_bytes(model.previous))
        box = self._suite.seal(data, sealing_context(self._federation, SERVER))
        return self._signed(Snapshot(self._context(max(self.ledger.round, 0), EVERYONE, model.name), box))

    def _request(self, t: int, client: ClientId, *, whole: bool) -> Signed:
        return self._signed(Request(self._context(t, client, self.lineage.head.name), whole))

    def _context(self, t: int, recipient: ClientId, model: bytes) -> Context:
        return Context(VERSION, self._federation, t, SERVER, recipient, model)

    def _signed(self, body: ServerBody) -> Signed:
        encoded = encode(body)
        with self.watch.phase("sign"):
            return Signed(encoded, self._suite.sign(encoded))

    def _made(self, body: Initial | Aggregate) -> Head:
        signed = self._signed(body)
        return Head(digest(signed.body), body.context.model, signed)

    def _new_poll(self) -> Poll:
        """A poll on the head. Where CS knows the model itself, it has the first vote."""
        poll = Poll(self.lineage.head.name, quorum=min(2, len(self.members)))
        if self.lineage.is_known:
            poll.vote(SERVER, self.lineage.latest.commitment)
        return poll

    # Receiving ---------------------------------------------------------------------------------

    def receive(self, sender: ClientId, data: bytes) -> None:
        """Takes what came under a client's name, or notes why not. Never raises."""
        try:
            self._take(sender, data)
        except ProtocolError as error:
            log.info("turned away a message in the name of client %d: %s", sender, error)
            self.ledger.reject(sender, error.reason)
        except Exception:
            log.warning("a message in the name of client %d cannot be read", sender, exc_info=True)
            self.ledger.reject(sender, "internal-error")

    def _take(self, sender: ClientId, data: bytes) -> None:
        bodies = self.open(sender, data)
        for body in bodies:
            self._check_context(sender, body)
        for body in bodies:
            self._take_body(sender, body)

    def open(self, sender: ClientId, data: bytes) -> list[ClientBody]:
        """What a client has sealed and signed (Eqs 37, 38); ProtocolError if it has not."""
        with self.watch.phase("open"):
            sealed = decode_sealed(data, self._limit)
            if sender not in self.members:
                raise ProtocolError("unknown-sender", f"{sender} is not of this federation")
            if sealed.sender != sender:
                raise ProtocolError("wrong-sender", f"{sender} sends in the name of {sealed.sender}")
            context = sealing_context(self._federation, sender)
            delivery = decode_delivery(self._suite.open(sender, sealed.box, context), self._limit)  # Eq. 37
        bodies: list[ClientBody] = []
        for signed in delivery.parts:
            with self.watch.phase("verify"):
                self._suite.verify(sender, signed.body, signed.signature)  # Eq. 38
            bodies.append(decode_client_body(signed.body))
        return bodies

    def _check_context(self, sender: ClientId, body: ClientBody) -> None:
        context = body.context
        if context.federation != self._federation:
            raise ProtocolError("wrong-federation")
        if context.sender != sender:
            raise ProtocolError("wrong-sender", f"signed as {context.sender}")
        if context.recipient != SERVER:
            raise ProtocolError("wrong-recipient", f"for {context.recipient}")
        if isinstance(body, Refusal):
            return  # a client that is behind refuses in its own round; the hash says what it refuses
        last = self.ledger.round + (self.ledger.closed and isinstance(body, Answer))  # W(t+1), see above
        if not self.ledger.round <= context.round <= last:
            past = context.round < self.ledger.round
            raise ProtocolError("replayed" if past else "wrong-round", f"of round {context.round}")

    def _take_body(self, sender: ClientId, body: ClientBody) -> None:
        match body:
            case Upload():
                self._take_upload(sender, body)
            case Notice():
                asked = self.ledger.expect(sender, body.answers, "call")
                self._take_commitment(sender, body, asked)
                self._take_report(sender, body, body.outcome)
                if body.outcome == "diverged":
                    self.ledger.reject(sender, "diverged")
            case Answer():
                self._take_answer(sender, body)
            case Refusal():
                self._take_refusal(sender, body)

    def _take_upload(self, sender: ClientId, upload: Upload) -> None:
        """One more member of C(t), if its ciphertexts can be multiplied."""
        asked = self.ledger.expect(sender, upload.answers, "call")
        count = self._shape.codec.plaintext_count(self._shape.size)
        contribution = rows_of(upload.contribution, count, self._suite.row_bytes)
        with self.watch.phase("verify"):
            self._suite.check(contribution)
            samples = self._count(sender, upload.samples)
        if (
            sum(len(tally.senders) for tally in self._tallies.values())
            >= self._shape.codec.bounds.max_clients
        ):
            raise ProtocolError("cohort-full", "more contributions than a slot has room for")
        self._take_commitment(sender, upload, asked)
        self._take_report(sender, upload, "accepted")
        tally = self._tallies.setdefault(upload.commitment, Tally(self._suite))
        with self.watch.phase("aggregate"):
            tally.add(sender, contribution, samples)

    def _count(self, sender: ClientId, data: bytes) -> Rows:
        """ε₁(|D_i|). Once a client is counted in an aggregate, the hash of its proof stands for it."""
        if len(data) == DIGEST_BYTES:
            known = self.counts.get(sender)
            if known is None or known.digest != data:
                raise ProtocolError("unknown-count", f"client {sender} refers to a proof that it never sent")
        else:
            row = self._suite.check_count(sender, data)
            known = self.counts[sender] = Count(digest(data), row.tobytes())
        return rows_of(known.ciphertext, 1, self._suite.row_bytes)

    def _take_answer(self, sender: ClientId, answer: Answer) -> None:
        asked = self.ledger.expect(sender, answer.answers, "request", "witness")
        weights = None
        if asked.kind == "request":
            weights = from_bytes(answer.weights, self._shape.size)
            if commitment_of(weights) != answer.commitment:
                raise ProtocolError("model-mismatch", "weights that are not what they are said to be")
        elif answer.weights:
            raise ProtocolError("wrong-size", "weights from a client that was asked for their hash")
        self._take_commitment(sender, answer, asked)
        if weights is not None:
            self.poll.weights.setdefault(answer.commitment, weights)

    def _take_commitment(self, sender: ClientId, body: Upload | Notice | Answer, asked: Asked) -> None:
        if body.context.model != asked.model or body.context.model != self.lineage.head.name:
            raise ProtocolError("wrong-model", "about another model than the one it was asked about")
        self.ledger.take(sender, body.answers)
        self.acknowledged[sender] = body.context.model
        self.poll.vote(sender, body.commitment)

    def _take_report(self, sender: ClientId, body: Upload | Notice, status: str) -> None:
        self.ledger.status[sender] = status
        if body.report is not None:
            self.ledger.reports[sender] = body.report
            refused = (Rejection(sender, reason, at="client") for reason in body.report.refused)
            self.ledger.rejections.extend(refused)

    def _take_refusal(self, sender: ClientId, refusal: Refusal) -> None:
        kind = self.ledger.take_refusal(sender, refusal.answers)
        if kind == "call":
            self.ledger.status.setdefault(sender, f"failed:{refusal.reason}")
        if refusal.reason in UNUSABLE:
            self.poll.refusals.add(sender)
        elif refusal.reason == "unknown-model":
            self.acknowledged.pop(sender, None)

    # Deciding ----------------------------------------------------------------------------------

    def settle_model(self) -> Vector | None:
        """The weights of the current model, once enough clients agree on them; whoever does not is noted."""
        if not self.lineage.is_known:
            weights = self.poll.model
            if weights is None:
                return None
            for client in self.poll.dissenters:
                self._note_mismatch(client)
            self.lineage.learn(weights)
        return self.lineage.latest.weights

    def withdraw(self) -> bool:
        """Goes back to the model before, if clients find that the last aggregate is none."""
        if not self.poll.unusable or not self.lineage.withdraw():
            return False
        self.poll = self._new_poll()
        return True

    def _note_mismatch(self, client: ClientId) -> None:
        noted = Rejection(client, "model-mismatch")
        if client != SERVER and noted not in self.ledger.rejections:
            self.ledger.rejections.append(noted)

    def _mark(self, clients: Iterable[ClientId], status: str) -> None:
        self.ledger.status.update(dict.fromkeys(clients, status))

    def aggregate(self) -> tuple[ClientId, ...]:
        """Makes and signs Ω_CS(t) out of the contributions of C(t) (Eqs 39, 40) and returns C(t).

        C(t) is empty, and the model stays, if fewer than the minimum cohort are legitimate, or if clients do
        not agree on the model that they start from: then nobody can say whose contribution is wrong.
        """
        agreed, least = self.poll.agreed, self._shape.min_cohort
        if agreed is None:
            senders = [client for tally in self._tallies.values() for client in tally.senders]
            self._mark(senders, "failed:min-cohort" if len(senders) < least else "failed:no-agreement")
            return ()
        for commitment, tally in self._tallies.items():
            if commitment != agreed:
                for client in tally.senders:
                    self._note_mismatch(client)
                self._mark(tally.senders, "rejected:model-mismatch")
        legitimate = self._tallies.get(agreed, Tally(self._suite))
        cohort = tuple(sorted(legitimate.senders))
        if len(cohort) < least:
            self._mark(cohort, "failed:min-cohort")
            return ()
        with self.watch.phase("aggregate"):
            contributions, samples = legitimate.contributions().tobytes(), legitimate.counts().tobytes()
        context = self._context(self.ledger.round, EVERYONE, self.lineage.head.name)
        omega = self._made(Aggregate(context, cohort, contributions, samples))  # Eqs 39, 40
        self.lineage.advance(omega)
        self._tallies = {}
        self.poll = self._new_poll()
        return cohort

    # Remembering -------------------------------------------------------------------------------

    def state(self) -> bytes:
        """What CS goes on from after the round that is closed now."""
        return msgspec.msgpack.encode(
            _State(
                federation=self._federation,
                round=self.ledger.round,
                lineage=self.lineage.state(),
                acknowledged=self.acknowledged,
                counts=self.counts,
                commitments=self.poll.commitments,
            )
        )

    def restore(self, state: bytes) -> None:
        """Goes on from what `state` gave."""
        try:
            old = msgspec.msgpack.decode(state, type=_State)
        except msgspec.MsgspecError:
            raise ProtocolError("bad-state", "the saved state of the server is damaged") from None
        if old.federation != self._federation:
            raise ProtocolError("bad-state", "this is the state of another federation: its keys do not fit")
        self.ledger = RoundLedger(old.round, closed=True)
        self.lineage.restore(old.lineage, self._shape.size)
        self.acknowledged, self.counts = old.acknowledged, old.counts
        self.poll = self._new_poll()
        self.poll.commitments.update(old.commitments)


class _State(msgspec.Struct, frozen=True):
    """What the server must not forget."""

    federation: bytes
    round: int
    lineage: SavedLineage
    acknowledged: dict[ClientId, bytes]
    counts: dict[ClientId, Count]
    commitments: dict[ClientId, bytes]
