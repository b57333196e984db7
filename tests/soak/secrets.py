"""Searches everything that a run leaves behind for its private values and for the clients' own models."""

import io
import logging
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from dapfl.crypto.paillier import PrivateKey
from dapfl.federation.keys.bundles import ClientBundle, ServerBundle
from dapfl.federation.transport import ClientId
from tests.federation.small import Recording, Small


def forms(number: int) -> list[bytes]:
    """How a number may appear in a file, a message or a text."""
    width = (number.bit_length() + 7) // 8
    text = [f"{number:d}".encode(), f"{number:x}".encode(), f"{number:X}".encode()]
    plain = [number.to_bytes(width, "little"), number.to_bytes(width, "big")]
    return [*text, *plain, *(b64encode(data[: width // 3 * 3]) for data in plain)]


def private_values(small: Small) -> dict[str, list[bytes]]:
    """Everything that only its owner may know."""
    assert small.keys is not None
    return values_of(*small.keys)


def values_of(server: ServerBundle, clients: Mapping[ClientId, ClientBundle]) -> dict[str, list[bytes]]:
    """What is secret in these bundles, by name, in all forms."""
    keys: dict[str, PrivateKey] = {"SK_CS^Sign": server.sk_cs_sign}
    keys |= {f"SK_{i}^Enc": key for i, key in server.sk_enc.items()}
    values: dict[str, list[bytes]] = {}
    for i, bundle in clients.items():
        keys[f"SK_{i}^Sign"] = bundle.sk_i_sign
        if bundle.sk_cs_enc is not None:
            keys["SK_CS^Enc"] = bundle.sk_cs_enc
        if bundle.share is not None:
            values[f"share {i}"] = forms(bundle.share.secret)
        if bundle.individual_key is not None:
            values[f"individual key {i}"] = [bundle.individual_key, bundle.individual_key.hex().encode()]
    if server.committee is not None:
        values["group key"] = [server.committee.group_key, server.committee.group_key.hex().encode()]
    for name, key in keys.items():
        values[f"p of {name}"], values[f"q of {name}"] = forms(key.p), forms(key.q)
    return values


def leaks(decryption: Any = "shared", rounds: int = 2, bait: bytes = b"") -> list[str]:
    """Plays a run with a broken client in it, and names every private value that is found outside.

    `bait` is added to what is searched, to see that the search would find something.
    """
    small = Small(clients=6, decryption=decryption, wrap=lambda _, transport: Recording(transport))
    secret_models: list[bytes] = []
    for client, part in small.parts.items():
        learner: Any = part._training.learner
        train = learner.train

        def spying(*args: Any, train: Any = train, client: int = client) -> Any:
            if client == 6:
                raise RuntimeError(f"the weights are {args[0]!r}")
            weights = train(*args)
            secret_models.append(weights.tobytes())
            return weights

        learner.train = spying
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(_NoTraceback())
    logging.getLogger("dapfl").addHandler(handler)
    try:
        records = small.play(rounds)
    finally:
        logging.getLogger("dapfl").removeHandler(handler)
    recording: Any = small.transport
    wire = [data for each in (*recording.sent, *recording.replies) for data in each.values()]
    outside = b"\n".join([*wire, *(record.to_json() for record in records), text.getvalue().encode(), bait])
    values = private_values(small)
    values["a client's own model"] = [weights[:16] for weights in secret_models]
    return sorted(name for name, shapes in values.items() if any(shape in outside for shape in shapes))


class _NoTraceback(logging.Formatter):
    """The log of a device may hold a traceback; it stays there. What is searched is what messages say."""

    def formatException(self, ei: Any) -> str:
        return ""
