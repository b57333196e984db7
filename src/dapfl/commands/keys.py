"""`dapfl keys`: what the key distribution centre does (Phase 0)."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dapfl.commands.options import (
    CLIENTS,
    DECRYPTION,
    KEY_BITS,
    SMALL_KEYS,
    Option,
    add_options,
    changes,
)
from dapfl.config import SECURE_BITS
from dapfl.errors import KeyFileError

if TYPE_CHECKING:
    from dapfl.crypto.paillier import PublicKey
    from dapfl.federation.keys.bundles import Bundle, ClientBundle

EXAMPLES = """examples:
  dapfl keys generate --clients 20 --out keys      one bundle for the server, one for each client
  dapfl keys show keys/client-007.keys             what a bundle holds, without its secrets

Give every participant its own bundle and nothing else, over a channel that you trust."""


_OPTIONS = (
    replace(CLIENTS, required=True),
    KEY_BITS,
    DECRYPTION,
    Option("randomness", "crypto.randomness", "where the randomness of ciphertexts comes from"),
    Option("generator", "crypto.generator", "the generator g of the keys"),
    SMALL_KEYS,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    actions = parser.add_subparsers(dest="action", metavar="generate|show", required=True)
    generate = actions.add_parser("generate", help="make the keys of a federation", epilog=EXAMPLES)
    generate.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder for the bundles")
    add_options(generate, _OPTIONS)
    show = actions.add_parser("show", help="what a bundle holds, without its secrets", epilog=EXAMPLES)
    show.add_argument("file", type=Path, metavar="FILE")
    for action in (generate, show):
        action.formatter_class = argparse.RawDescriptionHelpFormatter
        action.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def execute(args: argparse.Namespace) -> int:
    """Makes keys or shows a bundle."""
    return _generate(args) if args.action == "generate" else _show(args.file)


def _generate(args: argparse.Namespace) -> int:
    from dapfl.config import RunConfig, override
    from dapfl.federation.keys import bundles, kdc
    from dapfl.system.console import out, progress

    config = override(RunConfig(), changes(args, _OPTIONS))
    if bundles.bundle_path(args.out, None).exists():
        raise KeyFileError(f"{args.out} holds the keys of a federation already: choose another --out.")
    with progress("Keys", kdc.keys_needed(config.clients)) as advance:
        server, clients = kdc.generate(config.clients, config.crypto, advance)
    bundles.save_bundles(args.out, server, clients)
    out.print(
        f"{args.out}: keys of {config.crypto.key_bits} bits for the server and {config.clients} clients, "
        f"federation {server.federation.hex()}",
        markup=False,
    )
    return 0


def _show(path: Path) -> int:
    from dapfl.federation.keys import bundles
    from dapfl.system.console import out

    bundle = bundles.load_bundle(path, allow_insecure_small_keys=True)
    for line in [*_lines(bundle), *_uses(path)]:
        out.print(line, markup=False)
    return 0


def _uses(path: Path) -> list[str]:
    """Which runs a server's keys have served."""
    from dapfl.federation.keys.run_id import uses_of

    uses = uses_of(path)
    return [f"served {len(uses)} runs, the last from {uses[-1].started}"] if uses else []


def _lines(bundle: "Bundle") -> list[str]:
    """What a bundle holds: names, sizes and fingerprints, never a secret."""
    from dapfl.federation.keys.bundles import ServerBundle

    if isinstance(bundle, ServerBundle):
        lines = ["The keys of the central server"]
        keys = [
            ("PK_CS^Enc", "multiplies contributions", bundle.pk_cs_enc),
            ("SK_CS^Sign", "signs aggregates (private)", bundle.sk_cs_sign.public_key),
            *(
                (f"SK_{i}^Enc", f"opens what client {i} seals (private)", key.public_key)
                for i, key in bundle.sk_enc.items()
            ),
        ]
    else:
        lines = [f"The keys of client {bundle.client}"]
        keys = [
            *_decryption_keys(bundle),
            (f"PK_{bundle.client}^Enc", "seals what this client sends", bundle.pk_i_enc),
            (
                f"SK_{bundle.client}^Sign",
                "signs what this client sends (private)",
                bundle.sk_i_sign.public_key,
            ),
            ("PK_CS^Sign", "verifies what the server sends", bundle.pk_cs_sign),
        ]
    keys += [(f"PK_{i}^Sign", f"verifies what client {i} sends", key) for i, key in bundle.pk_sign.items()]
    lines.append(f"federation {bundle.federation.hex()}")
    return [*lines, *(_line(*entry) for entry in keys)]


def _line(name: str, purpose: str, public: "PublicKey") -> str:
    warning = "" if public.bits >= SECURE_BITS else "  NOT SECURE"
    return f"  {name:<12} {public.bits} bits  {public.fingerprint}  {purpose}{warning}"


def _decryption_keys(bundle: "ClientBundle") -> "list[tuple[str, str, PublicKey]]":
    """What a client encrypts with, and what it can decrypt."""
    if bundle.sk_cs_enc is not None:
        what = "encrypts contributions, decrypts aggregates (private)"
        return [("SK_CS^Enc", what, bundle.sk_cs_enc.public_key)]
    assert bundle.committee is not None, "a client has SK_CS, or there is a committee"
    committee = bundle.committee.committee
    lines = [("PK_CS^Enc", "encrypts contributions", committee.public_key)]
    if bundle.share is not None:
        others = committee.threshold - 1
        what = f"decrypts together with {others} other member{'s' * (others > 1)} (private)"
        lines.append(("share of SK_CS^Enc", what, committee.public_key))
    return lines
