"""How a client gets from what CS has signed to the global model.

All clients of a federation get the same broadcast and can read the same models. So clients that share a
process share one `ModelStore`: what one of them has verified and decrypted, the others need not do again.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dapfl.arrays import Rows
from dapfl.errors import ProtocolError
from dapfl.federation.global_model.averaging import check_cohort, next_model
from dapfl.federation.global_model.models import GlobalModel, from_bytes
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.messages import (
    Aggregate,
    Initial,
    ServerBody,
    Signed,
    Snapshot,
    associated_data,
    decode_delivery,
    decode_server_body,
    digest,
)
from dapfl.federation.protection.base import ClientSuite, rows_of
from dapfl.federation.transport import SERVER

Value = TypeVar("Value")


@dataclass(frozen=True)
class Part:
    """A body that CS has signed, and the hash that names it."""

    digest: bytes
    body: ServerBody

    @property
    def model(self) -> bytes:
        """The name of the model that this part makes. (No model is named like an order.)"""
        return self.body.context.model if isinstance(self.body, Snapshot) else self.digest


class ModelStore:
    """What this process has already verified and derived.

    All of it may be large, and waits in memory while a client trains: so the latest of each is kept only,
    and the parts of a delivery are views of the message.
    """

    def __init__(self) -> None:
        self._models: Latest[GlobalModel] = Latest(1)
        self._verified_names: Latest[bytes] = Latest(4)
        self._deliveries: Latest[tuple[Part, ...]] = Latest(1)
        self._sums: Latest[Rows] = Latest(1)

    def opened(self, message: bytes, limit: int, suite: ClientSuite) -> tuple[Part, ...]:
        """The parts of a delivery; a broadcast to many clients of this process is opened once."""

        def open_() -> tuple[Part, ...]:
            return self._verified(decode_delivery(message, limit, in_place=True).parts, suite)

        return self._deliveries.get(message, open_)

    def _verified(self, parts: Sequence[Signed], suite: ClientSuite) -> tuple[Part, ...]:
        """What CS has signed (Eqs 31, 41); nothing is decoded before the signatures are verified."""
        digests = [digest(signed.body) for signed in parts]
        names = [name + signed.signature for name, signed in zip(digests, parts, strict=True)]
        new = {
            name: signed
            for name, signed in zip(names, parts, strict=True)
            if self._verified_names.find(name) is None
        }
        suite.verify([(signed.body, signed.signature) for signed in new.values()])
        for name in new:
            self._verified_names.put(name, name)
        return tuple(
            Part(name, decode_server_body(signed.body, in_place=True))
            for name, signed in zip(digests, parts, strict=True)
        )

    def known(self, name: bytes) -> GlobalModel | None:
        """The model of that name, if this process has just derived it."""
        return self._models.find(name)

    def derived(self, model: GlobalModel) -> GlobalModel:
        """The same model, which others of this process need not derive again."""
        self._models.put(model.name, model)
        return model

    def sums(self, proposal: bytes, check: Callable[[], Rows]) -> Rows:
        """The sums of the proposal of that name, checked if this process has not just done so."""
        return self._sums.get(proposal, check)


class Latest(Generic[Value]):
    """Remembers the few values that were used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[bytes, Value] = OrderedDict()

    def get(self, key: bytes, make: Callable[[], Value]) -> Value:
        """The value under this key, made if it is not remembered. A failed attempt leaves nothing."""
        value = self.find(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def find(self, key: bytes) -> Value | None:
        """The value under this key, if it is remembered."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: bytes, value: Value) -> None:
        """Remembers a value."""
        self._values[key] = value
        while len(self._values) > self._most:
            self._values.popitem(last=False)


@dataclass(frozen=True)
class Derivation:
    """How the models of a delivery follow from each other and from the model that a client has."""

    parameters: PublicParameters
    suite: ClientSuite
    store: ModelStore
    known: GlobalModel | None

    def model(self, name: bytes, parts: Sequence[Part]) -> GlobalModel:
        """The model called `name`: the one the client has, or the one that the signed parts make."""
        if self.known is not None and self.known.name == name:
            return self.known
        for part in parts:
            if part.model == name:
                return self.store.known(name) or self.store.derived(self._made(name, part.body, parts))
        raise ProtocolError("unknown-model", "nothing in this delivery leads to the model it is about")

    def _made(self, name: bytes, body: ServerBody, parts: Sequence[Part]) -> GlobalModel:
        match body:
            case Initial():
                return self._initial(name, body)
            case Snapshot():
                return self._opened(body)
            case Aggregate():
                current: GlobalModel | None = None
                if self.parameters.relative:
                    # Each aggregate builds on the model before it. A part is used once, so even a chain that
                    # leads back to itself comes to an end.
                    others = [part for part in parts if part.body is not body]
                    current = self.model(body.context.model, others)
                return self._decrypted(name, body, current)
            case _:
                raise ProtocolError("malformed", "an order in the place of a model")

    def _initial(self, name: bytes, initial: Initial) -> GlobalModel:
        return self.parameters.initial_model(name, from_bytes(initial.weights, self.parameters.size))

    def _opened(self, snapshot: Snapshot) -> GlobalModel:
        data = self.suite.unseal(snapshot.box, associated_data(snapshot.context.federation, SERVER))
        length = self.parameters.contents_bytes
        weights, memory = self.parameters.read_contents(data[:length])
        previous = from_bytes(data[length:], self.parameters.size) if len(data) > length else None
        return GlobalModel(snapshot.context.model, weights, previous, memory)

    def _decrypted(self, name: bytes, omega: Aggregate, current: GlobalModel | None) -> GlobalModel:
        """W(t+1) out of Ω_CS(t): Eqs 42 to 44."""
        check_cohort(omega.cohort, self.parameters)
        rows, width = self.parameters.contribution_rows, self.suite.row_bytes
        sums = self.suite.decrypt(rows_of(omega.contributions, rows, width))  # Eq. 42
        count = self.suite.decrypt(rows_of(omega.sample_count, 1, width))  # Eq. 43
        return next_model(name, len(omega.cohort), sums, count, current, self.parameters)
