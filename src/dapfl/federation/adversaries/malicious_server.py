"""Attackers that are CS itself: they open every envelope and sign in its name, but hold no key to decrypt.

With decryption by every client, the paper's, they succeed. With a committee they do not.
"""

import msgspec

from dapfl.federation.adversaries.attacker import Attacker, order_in
from dapfl.federation.messages import (
    VERSION,
    Aggregate,
    Delivery,
    Proposal,
    Refusal,
    Request,
    ServerBody,
    Share,
    Signed,
    Upload,
    digest,
    encode,
)
from dapfl.federation.transport import EVERYONE, ClientId


class MaliciousServer(Attacker):
    """CS, and all that CS has been sent."""

    def deliver(self, *bodies: ServerBody) -> bytes:
        """Bodies signed in the name of CS, ready to be sent."""
        parts = tuple(self.network.server.signed(body) for body in bodies)
        return encode(Delivery(VERSION, parts))

    def uploads(self) -> dict[ClientId, tuple[Signed, Upload]]:
        """What clients have contributed in this exchange, as signed and as read."""
        found = {}
        for client, reply in self.network.replies.items():
            for signed, body in self.network.server.opened(client, reply):
                if isinstance(body, Upload):
                    found[client] = signed, body
        return found


class SubstitutedAggregate(MaliciousServer):
    """Hands out the contribution of one client as if it were the sum of many, and has it decrypted."""

    name = "substituted-aggregate"
    what = "CS has one client's contribution decrypted as an aggregate"

    def attack(self) -> None:
        """The victim is the first client whose |D_i| CS has counted before; the last client is to decrypt."""
        uploads, counts = self.uploads(), self.network.server.memory.counts
        victim = next((client for client in sorted(uploads) if client in counts), None)
        if victim is None:
            return
        signed, upload = uploads[victim]
        if self.network.parameters.committee:
            self._propose(signed, counts[victim].proof)
        else:
            self._ask(upload, counts[victim].ciphertext, max(uploads))

    def _propose(self, signed: Signed, proof: bytes) -> None:
        """To members: the victim alone, and the victim as often as there must be clients."""
        server, least = self.network.server, self.network.parameters.min_cohort
        context = server.context(EVERYONE)
        for times in (1, least):
            proposal = Proposal(context, (signed,) * times, (proof,) * times)
            for member in self.network.members[:2]:
                if member in self.network.replies:
                    self.to_client(member, self.deliver(proposal))

    def _ask(self, upload: Upload, count: bytes, helper: ClientId) -> None:
        """To a client that holds SK_CS: an aggregate of one, and a request for the model that it makes."""
        server, parameters = self.network.server, self.network.parameters
        context = server.context(EVERYONE)
        cohort = tuple(range(1, parameters.min_cohort + 1))
        contributions = upload.contribution[: parameters.contribution_rows * server.row_bytes]
        omega = Aggregate(context, cohort, contributions, count)
        model = digest(encode(omega))
        order = msgspec.structs.replace(context, recipient=helper, round=context.round + 1, model=model)
        self.to_client(helper, self.deliver(omega, Request(order, whole=True)))


class SecondProposal(MaliciousServer):
    """Has the sums over two cohorts decrypted that differ by one client, and would subtract them."""

    name = "second-proposal"
    what = "CS has a second cohort decrypted, one client smaller"

    def attack(self) -> None:
        """Shows every member another proposal than the one that is being served."""
        seen = [order_in(message, Proposal) for message in self.network.sent.values()]
        first = next((order.body for order in seen if order), None)
        if first is None:
            return
        second = Proposal(first.context, first.uploads[1:], first.counts[1:])
        shares, message = 0, self.deliver(second)
        for member in self.network.members:
            replies, failures = self.network.transport.exchange({member: message}, self.network.timeout)
            if member in failures:
                self.outcomes[failures[member]] += 1
                continue
            for body in self.network.server.open(member, replies[member]):
                shares += isinstance(body, Share)
                if isinstance(body, Refusal):
                    self.outcomes[body.reason] += 1
        if shares:  # of members that have not served the first
            enough = shares >= self.network.threshold
            self.outcomes["ACCEPTED" if enough else "too-few-shares"] += shares


MALICIOUS_SERVERS: dict[str, type[Attacker]] = {
    kind.name: kind for kind in (SubstitutedAggregate, SecondProposal)
}
