"""The memory of CS in a round with large encrypted uploads.

CS opens a round; a copy of its process (fork) makes the uploads, of ciphertexts that are all alike; then CS
receives them, one after the other, and the peak of its resident memory is read.
"""

import os
import tempfile
import tracemalloc
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from dapfl.config import CryptoConfig
from dapfl.crypto.packing import Bounds, Segment, codec_named
from dapfl.crypto.paillier import PublicKey
from dapfl.crypto.proofs import plaintext_proof
from dapfl.federation.global_model.parameters import PublicParameters
from dapfl.federation.global_model.server_step import TakeAverage
from dapfl.federation.keys.kdc import generate
from dapfl.federation.messages import (
    VERSION,
    Context,
    Delivery,
    Sealed,
    Signed,
    Upload,
    associated_data,
    contribution_binding,
    decode_delivery,
    digest,
    encode,
)
from dapfl.federation.participants import client_suite, recovery_of, server_suite
from dapfl.federation.server.central_server import CentralServer
from dapfl.federation.server.reception import Reception
from dapfl.federation.transport import SERVER

RESNET18 = 11_184_970


class Peak(msgspec.Struct, frozen=True):
    """In bytes: one model, one upload, CS before the uploads, and its peak while it receives them."""

    model: int
    upload: int
    before: int
    peak: int

    @property
    def models(self) -> float:
        """How many models CS needs for the uploads."""
        return (self.peak - self.before) / self.model


def server_peak(
    size: int = RESNET18,
    clients: int = 20,
    key_bits: int = 2048,
    *,
    decryption: Literal["shared", "committee"] = "shared",
    last_first: bool = False,
    traced: bool = False,
) -> Peak:
    """Of one round of `clients`, whose uploads come in the order of their ids, or in the opposite order.

    A committee is sent the uploads, so they are kept, and the messages to it are made. `traced` counts what
    Python allocates, to the byte, instead of the memory of the process.
    """
    crypto = CryptoConfig(
        key_bits=key_bits, decryption=decryption, allow_insecure_small_keys=key_bits < 2048, envelope="hybrid"
    )
    keys, bundles = generate(clients, crypto)
    codec = codec_named(
        "compact", Bounds(max_samples=1000, max_clients=clients), keys.pk_cs_enc.plaintext_bytes
    )
    parameters = PublicParameters(codec, (Segment("all", 0, size),), 3, TakeAverage(), False)
    ids = range(1, clients + 1)
    server = CentralServer(
        keys.federation,
        server_suite(crypto, keys, codec),
        parameters,
        ids,
        np.zeros(size, np.float32),
        recovery=recovery_of(crypto, keys),
    )
    call = {client: _order(message) for client, message in server.open_round(0, ids).items()}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").exists() else None) as name:
        folder = Path(name)
        if (child := os.fork()) == 0:
            status = 1
            try:
                for client in ids:
                    suite = client_suite(crypto, bundles[client], codec)
                    context = msgspec.structs.replace(server.context(SERVER), sender=client)
                    contribution = _contribution(keys.pk_cs_enc, parameters.contribution_rows)
                    if decryption == "committee":
                        contribution = _proved(keys.pk_cs_enc, parameters.contribution_rows, context)
                    commitment = server.memory.history.latest.commitment
                    upload = Upload(
                        context, call[client], commitment, contribution, suite.prove_count(100), b""
                    )
                    body = encode(upload)
                    delivery = encode(Delivery(VERSION, (Signed(body, suite.sign(body)),)))
                    box = suite.seal(delivery, associated_data(keys.federation, client))
                    (folder / str(client)).write_bytes(encode(Sealed(VERSION, client, box)))
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0, "no uploads were made"
        upload = (folder / "1").stat().st_size
        before = _begin(traced)
        with Reception(server, ids) as reception:
            for client in reversed(ids) if last_first else ids:
                reception.arrived(client, (folder / str(client)).read_bytes())
                for work in reception._work:  # uploads come slowly
                    work.result()
            reception.finish({})
        assert not server.rejections, server.rejections[0]
        assert server.aggregate() == tuple(ids)
        messages = server.request_model(ids)
        assert messages
        return Peak(4 * size, upload, before, _end(traced))


def _contribution(key: PublicKey, rows: int) -> bytes:
    """A ciphertext, again and again."""
    return np.tile(key.encrypt(np.ones((1, 1), np.uint8)), (rows, 1)).tobytes()


def _proved(key: PublicKey, rows: int, context: Context) -> bytes:
    """The same, with a proof that the sender knows what is in it."""
    plaintext, exponent = np.ones((1, 1), np.uint8), key.draw_exponents(1)
    every = [np.tile(row, (rows, 1)) for row in (key.encrypt_with(plaintext, exponent), plaintext, exponent)]
    return every[0].tobytes() + plaintext_proof.prove(*every, key, contribution_binding(context))


def _order(message: bytes) -> bytes:
    return digest(decode_delivery(message, len(message)).parts[-1].body)


def _begin(traced: bool) -> int:
    """The peak begins here; the memory now."""
    if traced:
        tracemalloc.start()
        return 0
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _end(traced: bool) -> int:
    """The peak since `_begin`."""
    if not traced:
        return _memory("VmHWM")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(prog="python -m tests.soak.peak", description=__doc__)
    parser.add_argument("--weights", type=int, default=RESNET18, help="of the model (ResNet-18)")
    parser.add_argument("--committee", action="store_true", help="a committee decrypts")
    parser.add_argument("--last-first", action="store_true", help="uploads come in the opposite order")
    parser.add_argument(
        "--small-keys", action="store_true", help="of 512 bits: uploads are as large, and made sooner"
    )
    args = parser.parse_args()
    peak = server_peak(
        args.weights,
        key_bits=512 if args.small_keys else 2048,
        decryption="committee" if args.committee else "shared",
        last_first=args.last_first,
    )
    print(f"{peak}, {peak.models:.2f} models above {peak.before / 1e6:.0f} MB")
