"""What CS sends: signed bodies, packed into deliveries."""

from collections.abc import Sequence
from dataclasses import dataclass

from dapfl.federation.global_model.models import GlobalModel, to_bytes
from dapfl.federation.messages import (
    NO_MODEL,
    VERSION,
    Aggregate,
    Context,
    Delivery,
    Initial,
    Membership,
    Proposal,
    ServerBody,
    Signed,
    Snapshot,
    associated_data,
    deliver_proposal,
    digest,
    encode,
    make_scope,
)
from dapfl.federation.protection.base import ServerSuite
from dapfl.federation.server_state.model_history import Head
from dapfl.federation.transport import EVERYONE, SERVER, ClientId
from dapfl.system.stopwatch import Stopwatch


@dataclass(frozen=True)
class KnownRoster:
    """A roster that the KDC has signed, as clients are sent it."""

    serial: int
    signed: bytes


class Outgoing:
    """Signs and packs in the name of CS."""

    def __init__(self, federation: bytes, run: bytes, suite: ServerSuite, watch: Stopwatch) -> None:
        self.run = run
        self.suite = suite
        self.roster: KnownRoster | None = None  # in a federation whose clients have changed
        self._membership: tuple[int, KnownRoster, list[Signed]] | None = None
        self._federation = federation
        self._watch = watch

    def context(self, t: int, recipient: ClientId, model: bytes) -> Context:
        """What a body to this recipient is bound to."""
        serial = self.roster.serial if self.roster else 0
        return Context(VERSION, make_scope(self._federation, self.run, serial), t, SERVER, recipient, model)

    def sign(self, body: ServerBody) -> Signed:
        """A body with the signature of CS (Eqs 30, 40)."""
        encoded = encode(body)
        with self._watch.phase("sign"):
            return Signed(encoded, self.suite.sign(encoded))

    def propose(self, proposal: Proposal, deliveries: "Deliveries") -> tuple[Signed, Proposal]:
        """A proposal with the signature of CS, and the same proposal; both share the memory of the delivery
        that is made of it. The one that is given is used up."""
        with self._watch.phase("sign"):
            message, signed, shared = deliver_proposal(proposal, self.suite.sign)
        deliveries.note([signed], message)
        return signed, shared

    def membership(self, t: int) -> list[Signed]:
        """The roster for clients that may not have it; nothing where clients have never changed."""
        if self.roster is None:
            return []
        if self._membership is None or self._membership[:2] != (t, self.roster):
            body = Membership(self.context(max(t, 0), EVERYONE, NO_MODEL), self.roster.signed)
            self._membership = t, self.roster, [self.sign(body)]
        return self._membership[2]

    def head(self, body: Initial | Aggregate) -> Head:
        """A body that makes a model, signed, under the model's name."""
        signed = self.sign(body)
        return Head(digest(signed.body), body.context.model, signed)

    def snapshot(self, t: int, model: GlobalModel, cohort: tuple[ClientId, ...]) -> Signed:
        """A model and the one before it, readable by clients only."""
        data = model.contents + (b"" if model.previous is None else to_bytes(model.previous))
        box = self.suite.seal(data, associated_data(self._federation, SERVER))
        return self.sign(Snapshot(self.context(t, EVERYONE, model.name), box, cohort))


class Deliveries:
    """The deliveries of one exchange: equal ones are encoded and hashed once, and are one object."""

    def __init__(self) -> None:
        # Keyed by the ids of the parts, which are kept alive here.
        self._made: dict[tuple[int, ...], tuple[tuple[Signed, ...], bytes, bytes]] = {}

    def pack(self, parts: Sequence[Signed]) -> tuple[bytes, bytes]:
        """The delivery of these parts, and its hash."""
        key = tuple(map(id, parts))
        if key not in self._made:
            self.note(parts, encode(Delivery(VERSION, tuple(parts))))
        _, message, name = self._made[key]
        return message, name

    def note(self, parts: Sequence[Signed], message: bytes) -> None:
        """The delivery of these parts is made already."""
        self._made[tuple(map(id, parts))] = tuple(parts), message, digest(message)
