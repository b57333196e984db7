"""Who belongs to a federation that lives: clients leave, join, and get new devices.

The KDC signs a roster: the clients of the federation and their public signing keys, under a serial number
that only grows. With every roster it makes new decryption keys (SK_CS, or the shares of a committee), and
seals each client's part of them under the individual key that only this client and the KDC hold. So the
roster can travel through CS: CS cannot enrol clients of its own, and cannot read the keys. A client that is
not on the roster gets none of them, and what it holds neither signs nor decrypts anything any more.

Serial 0 is the federation as it was made. It needs no roster.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from dapfl.config import CryptoConfig
from dapfl.crypto import signature
from dapfl.crypto.keys import keyfile
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import InvalidSignature, KeyFileError
from dapfl.federation.keys import bundles
from dapfl.federation.keys.bundles import ClientBundle, DecryptionKeys
from dapfl.federation.transport import ClientId

INDIVIDUAL_KEY_BYTES = 32
_LABEL = b"dapfl roster 2/"
_NONCE_BYTES = 12


class Roster(Struct, frozen=True):
    """The clients of a federation with their public signing keys as text, and their new keys, sealed."""

    federation: bytes
    serial: int
    members: dict[ClientId, str]
    sealed: dict[ClientId, bytes] = {}
    server: bytes = b""  # the hash of what CS gets with this roster

    def with_client(self, client: ClientId, key: PublicKey) -> "Roster":
        """The next roster, with a new client or a new key of a client."""
        return self._next({**self.members, client: keyfile.to_text(key)})

    def without(self, client: ClientId) -> "Roster":
        """The next roster, without a client."""
        return self._next({each: key for each, key in self.members.items() if each != client})

    def _next(self, members: dict[ClientId, str]) -> "Roster":
        return Roster(self.federation, self.serial + 1, dict(sorted(members.items())))

    def with_keys(self, keys: DecryptionKeys, individual: Mapping[ClientId, bytes]) -> "Roster":
        """This roster with every member's part of new decryption keys, for its eyes only."""
        sealed = {
            client: self._seal(client, individual[client], part_of(client, keys)) for client in self.members
        }
        return msgspec.structs.replace(self, sealed=sealed)

    def _seal(self, client: ClientId, key: bytes, part: dict[str, Any]) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + AESGCM(key).encrypt(nonce, json.dumps(part).encode(), self._place(client))

    def opened(self, client: ClientId, key: bytes) -> dict[str, Any]:
        """A member's part of the new keys; KeyFileError if it has none or holds another key."""
        box = self.sealed.get(client, b"")
        try:
            part = AESGCM(key).decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], self._place(client))
            opened: dict[str, Any] = json.loads(part)
        except (InvalidTag, ValueError):
            raise KeyFileError(
                f"Roster {self.serial} has no keys for this device: replace the client (dapfl deploy "
                "replace), and give the device its new folder."
            ) from None
        return opened

    def _place(self, client: ClientId) -> bytes:
        return _LABEL + self.federation + b"/%d/%d" % (self.serial, client)


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
        except (InvalidSignature, msgspec.MsgspecError, UnicodeDecodeError):
            raise KeyFileError("The roster is not signed by the KDC of this federation.") from None
        if roster.federation != federation:
            raise KeyFileError("The roster is that of another federation.")
        return roster

    def to_bytes(self) -> bytes:
        """As it travels."""
        return msgspec.msgpack.encode((self.body, self.signature))

    @classmethod
    def from_bytes(cls, content: bytes) -> "SignedRoster":
        """What `to_bytes` made; KeyFileError if it did not."""
        try:
            return cls(*msgspec.msgpack.decode(content, type=tuple[bytes, bytes]))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise KeyFileError("This is not a roster of Dap-FL: it is damaged.") from None


def part_of(client: ClientId, keys: DecryptionKeys) -> dict[str, Any]:
    """A client's part of decryption keys, as it is written in the client's bundle."""
    share = keys.shares.get(client)
    return {
        "sk_cs_enc": None if keys.private_key is None else keyfile.to_text(keys.private_key),
        "share": None if share is None else keyfile.to_text(share),
        **({} if keys.committee is None else {"committee": bundles.committee_to_builtins(keys.committee)}),
    }


def client_bundle_under(bundle: ClientBundle, roster: Roster, crypto: CryptoConfig) -> ClientBundle:
    """The bundle of a client with the keys of a roster; KeyFileError if the client is not on it."""
    if bundle.individual_key is None:
        raise KeyFileError("This device's folder was made before rosters carried keys: make new folders.")
    if bundle.client not in roster.members:
        raise KeyFileError(
            f"Client {bundle.client} was removed from the federation by roster {roster.serial}."
        )
    part = roster.opened(bundle.client, bundle.individual_key)
    renewed = bundles.from_builtins(bundles.to_builtins(bundle) | {"pk_sign": roster.members} | part, crypto)
    assert isinstance(renewed, ClientBundle)
    return renewed
