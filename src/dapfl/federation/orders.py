"""What a client accepts from CS: parts that are meant for it, and orders that it has not obeyed yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dapfl.errors import ProtocolError
from dapfl.federation.global_model.derivation import Part
from dapfl.federation.messages import Context, Membership, Order, Proposal, order_kind
from dapfl.federation.transport import EVERYONE, SERVER, ClientId


@dataclass(frozen=True)
class ReceivedOrder:
    """An order, and the hash of its signed body, which the reply names."""

    body: Order
    digest: bytes

    @property
    def kind(self) -> str:
        """Orders of one kind are obeyed in the order of their rounds."""
        return order_kind(self.body)


@dataclass(frozen=True)
class Received:
    """What a delivery holds: models, orders, and rosters."""

    models: list[Part]
    orders: list[ReceivedOrder]
    rosters: list[bytes]
    run: bytes


def received(parts: Sequence[Part], federation: bytes, client: ClientId) -> Received:
    """What verified parts hold; ProtocolError if one is not for this client or is of another run."""
    models: list[Part] = []
    orders: list[ReceivedOrder] = []
    rosters: list[bytes] = []
    runs: set[bytes] = set()
    for part in parts:
        body = part.body
        _check_context(body.context, federation, client)
        runs.add(body.context.run)
        if isinstance(body, Order):
            orders.append(ReceivedOrder(body, part.digest))
        elif isinstance(body, Membership):
            rosters.append(body.roster)
        else:
            models.append(part)
    if len(runs) != 1:
        raise ProtocolError("malformed", "parts of different runs")
    return Received(models, orders, rosters, runs.pop())


def _check_context(context: Context, federation: bytes, client: ClientId) -> None:
    if context.federation != federation:
        raise ProtocolError("wrong-federation")
    if context.sender != SERVER:
        raise ProtocolError("wrong-sender", "not from CS")
    if context.recipient not in (EVERYONE, client):
        raise ProtocolError("wrong-recipient", f"for {context.recipient}, not for {client}")


def check_roster(orders: Sequence[ReceivedOrder], serial: int) -> None:
    """ProtocolError unless orders are given under the roster with this serial, which the client has."""
    for order in orders:
        theirs = order.body.context.roster
        if theirs != serial:
            reason = "old-roster" if theirs < serial else "unknown-roster"
            raise ProtocolError(reason, f"under roster {theirs}, where this client has {serial}")


def check_sequence(orders: Sequence[ReceivedOrder], latest: Mapping[str, int]) -> None:
    """ProtocolError unless each kind comes once, later than its `latest` round, and all name one model."""
    if len({order.kind for order in orders}) < len(orders):
        raise ProtocolError("duplicate", "two orders of one kind")
    if len({order.body.context.model for order in orders}) > 1:
        raise ProtocolError("malformed", "orders about different models")
    if len(orders) > 1 and any(isinstance(order.body, Proposal) for order in orders):
        raise ProtocolError("malformed", "a proposal among other orders")
    for order in orders:
        if order.body.context.round <= latest.get(order.kind, -1):
            raise ProtocolError("replayed", f"{order.kind} of round {order.body.context.round}")
