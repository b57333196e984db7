"""The updates in the server's folder: each brings the next roster, and what CS needs for it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dapfl.config import CryptoConfig
from dapfl.crypto.keys import keyfile
from dapfl.errors import KeyFileError
from dapfl.federation.keys import bundles
from dapfl.federation.keys.bundles import DecryptionKeys, ServerBundle
from dapfl.federation.keys.roster import SignedRoster
from dapfl.federation.transport import ClientId
from dapfl.system.files import replacing

FORMAT, VERSION = "dapfl-server-update", 2


class ServerPart(Struct, frozen=True, kw_only=True):
    """What CS needs for a roster: the public side of the new decryption keys, and the keys by which it opens
    a newcomer's envelopes and knows its node."""

    decryption: dict[str, Any]
    keys: dict[ClientId, str] = {}
    nodes: dict[ClientId, bytes] = {}

    @classmethod
    def of(
        cls, decryption: DecryptionKeys, keys: Mapping[ClientId, str], nodes: Mapping[ClientId, bytes]
    ) -> "ServerPart":
        """The public side of decryption keys is written as in a server's bundle."""
        public: dict[str, Any] = {"pk_cs_enc": keyfile.to_text(decryption.public_key)}
        if decryption.committee is not None:
            public["committee"] = bundles.committee_to_builtins(decryption.committee)
        return cls(decryption=public, keys=dict(keys), nodes=dict(nodes))

    @property
    def digest(self) -> bytes:
        """By which the roster names it, so that the signature of the KDC covers it, too."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()


class ServerUpdate(Struct, frozen=True, kw_only=True):
    """What the server is given."""

    format: str = FORMAT
    version: int = VERSION
    roster: bytes
    server: "ServerPart"

    def to_bytes(self) -> bytes:
        """The content of `server.update`."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def read(cls, path: Path) -> "ServerUpdate":
        """The update in a file; KeyFileError if it is none, or one of another version."""
        try:
            head = msgspec.msgpack.decode(path.read_bytes(), type=_Head)
            if head.format != FORMAT:
                raise msgspec.ValidationError
            if head.version != VERSION:
                raise KeyFileError(
                    f"{path} is of another version of Dap-FL (it has format {head.version}, this one reads "
                    f"{VERSION}): use the version that made it."
                )
            return msgspec.msgpack.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise KeyFileError(f"{path} cannot be read: {error.strerror}.") from None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise KeyFileError(
                f"{path} is not an update of 'dapfl deploy', or it is damaged: copy it again from where it "
                "was made."
            ) from None


class _Head(Struct, frozen=True):
    format: str
    version: int


@dataclass(frozen=True)
class Enrolment:
    """The keys of CS under one roster, and the roster as clients are sent it; None for the first."""

    serial: int
    bundle: ServerBundle
    roster: bytes | None = None

    @property
    def members(self) -> tuple[ClientId, ...]:
        """The clients."""
        return tuple(sorted(self.bundle.pk_sign))


@dataclass(frozen=True)
class ServerRosters:
    """All rosters that the server's folder holds, from the first on."""

    folder: Path
    bundle: ServerBundle
    crypto: CryptoConfig

    @cached_property
    def _first(self) -> Enrolment:
        return Enrolment(0, self.bundle)

    @property
    def newest(self) -> int:
        """The serial of the newest roster."""
        return max((int(path.stem) for path in self._place.glob("*.update")), default=0)

    def at(self, serial: int) -> Enrolment:
        """The keys of CS under the roster with this serial; KeyFileError if that is not there or forged."""
        enrolment = self._first
        for number in range(1, serial + 1):
            enrolment = self._next(enrolment, ServerUpdate.read(self._path(number)))
        return enrolment

    def newer(self, serial: int) -> Enrolment | None:
        """The newest roster, if it is newer than this one."""
        return self.at(self.newest) if self.newest > serial else None

    def add(self, update: ServerUpdate) -> Enrolment:
        """Keeps an update, which must be the next one; KeyFileError unless the KDC has signed it."""
        enrolment = self._next(self.at(self.newest), update)
        self._place.mkdir(mode=0o700, exist_ok=True)
        with replacing(self._path(enrolment.serial), mode=0o600) as file:
            file.write(update.to_bytes())
        return enrolment

    def _next(self, before: Enrolment, update: ServerUpdate) -> Enrolment:
        key = self.bundle.pk_kdc_sign
        if key is None:
            raise KeyFileError(
                f"{self.folder} is not the server's folder of a deployment that can change: make the "
                "deployment again with this version of Dap-FL."
            )
        roster = SignedRoster.from_bytes(update.roster).verified(key, self.bundle.federation)
        if roster.serial != before.serial + 1:
            raise KeyFileError(
                f"This is update {roster.serial}, and the server has {before.serial or 'none'}: "
                "apply them in their order."
            )
        if update.server.digest != roster.server:
            raise KeyFileError(
                f"Update {roster.serial} is damaged: its keys are not those of its roster. Copy it again "
                "from where it was made."
            )
        part = update.server
        sk_enc = {i: keyfile.to_text(secret) for i, secret in before.bundle.sk_enc.items()} | part.keys
        if missing := sorted(roster.members.keys() - sk_enc.keys()):
            raise KeyFileError(
                f"Update {roster.serial} is damaged: it has no keys of clients {missing}. Copy it again from "
                "where it was made."
            )
        data = bundles.to_builtins(replace(before.bundle, sk_enc={}, pk_sign={})) | part.decryption
        data |= {"pk_sign": roster.members, "sk_enc": {i: sk_enc[i] for i in roster.members}}
        bundle = bundles.from_builtins(data, self.crypto)
        assert isinstance(bundle, ServerBundle)
        return Enrolment(roster.serial, bundle, update.roster)

    @property
    def _place(self) -> Path:
        return self.folder / "updates"

    def _path(self, serial: int) -> Path:
        return self._place / f"{serial:03d}.update"
