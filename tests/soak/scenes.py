"""Federations in the middle of a round, for hostile messages: real ones to start from, and their victims.

A victim that has taken a message is another one afterwards. So each message meets a copy of the federation
as it was, or the same one, if nothing has changed.
"""

import copy
import copyreg
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from dapfl.federation.client import Client
from dapfl.federation.messages import Signed, associated_data, decode_delivery, decode_sealed
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.transport import ClientId
from tests.federation.small import Dropping, Recording, Small, insecure_keys

Name = Literal["shared", "shared-compact", "committee"]
Moment = Literal["called", "asked"]
SCENES: tuple[tuple[Name, Moment], ...] = (
    ("shared", "called"),
    ("committee", "called"),
    ("shared-compact", "called"),
    ("shared", "asked"),
    ("committee", "asked"),
    ("shared-compact", "asked"),
)
KEY_BITS, FULL_BITS = 256, 2048  # small keys take a fiftieth of the time, and the same code
BEHIND = 3  # this client has missed rounds, and gets more than the others


# Participants hold views of the messages that they have taken; a copy of one has bytes of its own.
copyreg.pickle(memoryview, lambda view: (memoryview, (bytes(view),)))  # type: ignore[arg-type]


@dataclass
class Scene:
    """A federation that waits: CS has called its clients, or asked them for the model.

    `fresh` are the messages that are due now: to clients, and to CS. `old` are those of earlier rounds.
    """

    small: Small
    fresh_down: dict[ClientId, bytes]
    fresh_up: dict[ClientId, bytes]
    old_down: list[tuple[ClientId, bytes]]
    old_up: list[tuple[ClientId, bytes]]
    server: CentralServer
    clients: dict[ClientId, Client]

    def __post_init__(self) -> None:
        self._server, self._clients = self.server, self.clients
        self.state = self.server.saved_state()
        self.server, self.clients = self._copy(self._server), dict(self._clients)
        for client in self.clients:
            self.forget(client)
        assert self.small.keys is not None
        server, bundles = self.small.keys
        own = [bundle for _, bundle in sorted(bundles.items())]
        self.keys = [server.pk_cs_enc, server.sk_cs_sign.public_key]
        self.keys += [key for bundle in own for key in (bundle.pk_i_enc, bundle.sk_i_sign.public_key)]
        self.server_suite = self.small.server_suite()
        self.client_suite = cache(self.small.client_suite)
        self.parts_of = cache(self._parts_of)

    def forget_server(self) -> None:
        """CS is again as it was."""
        self.server = self._copy(self._server)

    def forget(self, client: ClientId) -> None:
        """The client is again as it was."""
        self.clients[client] = self._copy(self._clients[client])

    def _parts_of(self, client: ClientId, message: bytes) -> tuple[Signed, ...]:
        """What a client has signed, out of its envelope."""
        data = associated_data(self.small.federation_id, client)
        opened = self.server_suite.open(client, decode_sealed(message, len(message)).box, data)
        return decode_delivery(opened, len(opened)).parts

    def _copy(self, participant: Any) -> Any:
        """A participant with the same keys and parameters, and a memory of its own."""
        keep = [participant._suite, participant._parameters, self.small.parameters]
        return copy.deepcopy(participant, {id(each): each for each in keep})


@cache
def scene(name: Name, moment: Moment, bits: int = KEY_BITS) -> Scene:
    """Four rounds, with notices and refusals among their messages, and the fifth."""
    committee = name == "committee"
    clients = 6 if committee else 4

    def lost(exchange: int, client: ClientId) -> str | None:
        return "offline" if client == BEHIND and exchange > 1 else None

    small = Small(
        clients=clients,
        decryption="committee" if committee else "shared",
        codec="compact" if name == "shared-compact" else "exact",
        budgets={1: 1.0},
        min_cohort=2 if not committee else 3,
        keys=insecure_keys(decryption="committee" if committee else "shared", bits=bits),
        wrap=lambda _, transport: Recording(Dropping(transport, lost)),
    )
    small.play(4)
    recording: Any = small.transport
    old_up = [pair for exchange in recording.replies for pair in exchange.items()]
    old_down = [pair for exchange in recording.sent for pair in exchange.items()]
    old_up.append((1, small.parts[1].handle(b"junk")))
    everyone = range(1, clients + 1)
    down = small.server.open_round(4, everyone)
    if moment == "asked":
        for client, message in down.items():
            small.server.receive(client, small.parts[client].handle(message))
        assert small.server.aggregate(), small.server.rejections
        small.server.close_round()
        down = small.server.request_model(everyone)
    before = {client: copy_of(small, part) for client, part in small.parts.items()}
    up = {client: copy_of(small, small.parts[client]).handle(message) for client, message in down.items()}
    return Scene(small, down, up, old_down, old_up, small.server, before)


def copy_of(small: Small, client: Client) -> Client:
    """A client with the same keys and a memory of its own."""
    keep = [client._suite, client._parameters]
    return copy.deepcopy(client, {id(each): each for each in keep})
