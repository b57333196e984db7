"""What a client accepts from CS: parts that are meant for it, and orders that it has not obeyed yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dapfl.errors import ProtocolError
from dapfl.federation.global_model.derivation import Part
from dapfl.federation.messages import FEDERATION_BYTES, Context, Order, Proposal, order_kind
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


def received(
    parts: Sequence[Part], federation: bytes, client: ClientId
) -> tuple[list[Part], list[ReceivedOrder]]:
    """The models and the orders among verified parts; ProtocolError if one is not for this client."""
    models: list[Part] = []
    orders: list[ReceivedOrder] = []
    for part in parts:
        _check_context(part.body.context, federation, client)
        if isinstance(part.body, Order):
            orders.append(ReceivedOrder(part.body, part.digest))
        else:
            models.append(part)
    return models, orders


def _check_context(context: Context, federation: bytes, client: ClientId) -> None:
    if context.federation[:FEDERATION_BYTES] != federation:
        raise ProtocolError("wrong-federation")
    if context.sender != SERVER:
        raise ProtocolError("wrong-sender", "not from CS")
    if context.recipient not in (EVERYONE, client):
        raise ProtocolError("wrong-recipient", f"for {context.recipient}, not for {client}")


def run_of(models: Sequence[Part], orders: Sequence[ReceivedOrder]) -> bytes:
    """The run that all parts of a delivery belong to; ProtocolError if they are of different runs."""
    contexts = [part.body.context for part in models] + [order.body.context for order in orders]
    runs = {context.federation[FEDERATION_BYTES:] for context in contexts}
    if len(runs) != 1:
        raise ProtocolError("malformed", "parts of different runs")
    return runs.pop()


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
