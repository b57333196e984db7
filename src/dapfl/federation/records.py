"""What a round leaves behind: the lines of rounds.jsonl.

Values that are not known are null: a client that shares no report, a round without a model to
score. A number that is not finite is null as well, since JSON has no other way to say it.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Name = Annotated[str, Meta(max_length=64)]
Amount = Annotated[int, Meta(ge=0, lt=2**31)]  # a client's word, which sums must survive
Numbers = Annotated[dict[Name, float | None], Meta(max_length=32)]


class ClientReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client tells the server about its round, sealed and signed, if it shares reports.

    `outcome` is what became of its training; `refused` names the messages that this client turned
    away since its last report; `seconds` is measured by the client, phase by phase.
    """

    outcome: Literal["trained", "over-budget", "diverged"]
    capability: float | None = None
    samples: Amount | None = None
    eta: float | None = None
    alpha: Amount | None = None
    planned_alpha: Amount | None = None
    batch_size: Amount | None = None
    lambda_: float | None = None
    budget: float | None = None
    cost: float | None = None
    epoch_cost: float | None = None
    transfer_cost: float | None = None
    reward: float | None = None
    reward_parts: Numbers | None = None
    state: Annotated[tuple[float, ...], Meta(max_length=64)] | None = None
    critic_loss: float | None = None
    actor_loss: float | None = None
    q: float | None = None
    local_loss: float | None = None
    deferred: Amount | None = None
    epochs: Amount = 0
    seconds: Numbers = {}
    refused: Annotated[tuple[Name, ...], Meta(max_length=16)] = ()


class ClientRecord(Struct, frozen=True, kw_only=True):
    """One client in one round, as the server knows it.

    `status` is ``accepted``, ``over-budget``, ``diverged``, ``unselected``, ``rejected:<reason>`` (a
    message came and was refused) or ``failed:<reason>`` (nothing came, or nothing could be done with it).
    """

    id: int
    status: str
    capability: float | None = None
    samples: int | None = None
    eta: float | None = None
    alpha: int | None = None
    planned_alpha: int | None = None
    batch_size: int | None = None
    lambda_: float | None = msgspec.field(default=None, name="lambda")
    budget: float | None = None
    cost: float | None = None
    epoch_cost: float | None = None
    transfer_cost: float | None = None
    reward: float | None = None
    reward_parts: dict[str, float | None] | None = None
    state: tuple[float | None, ...] | None = None
    critic_loss: float | None = None
    actor_loss: float | None = None
    q: float | None = None
    local_loss: float | None = None
    deferred: int | None = None  # weights of which the compact codec holds a part back for the next round

    @classmethod
    def of(cls, client: int, status: str, report: ClientReport | None) -> "ClientRecord":
        """The record of a client with what it reported, if it reported anything."""
        if report is None:
            return cls(id=client, status=status)
        known = {name: getattr(report, name) for name in cls.__struct_fields__ if hasattr(report, name)}
        return cls(id=client, status=status, **known)


class Rejection(Struct, frozen=True, omit_defaults=True):
    """One message that was refused. `at` says who refused it; `client` is whom it named as its sender
    or, at a client, who refused it."""

    client: int
    reason: str
    at: Literal["server", "client"] = "server"


class RoundRecord(Struct, frozen=True, kw_only=True):
    """One line of rounds.jsonl: round t, with loss, accuracy and F1 of the model W(t+1) it made.

    `participants` counts the contributions inside W(t+1) and `cohort` names their senders, C(t);
    `violations` counts plans that cost more than the budget; `epochs` is all work done by the
    clients, of which `wasted_epochs` came to nothing; `simulated_seconds` is the slowest client's
    cost, cut off at its budget.
    """

    round: int
    loss: float | None = None
    accuracy: float | None = None
    f1: float | None = None
    participants: int = 0
    violations: int = 0
    rejected: int = 0
    rejections: tuple[Rejection, ...] = ()
    bytes_up: int = 0
    bytes_down: int = 0
    simulated_seconds: float | None = None
    wasted_epochs: int = 0
    epochs: int = 0
    cohort: tuple[int, ...] = ()
    seconds: dict[str, float] = {}
    clients: tuple[ClientRecord, ...] = ()

    def to_json(self) -> bytes:
        """The line, without its line break.

        >>> RoundRecord(round=3, loss=float("nan")).to_json()[:22]
        b'{"round":3,"loss":null'
        """
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, line: bytes | str) -> "RoundRecord":
        """The record that `to_json` wrote."""
        return msgspec.json.decode(line, type=cls)
