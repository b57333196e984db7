"""The records of rounds: the lines of rounds.jsonl.

Values that are not known are null: a client that shares no report, a round without a model to
score. A number that is not finite is null as well, since JSON has no way to write it.
"""

from enum import StrEnum
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta, Struct

# What a client may report: finite numbers whose sums cannot overflow, and plain words that no terminal or
# browser takes for anything else.
LARGEST = 1e30
Real = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
NonNegative = Annotated[float, Meta(ge=0, le=LARGEST)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Amount = Annotated[int, Meta(ge=0, lt=2**31)]
Word = Annotated[str, Meta(pattern=r"^[\w .:/+-]{1,64}\Z")]
Reason = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,64}\Z")]
ClientPhase = Literal["open", "evaluate", "agent", "train", "encode", "encrypt"]
Metric = Real | Annotated[list[Real], Meta(max_length=256)] | None


class Status(StrEnum):
    """What became of a client in a round.

    A client is `rejected` if a message came from it and was refused, and `failed` if nothing came or nothing
    could be done with it. These two give a reason; in JSON it follows the kind.

    >>> late = Status.FAILED.because("late")
    >>> late.kind is Status.FAILED, late.reason, str(late)
    (True, 'late', 'failed:late')
    >>> Status("failed:late") == late, Status("accepted").reason
    (True, '')
    """

    ACCEPTED = "accepted"
    OVER_BUDGET = "over-budget"
    DIVERGED = "diverged"
    REJECTED = "rejected"
    FAILED = "failed"
    UNSELECTED = "unselected"

    def because(self, reason: str) -> "Status":
        """A rejection or failure with its reason."""
        return Status(f"{self.kind.value}:{reason}")

    @property
    def kind(self) -> "Status":
        """The status without its reason."""
        return Status[self.name]

    @property
    def reason(self) -> str:
        """Why a client was rejected or failed, or an empty text."""
        return self.value.partition(":")[2]

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """A status with a reason. (This is where msgspec looks when it decodes one.)"""
        kind, colon, _ = str(value).partition(":")
        if not colon or kind not in (cls.REJECTED.value, cls.FAILED.value):
            return None
        status = str.__new__(cls, value)
        status._name_, status._value_ = cls(kind).name, str(value)
        return status


class ClientReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client tells the server about its round, sealed and signed, if it shares reports.

    `outcome` is what became of its training; `refused` lists the reasons why this client has refused
    messages since its last report; `seconds` is measured by the client, phase by phase; `state` is loss,
    accuracy and F1. The types say all that CS lets into its records: see `messages.decode_report`.
    """

    outcome: Literal["trained", "over-budget", "diverged"]
    capability: NonNegative | None = None
    samples: Amount | None = None
    eta: NonNegative | None = None
    alpha: Amount | None = None
    planned_alpha: Amount | None = None
    batch_size: Amount | None = None
    lambda_: Real | None = None
    budget: NonNegative | None = None
    cost: NonNegative | None = None
    epoch_cost: NonNegative | None = None
    transfer_cost: NonNegative | None = None
    reward: Real | None = None
    reward_parts: Annotated[dict[Word, Real | None], Meta(max_length=32)] | None = None
    state: tuple[Real | None, Real | None, Real | None] | None = None
    critic_loss: Real | None = None
    actor_loss: Real | None = None
    q: Real | None = None
    local_loss: Real | None = None
    deferred: Amount | None = None
    metrics: Annotated[dict[Word, Metric], Meta(max_length=32)] | None = None
    unit: NonNegative | None = None
    epochs: Amount = 0
    trial_epochs: Amount = 0
    repeats: Amount = 0
    software: Word | None = None
    seconds: dict[ClientPhase, Seconds] = {}
    refused: Annotated[tuple[Reason, ...], Meta(max_length=16)] = ()


class ClientRecord(Struct, frozen=True, kw_only=True):
    """One client in one round, as the server knows it.

    `accuracy` is that of W(t+1) on test samples like the client's own; `state` is what the client itself
    found of W(t) on its training samples.
    """

    id: int
    status: Status
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
    unit: float | None = None  # the η that the client found by trials; its agent chooses multiples of it
    trial_epochs: int | None = None  # of the epochs that trials took
    repeats: int | None = None  # how often training was repeated, before the contribution was made
    software: str | None = None  # the version of dapfl on the client's device
    accuracy: float | None = None
    metrics: dict[str, Metric] | None = None  # what else the client's training tells of itself

    @classmethod
    def of(cls, client: int, status: Status, report: ClientReport | None) -> "ClientRecord":
        """The record of a client with what it reported, if it reported anything."""
        if report is None:
            return cls(id=client, status=status)
        known = {name: getattr(report, name) for name in cls.__struct_fields__ if hasattr(report, name)}
        return cls(id=client, status=status, **known)


class Rejection(Struct, frozen=True, omit_defaults=True):
    """One message that was refused, at CS or at a client.

    `client` is the client that a message to CS named as its sender, or the client that refused a message.
    """

    client: int
    reason: str
    at: Literal["server", "client"] = "server"


class RoundRecord(Struct, frozen=True, kw_only=True):
    """One line of rounds.jsonl: round t, with loss, accuracy and F1 of the model W(t+1) it made.

    `participants` counts the contributions inside W(t+1) and `cohort` names their senders, C(t);
    `violations` counts plans that cost more than the budget; `epochs` is all work done by the
    clients, of which `wasted_epochs` were for lost contributions; `simulated_seconds` is the slowest client's
    cost, cut off at its budget, where costs are simulated. `worst_accuracy` is the mean accuracy of
    the tenth of the clients that W(t+1) serves worst, and `accuracy_spread` the standard deviation of the
    accuracy over all clients.
    `decrypted_by` names the members of a committee whose shares have decrypted the sums, if there is one.
    `roster` is the serial of the roster, where clients have come or gone.
    """

    round: int
    loss: float | None = None
    accuracy: float | None = None
    f1: float | None = None
    worst_accuracy: float | None = None
    accuracy_spread: float | None = None
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
    decrypted_by: tuple[int, ...] = ()
    roster: int = 0
    seconds: dict[str, float] = {}
    metrics: dict[str, float | None] = {}  # of W(t+1), by the task's own measures
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
