"""Attackers with the keys of an enrolled client."""

from abc import abstractmethod

import numpy as np

from dapfl.errors import EncodingError
from dapfl.federation.attacker import Attacker, Field, call_in, scope_of
from dapfl.federation.messages import (
    VERSION,
    Context,
    Delivery,
    Notice,
    Sealed,
    Signed,
    Upload,
    digest,
    encode,
    sealing_context,
)
from dapfl.federation.suite import ClientSuite
from dapfl.federation.transport import SERVER, ClientId


class Insider(Attacker):
    """An enrolled client with the keys of one, gone bad."""

    def __init__(self, field_: Field, client: ClientId, suite: ClientSuite) -> None:
        super().__init__(field_)
        self.client = client
        self.suite = suite

    def attack(self) -> None:
        """Answers the call that it was sent like everyone else."""
        call = call_in(self.field.sent.get(self.client, b""))
        if call is None:
            return
        context = Context(VERSION, *scope_of(call.body.context), self.client, SERVER, call.body.context.model)
        body = encode(self.answer(context, call.digest))
        delivery = encode(Delivery(VERSION, (Signed(body, self.suite.sign(body)),)))
        box = self.suite.seal(delivery, sealing_context(call.body.context.federation, self.client))
        self.to_server(self.client, encode(Sealed(VERSION, self.client, box)))

    @abstractmethod
    def answer(self, context: Context, call: bytes) -> Upload | Notice:
        """What it sends."""

    def zeros(self) -> bytes:
        """A contribution in the right form."""
        codec = self.field.shape.codec
        rows = np.zeros((codec.plaintext_count(self.field.shape.size), codec.plaintext_bytes), np.uint8)
        return self.suite.encrypt(rows).tobytes()


class WrongSize(Insider):
    """Sends a vector of the wrong length."""

    name = "wrong-size"
    what = "an enrolled client uploads a vector of the wrong size"

    def answer(self, context: Context, call: bytes) -> Upload:
        """One number too few."""
        contribution = self.zeros()[: -self.suite.row_bytes]
        return Upload(context, call, digest(b"W"), contribution, self.suite.prove_count(1), None)


class NotANumber(Insider):
    """Has trained until its weights are no numbers."""

    name = "nan"
    what = "an enrolled client contributes weights that are NaN"

    def answer(self, context: Context, call: bytes) -> Upload | Notice:
        """NaN has no encoding, so all that it can send is a notice without a contribution."""
        shape = self.field.shape
        try:
            weights = np.full(shape.size, np.nan, np.float32)
            rows = shape.codec.encode(weights, 1, shape.context(None)).plaintexts
        except EncodingError:
            return Notice(context, call, digest(b"W"), "diverged", None)
        contribution = self.suite.encrypt(rows).tobytes()
        return Upload(context, call, digest(b"W"), contribution, self.suite.prove_count(1), None)


class AbsurdSize(Insider):
    """Claims to hold more samples than the federation allows, to outweigh everyone."""

    name = "absurd-size"
    what = "an enrolled client claims 10^12 samples"

    def answer(self, context: Context, call: bytes) -> Upload:
        """A good proof, with the encryption of an absurd number in the place of its first bit."""
        row = np.zeros((1, self.field.shape.codec.plaintext_bytes), np.uint8)
        row[0, :5] = list((10**12).to_bytes(5, "little"))
        count = self.suite.encrypt(row).tobytes() + self.suite.prove_count(1)[self.suite.row_bytes :]
        return Upload(context, call, digest(b"W"), self.zeros(), count, None)


INSIDERS: dict[str, type[Insider]] = {kind.name: kind for kind in (WrongSize, NotANumber, AbsurdSize)}
