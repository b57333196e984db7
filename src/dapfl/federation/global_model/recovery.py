"""The recovery of W(t+1): who decrypts the aggregate Ω_CS(t), and how everyone else gets the model.

CS alone cannot decrypt an aggregate. With the paper's shared key every client can, and CS asks for the
result (`SharedDecryption`). Another way is another class with these methods; `participants.recovery_of`
chooses one. What such a class needs of clients, it asks for in orders: CS signs and delivers them, and
hands it the answers that pass verification.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from dapfl.federation.global_model.models import GlobalModel
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.messages import Context, Proposal, RecoveryAnswer, RecoveryOrder, Signed
from dapfl.federation.server_state.memory import ServerMemory
from dapfl.federation.transport import ClientId

Address = Callable[[ClientId], Context]
"""Makes the context of a message to one client about the current model."""


class Seal(Protocol):
    """Makes a snapshot of a model that only clients can read, signed by CS."""

    def __call__(self, model: GlobalModel, cohort: tuple[ClientId, ...] = ()) -> Signed:
        """`cohort` is the C(t) that made the model, where clients do not see the aggregate."""


class ModelRecovery(Protocol):
    """How the model that an aggregate makes becomes known."""

    @property
    def deferrable(self) -> bool:
        """Whether the next round may begin before CS knows the model that it starts from."""

    @property
    def needs_evidence(self) -> bool:
        """Whether CS must keep the uploads of a round as the clients have signed them."""

    def begin(self) -> None:
        """The head of the history is a new model, or the one before it again."""

    # What CS sends

    def parts_for(self, known: bytes | None, seal: Seal) -> list[Signed]:
        """What a client needs to have the current model, given the name of the model that it has."""

    def requests(self, clients: Sequence[ClientId], address: Address) -> dict[ClientId, RecoveryOrder]:
        """Whom to ask for what in the next exchange; nobody if the model is known or all were asked."""

    def hold(self, proposal: Proposal) -> None:
        """This is the proposal among the requests, in the memory of the message that carries it: it takes the
        place of the one that was returned."""

    # What CS receives

    def take_answer(self, sender: ClientId, answer: RecoveryAnswer) -> None:
        """The answer to a request; ProtocolError if it cannot be right."""

    def take_commitment(self, sender: ClientId, commitment: bytes) -> None:
        """A client has signed that this is the hash of the current model."""

    def take_refusal(self, sender: ClientId, reason: str) -> None:
        """A client refuses a delivery that has led to the current model."""

    # What follows

    def settle(self) -> bool:
        """Adds the current model to the history, if it has become known; returns whether it is known now."""

    @property
    def commitment(self) -> bytes | None:
        """The hash of the current model as far as CS can be sure of it: only contributions that start from
        this model are added up."""

    @property
    def failure(self) -> str | None:
        """Why the last aggregate makes no model, if that is certain: CS then goes back to the one before.
        It is the reason in the status of the clients whose contributions are lost."""

    @property
    def decrypted_by(self) -> tuple[ClientId, ...]:
        """The members of a committee that have decrypted the last aggregate; empty without a committee."""

    # What survives a crash

    def saved_state(self) -> bytes:
        """What `restore` goes on from, encoded by msgpack."""

    def restore(self, state: bytes) -> None:
        """Goes on from a saved state, after the history has been restored."""


RecoveryBuilder = Callable[[PublicParameters, ServerMemory, int], ModelRecovery]
"""Builds the recovery of a server, given what it remembers and the number of its members."""
