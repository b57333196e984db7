"""What CS receives: nothing is looked at before it is opened, verified and known to be for CS, now."""

from collections.abc import Sequence

from dapfl.errors import ProtocolError
from dapfl.federation.messages import (
    ClientBody,
    Delivery,
    RecoveryAnswer,
    Refusal,
    Signed,
    associated_data,
    decode_client_body,
    decode_delivery,
    decode_sealed,
)
from dapfl.federation.protection.base import ServerSuite
from dapfl.federation.server_state.round_ledger import RoundLedger
from dapfl.federation.transport import SERVER, ClientId
from dapfl.system.stopwatch import Stopwatch

Opened = list[tuple[Signed, ClientBody]] | ProtocolError
"""What a message holds, as signed and as read, or why it is rejected."""


class Incoming:
    """Opens and verifies what comes in the name of a member."""

    def __init__(
        self,
        federation: bytes,
        run: bytes,
        suite: ServerSuite,
        members: frozenset[ClientId],
        limit: int,
        watch: Stopwatch,
    ) -> None:
        self.run = run
        self.suite = suite
        self.members = members
        self.roster = 0
        self._federation = federation
        self._limit = limit
        self._watch = watch

    def open(self, sender: ClientId, data: bytes) -> list[tuple[Signed, ClientBody]]:
        """What a client has sealed and signed (Eqs 37, 38), as signed and as read; ProtocolError if not."""
        (opened,) = self.open_each([(sender, data)])
        if isinstance(opened, ProtocolError):
            raise opened
        return opened

    def open_each(self, messages: Sequence[tuple[ClientId, bytes]]) -> list[Opened]:
        """What `open` returns or raises for each message. What they have in common is done in one go."""
        results: list[Opened] = [[] for _ in messages]
        with self._watch.phase("open"):
            deliveries = self._deliveries(messages, results)
        parts = [(index, signed) for index, delivery in deliveries.items() for signed in delivery.parts]
        with self._watch.phase("verify"):
            problems = self.suite.verify_each(
                [(messages[index][0], signed.body, signed.signature) for index, signed in parts]  # Eq. 38
            )
        for (index, signed), problem in zip(parts, problems, strict=True):
            bodies = results[index]
            if isinstance(bodies, ProtocolError):
                continue
            try:
                if problem is not None:
                    raise problem
                bodies.append((signed, decode_client_body(signed.body, in_place=True)))
            except ProtocolError as error:
                results[index] = error
        return results

    def _deliveries(
        self, messages: Sequence[tuple[ClientId, bytes]], results: list[Opened]
    ) -> dict[int, Delivery]:
        """The deliveries in the messages that open; what is wrong with the others goes into `results`."""
        sealed: dict[int, tuple[ClientId, bytes, bytes]] = {}
        for index, (sender, data) in enumerate(messages):
            try:
                sealed[index] = (sender, self._box(sender, data), associated_data(self._federation, sender))
            except ProtocolError as error:
                results[index] = error
        deliveries: dict[int, Delivery] = {}
        for index, opened in zip(sealed, self.suite.open_each(list(sealed.values())), strict=True):  # Eq. 37
            try:
                if isinstance(opened, ProtocolError):
                    raise opened
                deliveries[index] = decode_delivery(opened, self._limit, in_place=True)
            except ProtocolError as error:
                results[index] = error
        return deliveries

    def _box(self, sender: ClientId, data: bytes) -> bytes:
        sealed = decode_sealed(data, self._limit)
        if sender not in self.members:
            raise ProtocolError("unknown-sender", f"{sender} is not a member of this federation")
        if sealed.sender != sender:
            raise ProtocolError("wrong-sender", f"{sender} sends in the name of {sealed.sender}")
        return sealed.box

    def check(self, sender: ClientId, bodies: Sequence[ClientBody], ledger: RoundLedger) -> None:
        """ProtocolError unless all bodies are from this sender to CS, in this federation and round."""
        for body in bodies:
            context = body.context
            if context.federation != self._federation:
                raise ProtocolError("wrong-federation")
            if context.sender != sender:
                raise ProtocolError("wrong-sender", f"signed as {context.sender}")
            if context.recipient != SERVER:
                raise ProtocolError("wrong-recipient", f"for {context.recipient}")
            if isinstance(body, Refusal):
                continue  # a client that is behind refuses in its own run and round; the hash says what
            if context.run != self.run:
                raise ProtocolError("wrong-run", "of another run with the same keys")
            if context.roster != self.roster:
                raise ProtocolError("old-roster", f"under roster {context.roster}")
            last = ledger.model_round if isinstance(body, RecoveryAnswer) else ledger.round
            if not ledger.round <= context.round <= last:
                past = context.round < ledger.round
                raise ProtocolError("replayed" if past else "wrong-round", f"of round {context.round}")
