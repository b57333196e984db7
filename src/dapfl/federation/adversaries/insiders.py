"""Attackers with the keys of an enrolled client."""

from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from dapfl.crypto.engines.base import to_ints, to_rows
from dapfl.errors import EncodingError
from dapfl.federation.adversaries.attacker import Attacker, Network, SeenOrder, call_in, order_in, scope_of
from dapfl.federation.messages import (
    VERSION,
    Call,
    ClientBody,
    Context,
    Delivery,
    Notice,
    Proposal,
    Sealed,
    Share,
    Signed,
    Upload,
    associated_data,
    contribution_binding,
    digest,
    encode,
)
from dapfl.federation.protection.base import ClientSuite, leading_rows
from dapfl.federation.protection.paillier import SigningClientSuite
from dapfl.federation.transport import SERVER, ClientId
from dapfl.randomness import stream


class Insider(Attacker):
    """An enrolled client, with a client's keys, that has turned malicious."""

    def __init__(self, network: Network, client: ClientId, suite: ClientSuite) -> None:
        super().__init__(network)
        self.client = client
        self.suite = suite

    def attack(self) -> None:
        """Answers the call that it was sent like everyone else."""
        call = call_in(self.network.sent.get(self.client, b""))
        if call is not None:
            self.to_server(self.client, self.sealed_reply(call, self.answer))

    def sealed_reply(
        self, order: SeenOrder[Call] | SeenOrder[Proposal], answer: Callable[[Context, bytes], ClientBody]
    ) -> bytes:
        """The answer to an order, signed and sealed like that of every client."""
        theirs = order.body.context
        context = Context(VERSION, *scope_of(theirs), self.client, SERVER, theirs.model)
        body = encode(answer(context, order.digest))
        delivery = encode(Delivery(VERSION, (Signed(body, self.suite.sign(body)),)))
        box = self.suite.seal(delivery, associated_data(theirs.federation, self.client))
        return encode(Sealed(VERSION, self.client, box))

    @abstractmethod
    def answer(self, context: Context, call: bytes) -> Upload | Notice:
        """What it sends."""

    def zeros(self, context: Context) -> bytes:
        """A contribution in the right form."""
        parameters = self.network.parameters
        rows = np.zeros((parameters.contribution_rows, parameters.codec.plaintext_bytes), np.uint8)
        return self.suite.encrypt(rows, contribution_binding(context))


class WrongSize(Insider):
    """Sends a vector of the wrong length."""

    name = "wrong-size"
    what = "an enrolled client uploads a vector of the wrong size"

    def answer(self, context: Context, call: bytes) -> Upload:
        """One number too few."""
        contribution = self.zeros(context)[: -self.suite.row_bytes]
        return Upload(context, call, digest(b"W"), contribution, self.suite.prove_count(1), b"")


class NotANumber(Insider):
    """Contributes weights that are not numbers."""

    name = "nan"
    what = "an enrolled client contributes weights that are NaN"

    def answer(self, context: Context, call: bytes) -> Upload | Notice:
        """NaN has no encoding, so it can only send a notice without a contribution."""
        parameters = self.network.parameters
        try:
            start = parameters.references(parameters.unknown_model())
            weights = np.full(start.size, np.nan, np.float32)
            rows = parameters.codec.encode(weights, 1, start).plaintexts
        except EncodingError:
            return Notice(context, call, digest(b"W"), "diverged", b"")
        contribution = self.suite.encrypt(rows, contribution_binding(context))
        return Upload(context, call, digest(b"W"), contribution, self.suite.prove_count(1), b"")


class AbsurdSize(Insider):
    """Claims to hold more samples than the federation allows, to outweigh everyone."""

    name = "absurd-size"
    what = "an enrolled client claims 10^12 samples"

    def answer(self, context: Context, call: bytes) -> Upload:
        """A valid proof in which the encryption of an absurd number replaces that of the first bit."""
        row = np.zeros((1, self.network.parameters.codec.plaintext_bytes), np.uint8)
        row[0, :5] = list((10**12).to_bytes(5, "little"))
        absurd = self.suite.encrypt(row, contribution_binding(context))[: self.suite.row_bytes]
        count = absurd + self.suite.prove_count(1)[self.suite.row_bytes :]
        return Upload(context, call, digest(b"W"), self.zeros(context), count, b"")


class Inverse(Insider):
    """Works with CS: sends the inverse of what others have sent, so that the sum holds one client alone."""

    name = "inverse"
    what = "an enrolled client contributes the inverse of what all others but one have sent"

    def answer(self, context: Context, call: bytes) -> Upload | Notice:
        """With the proof of another contribution, since it cannot prove that it knows this one."""
        server, rows = self.network.server, self.network.parameters.contribution_rows
        others = [
            body
            for client, reply in sorted(self.network.replies.items())
            for body in server.open(client, reply)
            if isinstance(body, Upload)
        ]
        if len(others) < 2:
            return Notice(context, call, digest(b"W"), "over-budget", b"")
        length, contribution = rows * server.row_bytes, self.zeros(context)
        if isinstance(self.suite, SigningClientSuite):  # else nothing is encrypted, and CS reads it anyway
            key = self.suite.pk_cs_enc
            product = key.product(
                [leading_rows(upload.contribution, rows, server.row_bytes) for upload in others[1:]]
            )
            inverses = [pow(number, -1, key.n * key.n) for number in to_ints(product)]
            contribution = to_rows(inverses, server.row_bytes).tobytes() + contribution[length:]
        return Upload(context, call, others[0].commitment, contribution, self.suite.prove_count(1), b"")


class FalseShare(Insider):
    """Is on the committee, and sends a share that decrypts nothing."""

    name = "false-share"
    what = "a member of the committee sends a false decryption share"

    def __init__(self, network: Network, client: ClientId, suite: ClientSuite) -> None:
        super().__init__(network, client, suite)
        self._judged = True

    def attack(self) -> None:
        """It trains for nobody, but serves proposals. A share is judged when CS combines it with others."""
        if not self._judged:
            reasons = [r.reason for r in self.network.server.rejections if r.client == self.client]
            self.outcomes[reasons[-1] if reasons else "ACCEPTED"] += 1
            self._judged = True
        message = self.network.sent.get(self.client, b"")
        if proposal := order_in(message, Proposal):
            self.network.server.receive(self.client, self.sealed_reply(proposal, self._share))
            self._judged = False
        elif call := call_in(message):
            self.network.server.receive(self.client, self.sealed_reply(call, self.answer))

    def answer(self, context: Context, call: bytes) -> Notice:
        """Nothing to contribute."""
        return Notice(context, call, digest(b"W"), "over-budget", b"")

    def _share(self, context: Context, proposal: bytes) -> Share:
        """Numbers of the right length."""
        length = (self.network.parameters.contribution_rows + 1) * self.suite.row_bytes // 2
        numbers = stream(context.round, "false share").bytes(length)
        return Share(context, proposal, numbers, bytes(64))


INSIDERS: dict[str, type[Insider]] = {
    kind.name: kind for kind in (WrongSize, NotANumber, AbsurdSize, Inverse, FalseShare)
}
