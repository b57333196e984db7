"""`dapfl bench aggregation`: one whole secure aggregation, beside SecAgg+, CKKS and unpacked Paillier.

Every step of Fig. 4 between trained models and the next global model, on one core: pack, ε₁, sign, ε₂
for each client; open, verify, multiply, sign at the server; verify, decrypt, decode once. What each
client would send is counted in bytes. The same is done once more with a committee that decrypts
(`benchmarks/committee.py`). The peers get the same vectors, weighted by the same |D_i|.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from dapfl.arrays import Rows, Vector
from dapfl.benchmarks.committee import CommitteeAggregation, CommitteeJob, check_signatures
from dapfl.benchmarks.peers import ckks, secagg
from dapfl.benchmarks.peers.paillier import Phe
from dapfl.benchmarks.result import BenchResult, Figures, absent, host
from dapfl.benchmarks.timing import CLOCK, Job, clock, medians, one_core, seconds_of
from dapfl.crypto.engines.base import set_threads
from dapfl.crypto.envelope import Envelope, envelope_named
from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.keys.threshold_keys import generate_committee
from dapfl.crypto.packing import Bounds, ReferenceModels, VectorCodec, codec_named
from dapfl.crypto.paillier import PrivateKey
from dapfl.crypto.signature import sign, signature_bytes, verify
from dapfl.errors import DapflError

SIZES = (7_850, 21_840, 1_700_000, 11_200_000)
GROWTH_CLIENTS = 3
PHE_SAMPLE = 40
COMMITTEES = ((5, 4), (5, 3))  # members, and how many decrypt; the first is the default


@dataclass(frozen=True)
class Models:
    """What 20 trained clients might hold: W(t), W(t-1), each ŵ_i and |D_i|."""

    reference: ReferenceModels
    locals: tuple[Vector, ...]
    samples: tuple[int, ...]

    @classmethod
    def drawn(cls, size: int, clients: int) -> "Models":
        """Models of a given size, near one another as trained models are."""
        rng = np.random.default_rng(size)
        current = rng.normal(0, 0.05, size).astype(np.float32)
        previous = current - rng.normal(0, 0.01, size).astype(np.float32)
        samples = tuple(int(n) for n in rng.normal(600, 200, clients).clip(32, 1600))
        moved = tuple(current + rng.normal(0, 0.01, size).astype(np.float32) for _ in samples)
        return cls(ReferenceModels(current, previous), moved, samples)

    def mean(self) -> NDArray[np.float64]:
        """Eq. 44 in float64, without any cryptography."""
        total = np.zeros(self.reference.size)
        for local, samples in zip(self.locals, self.samples, strict=True):
            total += samples * local.astype(np.float64)
        return total / sum(self.samples)


@dataclass(frozen=True)
class Keys:
    """Phase 0: one pair for encryption and one for signatures at CS and at every client."""

    cs: PrivateKey
    cs_sign: PrivateKey
    clients: tuple[PrivateKey, ...]
    clients_sign: tuple[PrivateKey, ...]

    @classmethod
    def generate(cls, clients: int, bits: int, engine: str, insecure: bool) -> "Keys":
        """Fresh keys; not part of what is timed."""
        pairs = [
            generate_keypair(bits, engine=engine, allow_insecure_small_keys=insecure)
            for _ in range(2 * clients + 2)
        ]
        return cls(pairs[0], pairs[1], tuple(pairs[2 : 2 + clients]), tuple(pairs[2 + clients :]))


class SecureAggregation:
    """One aggregation by the protocol's steps, timed step by step."""

    def __init__(self, keys: Keys, models: Models, codec: VectorCodec, envelope: Envelope) -> None:
        self.keys, self.models, self.codec, self.envelope = keys, models, codec, envelope
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes_up = 0
        self.result: Vector | None = None

    def __call__(self) -> None:
        """Runs it; `seconds`, `bytes_up` (a client's upload) and `result` are of the last run."""
        self.seconds.clear()
        uploads = [self._client(i) for i in range(len(self.models.locals))]
        self.bytes_up = max(map(len, uploads))
        broadcast = self._server(uploads)
        self.result = self._open_aggregate(broadcast)

    def _client(self, i: int) -> bytes:
        local, samples = self.models.locals[i], self.models.samples[i]
        key = self.keys.cs  # clients hold SK_CS, so they encrypt by the Chinese remainder theorem
        with self._step("pack"):
            rows = self.codec.encode(local, samples, self.models.reference).plaintexts
            count = self.codec.encode_count(samples)
        with self._step("encrypt"):
            omega = key.encrypt(np.concatenate([rows, count])).tobytes()  # Eqs 33-34
        with self._step("sign"):
            signature = sign(omega, self.keys.clients_sign[i])  # Eq. 35
        with self._step("seal"):
            return self.envelope.seal(omega + signature, self.keys.clients[i].public_key, b"bench")  # Eq. 36

    def _server(self, uploads: Iterable[bytes]) -> bytes:
        public = self.keys.cs.public_key
        opened = []
        for i, upload in enumerate(uploads):
            with self._step("open"):
                opened.append(self.envelope.open(upload, self.keys.clients[i], b"bench"))  # Eq. 37
        signers = [key.public_key for key in self.keys.clients_sign[: len(opened)]]
        with self._step("verify"):
            check_signatures(opened, signers)  # Eq. 38
            omegas = [
                self._rows(each[: -signature_bytes(key)]) for each, key in zip(opened, signers, strict=True)
            ]
        with self._step("multiply"):
            aggregate = public.product(omegas).tobytes()  # Eq. 39
        with self._step("sign aggregate"):
            return aggregate + sign(aggregate, self.keys.cs_sign)  # Eq. 40

    def _open_aggregate(self, broadcast: bytes) -> Vector:
        signer = self.keys.cs_sign.public_key
        width = signature_bytes(signer)
        with self._step("verify aggregate"):
            verify(broadcast[:-width], broadcast[-width:], signer)  # Eq. 41
        with self._step("decrypt"):
            sums = self.keys.cs.decrypt(self._rows(broadcast[:-width]))  # Eqs 42-43
        with self._step("decode"):
            samples = self.codec.decode_count(sums[-1:], len(self.models.locals))
            return self.codec.decode(
                sums[:-1], len(self.models.locals), samples, self.models.reference
            )  # Eq. 44

    def _rows(self, omega: bytes) -> Rows:
        return np.frombuffer(omega, np.uint8).reshape(-1, self.keys.cs.public_key.ciphertext_bytes)

    def _step(self, name: str) -> "_Step":
        return _Step(self.seconds, name)


