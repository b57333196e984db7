"""Who belongs to a federation over time: clients join, leave, and get new devices.

The KDC signs a roster: the clients of the federation and their public signing keys, under a serial number
that only grows. CS accepts a roster only if the KDC has signed it, so no server can enrol clients of its
own. What a client signs counts only if the roster has the key that verifies it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from msgspec import Struct

from dapfl.crypto import keyfile, signature
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import InvalidSignature, KeyFileError
from dapfl.federation.keys.bundles import ServerBundle
from dapfl.federation.transport import ClientId

ROSTER = "roster"
"""The file in the server's folder."""
_LABEL = b"dapfl roster 1/"


def admission_path(folder: Path, client: ClientId) -> Path:
    """Where CS keeps the key that opens the envelopes of a client that came later."""
    return folder / "admitted" / f"client-{client:03d}.key"


class Roster(Struct, frozen=True):
    """The clients of a federation, by their numbers, with their public signing keys as text."""

    federation: bytes
    serial: int
    members: dict[ClientId, str]

    def with_client(self, client: ClientId, key: PublicKey) -> "Roster":
        """The next roster, with a new client or a new key of a client."""
        members = dict(sorted({**self.members, client: keyfile.to_text(key)}.items()))
        return msgspec.structs.replace(self, serial=self.serial + 1, members=members)

    def without(self, client: ClientId) -> "Roster":
        """The next roster, without a client."""
        members = {each: key for each, key in self.members.items() if each != client}
        return msgspec.structs.replace(self, serial=self.serial + 1, members=members)


@dataclass(frozen=True)
class SignedRoster:
    """A roster as the KDC signs it."""

    body: bytes
    signature: bytes

    @classmethod
    def sign(cls, roster: Roster, key: PrivateKey) -> "SignedRoster":
        """By the signing key of the KDC."""
        body = msgspec.msgpack.encode(roster)
        return cls(body, signature.sign(_LABEL + body, key))

    def verified(self, key: PublicKey, federation: bytes) -> Roster:
        """The roster, if the KDC of this federation has signed it; KeyFileError if not."""
        try:
            signature.verify(_LABEL + self.body, self.signature, key)
            roster = msgspec.msgpack.decode(self.body, type=Roster)
        except (InvalidSignature, msgspec.MsgspecError):
            raise KeyFileError("The roster is not signed by the KDC of this federation.") from None
        if roster.federation != federation:
            raise KeyFileError("The roster is that of another federation.")
        return roster

    def to_bytes(self) -> bytes:
        """The content of a roster file."""
        return msgspec.msgpack.encode((self.body, self.signature))

    @classmethod
    def from_bytes(cls, content: bytes) -> "SignedRoster":
        """The roster in the content of a file; KeyFileError if there is none."""
        try:
            return cls(*msgspec.msgpack.decode(content, type=tuple[bytes, bytes]))
        except msgspec.MsgspecError:
            raise KeyFileError("This is not a roster of Dap-FL: it is damaged.") from None


def bundle_of(
    bundle: ServerBundle, roster: Roster, admitted: Mapping[ClientId, PrivateKey], *, insecure: bool = False
) -> ServerBundle:
    """The keys of CS with the members of a roster, and no others.

    `admitted` are the keys that open the envelopes of clients that came after the bundle was made, or that
    have got new devices. Nothing that a removed client or an old device sends opens or verifies any more.
    """
    sk_enc = {**bundle.sk_enc, **admitted}
    if missing := sorted(roster.members.keys() - sk_enc.keys()):
        raise KeyFileError(f"The roster has clients {missing}, whose keys are not here: apply every update.")
    pk_sign = {
        client: keyfile.public_from_text(text, engine="auto", allow_insecure_small_keys=insecure)
        for client, text in roster.members.items()
    }
    return replace(bundle, sk_enc={client: sk_enc[client] for client in roster.members}, pk_sign=pk_sign)
