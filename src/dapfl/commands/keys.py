"""`dapfl keys`: what the key distribution center does (Phase 0)."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dapfl.errors import KeyFileError

if TYPE_CHECKING:
    from dapfl.crypto.paillier import PublicKey
    from dapfl.federation.kdc import Bundle

EXAMPLES = """examples:
  dapfl keys generate --clients 20 --out keys      one bundle for the server, one for each client
  dapfl keys show keys/client-007.keys             what a bundle holds, without its secrets

Give every participant its own bundle and nothing else, over a channel that you trust."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    actions = parser.add_subparsers(dest="action", metavar="generate|show", required=True)
    generate = actions.add_parser("generate", help="make the keys of a federation", epilog=EXAMPLES)
    generate.add_argument("--clients", type=int, required=True, metavar="N", help="clients 1 to N")
    generate.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder for the bundles")
    generate.add_argument("--key-bits", type=int, default=None, metavar="B", help="size of n (default: 2048)")
    generate.add_argument("--randomness", choices=["djn", "full"], default=None, help="how ε₁ is masked")
    generate.add_argument("--generator", choices=["n+1", "random"], default=None, help="the g of the keys")
    generate.add_argument(
        "--allow-insecure-small-keys",
        action="store_true",
        help="make keys under 2048 bits, which protect nothing (for trials)",
    )
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
    from dapfl.console import out, progress
    from dapfl.federation import kdc

    values = {
        "clients": args.clients,
        "crypto.key_bits": args.key_bits,
        "crypto.randomness": args.randomness,
        "crypto.generator": args.generator,
        "crypto.allow_insecure_small_keys": args.allow_insecure_small_keys or None,
    }
    config = override(RunConfig(), {name: value for name, value in values.items() if value is not None})
    if kdc.bundle_path(args.out, None).exists():
        raise KeyFileError(f"{args.out} holds the keys of a federation already: choose another --out.")
    with progress("Keys", kdc.keys_needed(config.clients)) as advance:
        server, clients = kdc.generate(config.clients, config.crypto, advance)
    kdc.save_bundles(args.out, server, clients)
    out.print(
        f"{args.out}: keys of {config.crypto.key_bits} bits for the server and {config.clients} clients, "
        f"federation {server.federation.hex()}",
        markup=False,
    )
    return 0


def _show(path: Path) -> int:
    from dapfl.console import out
    from dapfl.federation import kdc

    bundle = kdc.load_bundle(path, allow_insecure_small_keys=True)
    for line in _lines(bundle):
        out.print(line, markup=False)
    return 0


def _lines(bundle: "Bundle") -> list[str]:
    """What a bundle holds: names, sizes and fingerprints, never a secret."""
    from dapfl.federation.kdc import ServerBundle

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
            (
                "SK_CS^Enc",
                "encrypts contributions, decrypts aggregates (private)",
                bundle.sk_cs_enc.public_key,
            ),
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
    warning = "" if public.bits >= 2048 else "  NOT SECURE"
    return f"  {name:<12} {public.bits} bits  {public.fingerprint}  {purpose}{warning}"