class _Step:
    """Adds the time inside it to a step's seconds."""

    def __init__(self, seconds: defaultdict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._start = clock()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] += clock() - self._start


def run(
    *,
    clients: int = 20,
    size: int = 21_840,
    sizes: tuple[int, ...] = SIZES,
    codec: str = "compact",
    bits: int = 2048,
    engine: str = "auto",
    repeats: int = 3,
    insecure: bool = False,
) -> BenchResult:
    """Measures both envelopes and the peers on one vector size, then how the cost grows over `sizes`."""
    with one_core():
        set_threads(1)
        try:
            keys = Keys.generate(max(clients, GROWTH_CLIENTS), bits, engine, insecure)
            models = Models.drawn(size, clients)
            bounds = Bounds(max_samples=1600, max_clients=max(clients, GROWTH_CLIENTS))
            packing = codec_named(codec, bounds, keys.cs.public_key.plaintext_bytes)
            ours = {
                name: SecureAggregation(keys, models, packing, envelope_named(name))
                for name in ("hybrid", "paillier")
            }
            committees = {
                f"committee of {members}, any {needed}": _committee(members, needed, keys, models, packing)
                for members, needed in COMMITTEES
            }
            tenseal = ckks.Aggregation(models.locals, models.samples) if ckks.installed() else None
            masking = _secagg(models) if secagg.installed() else {}
            protocols: dict[str, SecureAggregation | CommitteeAggregation] = {**ours, **committees}
            jobs: dict[str, Job] = {**protocols, **masking, **({"ckks": tenseal} if tenseal else {})}
            times = medians(jobs, repeats)
            exact = models.mean()
            figures: dict[str, Figures] = {
                name: _figures(aggregation, times[name], exact) for name, aggregation in protocols.items()
            }
            growth = {f"{each:,} weights": _growth(each, keys, packing) for each in sizes}
            peers = {
                "tenseal CKKS": _ckks_figures(tenseal, times, exact),
                "phe unpacked": _phe(size, clients, bits),
                **{name: _secagg_figures(masking.get(name), times.get(name), models) for name in _SECAGG},
            }
        finally:
            set_threads(None)
    ratios = {"paillier envelope / hybrid seconds": times["paillier"] / times["hybrid"]}
    if tenseal:
        ratios["hybrid / CKKS seconds"] = times["hybrid"] / times["ckks"]
        ratios["CKKS / hybrid bytes a client"] = tenseal.bytes_up / ours["hybrid"].bytes_up
    if "seconds" in peers["phe unpacked"]:
        ratios["phe unpacked / hybrid seconds"] = (
            float(str(peers["phe unpacked"]["seconds"])) / times["hybrid"]
        )
    first = next(iter(committees))
    ratios[f"{first} / hybrid seconds"] = times[first] / times["hybrid"]
    for name in masking:
        ratios[f"hybrid / {name} seconds"] = times["hybrid"] / times[name]
        ratios.update({f"{each} / {name} seconds": times[each] / times[name] for each in committees})
    return BenchResult(
        work={
            "what": "one secure aggregation, all roles on one core",
            "clients": clients,
            "weights": size,
            "codec": codec,
            "bits": bits,
            "engine": engine,
            "growth_clients": GROWTH_CLIENTS,
            "clock": CLOCK,
            **host(),
        },
        ours={**figures, "growth": growth},
        peers=peers,
        ratios=ratios,
    )


