"""`dapfl bench crypto`: Paillier operations per second on one core, ours and those of other Python libraries.

Our engines are measured through the public interface, from float weights to bytes and back, with packing and
fresh randomness; one ciphertext holds 127 weights. A ciphertext of a peer holds one small integer.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import numpy as np

from dapfl.arrays import Rows, Vector
from dapfl.benchmarks.peers.paillier import PAILLIER_PEERS, Candidate
from dapfl.benchmarks.result import BenchResult, Figures, absent, host
from dapfl.benchmarks.timing import CLOCK, Job, medians, one_core, seconds_of, sized
from dapfl.crypto.engines.base import available_engines, set_threads
from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.packing import Bounds, CompactCodec, ReferenceModels
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import DapflError

OPERATIONS = ("encrypt", "add", "decrypt")
LARGEST_BATCH = 256  # about the ciphertexts of one CNN
SAMPLES = 600
BOUNDS = Bounds(max_samples=1600, max_clients=20)

# From a number of ciphertexts to the job that makes, adds or opens as many.
Preparation = Callable[[int], Job]


def run(*, bits: int = 2048, seconds: float = 0.4, repeats: int = 5, insecure: bool = False) -> BenchResult:
    """Measures every engine of this machine and every peer that is installed.

    `seconds` is roughly how long an operation is timed in one turn; `insecure` allows small keys, for trials.
    """
    missing: dict[str, Figures] = {}
    subjects: dict[str, tuple[float, dict[str, Preparation]]] = {}
    with one_core():
        set_threads(1)
        try:
            for engine in available_engines():
                subjects[engine] = _ours(engine, bits, insecure)
            for peer in PAILLIER_PEERS:
                if find_spec(peer.module) is None:
                    missing[peer.name] = absent("not installed", peer.install)
                else:
                    subjects[peer.name] = _peer(peer, bits)
            figures = _rates(subjects, seconds, repeats)
        finally:
            set_threads(None)
    ours = {engine: figures.pop(engine) for engine in available_engines()}
    best = {what: max(figures, key=lambda who: figures[who][what]) for what in OPERATIONS if figures}
    work = {
        "what": "Paillier operations per second, one core",
        "bits": bits,
        "weights_a_ciphertext": {"ours": CompactCodec(BOUNDS, (bits - 1) // 8).rows.per_row, "peers": 1},
        "best_peer": best,
        "clock": CLOCK,
        **host(),
    }
    ratios = {
        f"{engine} {what}": ours[engine][what] / figures[who][what]
        for engine in ours
        for what, who in best.items()
    }
    return BenchResult(work=work, ours=ours, peers={**figures, **missing}, ratios=ratios)


def _rates(
    subjects: dict[str, tuple[float, dict[str, Preparation]]], seconds: float, repeats: int
) -> dict[str, dict[str, float]]:
    """Operations per second of every subject, all measured in turns."""
    jobs: dict[tuple[str, str], Job] = {}
    counts: dict[tuple[str, str], int] = {}
    for who, (_, preparations) in subjects.items():
        for what, prepare in preparations.items():
            counts[who, what], jobs[who, what] = sized(prepare, seconds, LARGEST_BATCH)
    figures = {who: {"keygen_seconds": keygen} for who, (keygen, _) in subjects.items()}
    for (who, what), median in medians(jobs, repeats).items():
        figures[who][what] = counts[who, what] / median
    return figures


def _ours(engine: str, bits: int, insecure: bool) -> tuple[float, dict[str, Preparation]]:
    """One of our engines: the seconds of key generation, and what to time."""
    generate = partial(generate_keypair, bits, engine=engine, allow_insecure_small_keys=insecure)
    seconds = seconds_of(generate)
    key, full = generate(), generate(randomness="full")
    public = key.public_key
    codec = CompactCodec(BOUNDS, public.plaintext_bytes)

    def vectors(count: int) -> tuple[Vector, ReferenceModels]:
        rng = np.random.default_rng(count)
        current, step = rng.normal(0, (0.05, 0.01), (count * codec.rows.per_row, 2)).astype(np.float32).T
        return current + step, ReferenceModels(np.ascontiguousarray(current))

    def encrypt(by: PublicKey | PrivateKey, count: int) -> Job:
        local, reference = vectors(count)
        return lambda: by.encrypt(codec.encode(local, SAMPLES, reference).plaintexts)

    def encrypted(count: int) -> Rows:
        local, reference = vectors(count)
        return public.encrypt(codec.encode(local, SAMPLES, reference).plaintexts)

    def add(count: int) -> Job:
        batch = encrypted(count)
        return lambda: public.add(batch, batch)

    def decrypt(count: int) -> Job:
        batch, (_, reference) = encrypted(count), vectors(count)
        return lambda: codec.decode(key.decrypt(batch), 1, SAMPLES, reference)

    # Speed is worth nothing if the sums are wrong.
    local, reference = vectors(3)
    plain = codec.encode(local, SAMPLES, reference).plaintexts
    total = key.decrypt(public.add(public.encrypt(plain), key.encrypt(plain)))
    if not np.array_equal(total[:, : plain.shape[1]], codec.add_plain([plain, plain])):
        raise DapflError(f"The engine {engine} computes wrong sums: please report this.")
    return seconds, {
        "encrypt": partial(encrypt, public),
        "add": add,
        "decrypt": decrypt,
        "encrypt by the key's owner": partial(encrypt, key),
        "encrypt with full randomness": partial(encrypt, full.public_key),
    }


def _peer(peer: Candidate, bits: int) -> tuple[float, dict[str, Preparation]]:
    """Another library: the seconds of key generation, and what to time."""
    seconds = seconds_of(lambda: peer.make(bits))
    library = peer.make(bits)
    doubled = library.decrypt(library.add(library.encrypt([1, 20]), library.encrypt([1, 20])))
    if doubled != [2, 40]:
        raise DapflError(f"{peer.name} adds 1+1 and 20+20 to {doubled}: it cannot be measured.")

    def encrypt(count: int) -> Job:
        return lambda: library.encrypt(list(range(count)))

    def add(count: int) -> Job:
        batch = library.encrypt(list(range(count)))
        return lambda: library.add(batch, batch)

    def decrypt(count: int) -> Job:
        batch = library.encrypt(list(range(count)))
        return lambda: library.decrypt(batch)

    return seconds, {"encrypt": encrypt, "add": add, "decrypt": decrypt}
