"""What the strategy tells every node about its federation, besides the messages of the protocol.

The plan is not signed itself. The federation's id is a hash of it, and every signature of the protocol covers
that id. So a node that was given another plan than its server sent accepts nothing.
"""

from typing import Any

import msgspec

from dapfl.config import CodecName, CryptoConfig, Decryption, Encryption, EnvelopeName
from dapfl.crypto.packing import Bounds, codec_named
from dapfl.engines.flower.own_app.model_arrays import ModelArrays
from dapfl.errors import ProtocolError
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.messages import FEDERATION_BYTES, digest

VERSION = 2


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One federation: what it trains, and how its sums are protected."""

    version: int = VERSION
    started: float  # when, by the server's clock; a node takes part in no federation older than its last
    nonce: bytes
    rounds: int
    clients: int
    seed: int
    encryption: Encryption
    decryption: Decryption
    envelope: EnvelopeName
    codec: CodecName
    key_bits: int
    max_samples: int
    min_cohort: int
    model: ModelArrays
    train_config: dict[str, Any]  # ConfigRecord checks what is in it
    arrays_key: str
    config_key: str
    weight_key: str

    def encode(self) -> bytes:
        """The plan as it travels."""
        return msgspec.msgpack.encode(self)

    @property
    def committee(self) -> bool:
        """Whether a committee decrypts."""
        return self.encryption != "none" and self.decryption == "committee"

    def crypto(self, *, allow_insecure_small_keys: bool) -> CryptoConfig:
        """How contributions are protected, in the words of the configuration."""
        return CryptoConfig(
            encryption=self.encryption,
            decryption=self.decryption,
            envelope=self.envelope,
            codec=self.codec,
            key_bits=self.key_bits,
            allow_insecure_small_keys=allow_insecure_small_keys,
        )

    def parameters(self) -> PublicParameters:
        """The public parameters of the federation."""
        bounds = Bounds(max_samples=self.max_samples, max_clients=self.clients)
        codec = codec_named(self.codec, bounds, (self.key_bits - 1) // 8)
        return PublicParameters(codec, self.model.segments, self.min_cohort, committee=self.committee)


def decode_plan(data: bytes) -> Plan:
    """The plan that a server sent."""
    try:
        plan = msgspec.msgpack.decode(data, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ProtocolError(
            "other-version", "the server's plan cannot be read: is its dapfl of another version?"
        ) from None
    if plan.version != VERSION:
        raise ProtocolError("other-version", f"the server's plan is of version {plan.version}, not {VERSION}")
    return plan


def federation_id(keys: bytes, plan: bytes) -> bytes:
    """The id of the federation with this plan; `keys` is the id of its keys, or empty without keys."""
    return digest(b"dapfl own app" + len(keys).to_bytes(1) + keys + plan)[:FEDERATION_BYTES]
