"""The key distribution centre: Phase 0 of Fig. 4.

It makes four kinds of Paillier keys and hands each participant exactly what Fig. 4 gives it:

    CS         SK_i^Enc of every client, SK_CS^Sign, all public signing keys, and PK_CS^Enc, which
               Fig. 4 leaves out but without whose n² nobody can multiply ciphertexts
    client i   SK_CS^Enc (with PK_CS^Enc), PK_i^Enc, SK_i^Sign, all public signing keys

So CS can open envelopes but no contribution, and a client can open the aggregate but no other
client's envelope. With `decryption = "committee"` nobody gets SK_CS^Enc: it is shared out among the
committee's members, and everyone gets a group key, under which CS sends the global model to clients.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from dapfl.config import CryptoConfig
from dapfl.crypto.engines.base import set_threads
from dapfl.crypto.keys.key_generation import generate_keypair
from dapfl.crypto.keys.threshold_keys import generate_committee
from dapfl.crypto.paillier import PrivateKey
from dapfl.federation.keys.bundles import (
    GROUP_KEY_BYTES,
    ClientBundle,
    CommitteeKeys,
    DecryptionKeys,
    ServerBundle,
)
from dapfl.federation.messages import FEDERATION_BYTES
from dapfl.federation.transport import ClientId
from dapfl.system.processes import WORKERS, forbid_core_files

_FEW = 8  # so few keys are made sooner than worker processes are started


def generate(
    clients: int,
    crypto: CryptoConfig,
    advance: Callable[[], object] = lambda: None,
    seats: Sequence[ClientId] = (),
) -> tuple[ServerBundle, dict[ClientId, ClientBundle]]:
    """New keys for CS and clients 1..N; `advance` is called as often as `keys_needed` says.

    `seats` are clients that must be on the committee, if there is one.

    >>> insecure = CryptoConfig(key_bits=256, allow_insecure_small_keys=True)
    >>> server, clients = generate(2, insecure)
    >>> sorted(server.sk_enc), clients[2].pk_cs_sign == server.sk_cs_sign.public_key
    ([1, 2], True)
    """
    ids = range(1, clients + 1)
    keys: list[PrivateKey] = []
    for key in _make(keys_needed(clients) - 1, crypto):
        keys.append(key)
        advance()
    cs_sign, *rest = keys
    enc, sign = dict(zip(ids, rest[:clients], strict=True)), dict(zip(ids, rest[clients:], strict=True))
    federation = secrets.token_bytes(FEDERATION_BYTES)
    pk_sign = {i: key.public_key for i, key in sign.items()}
    decryption = make_decryption_keys([*seats, *(i for i in ids if i not in seats)], clients, crypto)
    advance()
    committee = decryption.committee
    server = ServerBundle(federation, decryption.public_key, cs_sign, enc, pk_sign, committee)
    return server, {
        i: ClientBundle(
            federation,
            i,
            decryption.private_key,
            enc[i].public_key,
            sign[i],
            cs_sign.public_key,
            pk_sign,
            committee,
            decryption.shares.get(i),
        )
        for i in ids
    }


def committee_of(clients: int, crypto: CryptoConfig) -> tuple[int, int]:
    """How many clients are on the committee of a federation, and how many of them decrypt together.

    By default so many that CS and two members who break the protocol cannot have a second proposal of a round
    decrypted (see `Committee.colluders`), while one member may be off. With four clients it holds against CS
    and one member, with three against CS alone.

    >>> [committee_of(clients, CryptoConfig()) for clients in (20, 4, 3)]
    [(5, 4), (4, 3), (3, 2)]
    """
    members = min(crypto.committee_members, clients)
    return members, min(members, crypto.committee_threshold or max(2, min(members - 1, (members + 4) // 2)))


def make_decryption_keys(ids: Sequence[ClientId], clients: int, crypto: CryptoConfig) -> DecryptionKeys:
    """A new SK_CS, or new shares for the first of `ids`: as many as a federation of `clients` has members."""
    if crypto.decryption != "committee":
        (key,) = _make(1, crypto)
        return DecryptionKeys(key.public_key, private_key=key)
    members, threshold = committee_of(clients, crypto)
    shares = generate_committee(
        crypto.key_bits,
        members=members,
        threshold=threshold,
        engine=crypto.engine,
        allow_insecure_small_keys=crypto.allow_insecure_small_keys,
    )
    seated = tuple(ids[:members])
    keys = CommitteeKeys(shares[0].committee, seated, secrets.token_bytes(GROUP_KEY_BYTES))
    return DecryptionKeys(
        keys.committee.public_key, committee=keys, shares=dict(zip(seated, shares, strict=True))
    )


def generate_more(count: int, crypto: CryptoConfig) -> list[PrivateKey]:
    """Further keys for a federation: of the KDC itself, or of a client that joins later."""
    return list(_make(count, crypto))


def keys_needed(clients: int) -> int:
    """One key to encrypt and one to sign for every participant."""
    return 2 * (clients + 1)


def _make(count: int, crypto: CryptoConfig) -> Iterator[PrivateKey]:
    forbid_core_files()
    make = partial(
        generate_keypair,
        crypto.key_bits,
        generator=crypto.generator,
        randomness=crypto.randomness,
        engine=crypto.engine,
        allow_insecure_small_keys=crypto.allow_insecure_small_keys,
    )
    if count <= _FEW or crypto.key_bits < 1024 or os.cpu_count() == 1:
        yield from (make() for _ in range(count))
        return
    with ProcessPoolExecutor(mp_context=WORKERS, initializer=set_threads, initargs=(1,)) as pool:
        yield from pool.map(_call, [make] * count)


def _call(make: Callable[[], PrivateKey]) -> PrivateKey:
    return make()
