"""What CS sends: signed bodies, packed into deliveries."""

from collections.abc import Sequence

from dapfl.federation.global_model.models import GlobalModel, to_bytes
from dapfl.federation.messages import (
    VERSION,
    Aggregate,
    Context,
    Delivery,
    Initial,
    ServerBody,
    Signed,
    Snapshot,
    associated_data,
    digest,
    encode,
)
from dapfl.federation.protection.base import ServerSuite
from dapfl.federation.server_state.model_history import Head
from dapfl.federation.stopwatch import Stopwatch
from dapfl.federation.transport import EVERYONE, SERVER, ClientId


class Outgoing:
    """Signs and packs in the name of CS."""

    def __init__(self, federation: bytes, run: bytes, suite: ServerSuite, watch: Stopwatch) -> None:
        self.run = run
        self._federation = federation
        self._suite = suite
        self._watch = watch

    def context(self, t: int, recipient: ClientId, model: bytes) -> Context:
        """What a body to this recipient is bound to."""
        return Context(VERSION, self._federation + self.run, t, SERVER, recipient, model)

    def sign(self, body: ServerBody) -> Signed:
        """A body with the signature of CS (Eqs 30, 40)."""
        encoded = encode(body)
        with self._watch.phase("sign"):
            return Signed(encoded, self._suite.sign(encoded))

    def head(self, body: Initial | Aggregate) -> Head:
        """A body that makes a model, signed, under the model's name."""
        signed = self.sign(body)
        return Head(digest(signed.body), body.context.model, signed)

    def snapshot(self, t: int, model: GlobalModel, cohort: tuple[ClientId, ...]) -> Signed:
        """A model and the one before it, readable by clients only."""
        data = model.contents + (b"" if model.previous is None else to_bytes(model.previous))
        box = self._suite.seal(data, associated_data(self._federation, SERVER))
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
            message = encode(Delivery(VERSION, tuple(parts)))
            self._made[key] = tuple(parts), message, digest(message)
        _, message, name = self._made[key]
        return message, name
