"""A federation whose CS asks members of the committee for whatever it likes."""

import msgspec

from dapfl.federation.messages import (
    VERSION,
    Context,
    Delivery,
    Proposal,
    Refusal,
    Signed,
    Upload,
    encode,
)
from dapfl.federation.transport import EVERYONE, SERVER
from tests.federation.small import Small


class Attack:
    """A federation after the uploads of round 0, with everything that CS has."""

    def __init__(self) -> None:
        self.small = Small(clients=6, decryption="committee", min_cohort=4)
        server = self.small.server
        calls = server.open_round(0, range(1, 7))
        self.uploads: dict[int, Signed] = {}
        self.counts: dict[int, bytes] = {}
        for client, call in calls.items():
            (signed, upload), *_ = server._incoming.open(client, self.small.parts[client].handle(call))
            assert isinstance(upload, Upload)
            self.uploads[client], self.counts[client] = signed, upload.sample_count
        self.model = server.memory.history.head.name

    def context(self, t: int = 0) -> Context:
        return Context(VERSION, self.small.scope, t, SERVER, EVERYONE, self.model)

    def proposal(self, clients, t: int = 0) -> Proposal:
        uploads = tuple(self.uploads[client] for client in clients)
        return Proposal(self.context(t), uploads, tuple(self.counts[client] for client in clients))

    def ask(self, member: int, *orders) -> object:
        """What a member answers to orders that CS has signed."""
        bodies = [encode(order) for order in orders]
        suite = self.small.server_suite()
        parts = tuple(Signed(body, suite.sign(body)) for body in bodies)
        reply = self.small.parts[member].handle(encode(Delivery(VERSION, parts)))
        body, *_ = self.small.server.open(member, reply)
        return body

    def refusal(self, member: int, *orders) -> str:
        answer = self.ask(member, *orders)
        assert isinstance(answer, Refusal)
        return answer.reason

    def signed_by(self, client: int, upload: Upload) -> Signed:
        body = encode(upload)
        return Signed(body, self.small.client_suite(client).sign(body))

    def upload(self, client: int) -> Upload:
        return msgspec.msgpack.decode(self.uploads[client].body, type=Upload)