_SECAGG = ("Flower SecAgg+, full graph", "Flower SecAgg+, 7 neighbours")


def _secagg(models: Models) -> dict[str, secagg.Aggregation]:
    """SecAgg+ with all clients as neighbours, more than half of whom must stay; and with 7, any 5."""
    clients = len(models.locals)
    few = min(7, clients)
    shapes = ((clients, clients // 2 + 1), (few, min(5, few)))
    return {
        name: secagg.Aggregation(models.locals, *shape) for name, shape in zip(_SECAGG, shapes, strict=True)
    }


def _secagg_figures(aggregation: secagg.Aggregation | None, seconds: float | None, models: Models) -> Figures:
    if aggregation is None or seconds is None:
        return absent("not installed", secagg.INSTALL)
    return {
        "seconds": seconds,
        "bytes_a_client": aggregation.bytes_up,
        "bytes_a_weight": aggregation.bytes_up / models.reference.size,
        "largest_error": float(np.abs(aggregation.result - np.mean(models.locals, axis=0)).max()),
        "note": "clients weigh the same; nothing is signed, sealed or sent; CS must follow the protocol",
    }


def _committee(
    members: int, needed: int, keys: Keys, models: Models, codec: VectorCodec
) -> CommitteeAggregation:
    key = keys.cs.public_key
    shares = generate_committee(
        key.bits, members=members, threshold=needed, engine=key.engine, allow_insecure_small_keys=True
    )
    people = len(models.locals)
    return CommitteeAggregation(
        CommitteeJob(
            shares=shares,
            cs_sign=keys.cs_sign,
            clients=keys.clients[:people],
            clients_sign=keys.clients_sign[:people],
            references=models.reference,
            locals=models.locals,
            samples=models.samples,
            codec=codec,
            envelope=envelope_named("hybrid"),
        )
    )


def _figures(
    aggregation: SecureAggregation | CommitteeAggregation, seconds: float, exact: NDArray[np.float64]
) -> Figures:
    assert aggregation.result is not None
    error = float(np.abs(aggregation.result - exact).max())
    if error > 1e-3:
        raise DapflError(f"The aggregate is off by {error:g}: please report this.")
    steps = {f"{name} seconds": spent for name, spent in aggregation.seconds.items()}
    sent = {
        "bytes_a_client": aggregation.bytes_up,
        "bytes_a_weight": aggregation.bytes_up / len(exact),
    }
    if isinstance(aggregation, CommitteeAggregation):
        sent["bytes_a_member"] = aggregation.member_bytes_up
        sent["bytes_a_weight_a_member"] = aggregation.member_bytes_up / len(exact)
    return {"seconds": seconds, **sent, "largest_error": error, **steps}


def _growth(size: int, keys: Keys, codec: VectorCodec) -> Figures:
    """One line of how the cost grows: a few clients, the hybrid envelope, once."""
    few = Keys(keys.cs, keys.cs_sign, keys.clients[:GROWTH_CLIENTS], keys.clients_sign[:GROWTH_CLIENTS])
    aggregation = SecureAggregation(few, Models.drawn(size, GROWTH_CLIENTS), codec, envelope_named("hybrid"))
    seconds = seconds_of(aggregation)
    return {
        "seconds": seconds,
        "microseconds_a_weight": 1e6 * seconds / size,
        "bytes_a_client": aggregation.bytes_up,
        "bytes_a_weight": aggregation.bytes_up / size,
    }


def _ckks_figures(
    aggregation: "ckks.Aggregation | None", times: dict[str, float], exact: NDArray[np.float64]
) -> Figures:
    if aggregation is None:
        return absent("not installed", ckks.INSTALL)
    return {
        "seconds": times["ckks"],
        "bytes_a_client": aggregation.bytes_up,
        "largest_error": float(np.abs(aggregation.result - exact).max()),
        "note": "encrypt, add and decrypt only: nothing is signed, sealed or sent",
    }


def _phe(size: int, clients: int, bits: int) -> Figures:
    """python-paillier with one weight per ciphertext, extrapolated from a few weights."""
    if find_spec("phe") is None:
        return absent("not installed", "pip install phe")
    library = Phe(bits)
    values = list(range(PHE_SAMPLE))
    batch = library.encrypt(values)
    encrypt = seconds_of(lambda: library.encrypt(values)) / PHE_SAMPLE
    add = seconds_of(lambda: library.add(batch, batch)) / PHE_SAMPLE
    decrypt = seconds_of(lambda: library.decrypt(batch)) / PHE_SAMPLE
    return {
        "seconds": size * (clients * (encrypt + add) + decrypt),
        "bytes_a_client": size * bits // 4,
        "note": f"one weight per ciphertext; extrapolated from {PHE_SAMPLE} weights",
    }
