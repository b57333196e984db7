"""`dapfl pretrain`: make the warm-start weights of the agent."""

import argparse
from pathlib import Path

EXAMPLES = """examples:
  dapfl pretrain --out weights.msgpack            the recipe of the packaged weights
  dapfl pretrain --out quick.msgpack --federations 4

The same seed and federations give the same weights. Beside FILE, FILE.json says what made it.
To use the weights, set warm_start in [policy.agent] of a configuration to the file."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the weights go")
    parser.add_argument("--seed", type=int, default=0, metavar="K", help="decides everything random (0)")
    parser.add_argument(
        "--federations", type=int, metavar="N", help="how many synthetic federations to learn from"
    )


def execute(args: argparse.Namespace) -> int:
    """Trains an agent on synthetic federations and writes its weights and their origin."""
    from dataclasses import replace

    from dapfl.errors import ConfigError
    from dapfl.pretraining.recipe import Recipe, pretrain, write
    from dapfl.system import console

    asked = {"seed": args.seed, "federations": args.federations}
    for name, value in asked.items():
        if value is not None and value < (0 if name == "seed" else 1):
            raise ConfigError(f"--{name} is {value}: it must be at least {0 if name == 'seed' else 1}.")
    if not args.out.parent.is_dir():
        raise ConfigError(f"The folder {args.out.parent} does not exist: make it, or choose another --out.")
    recipe = replace(Recipe(), **{name: value for name, value in asked.items() if value is not None})
    with console.progress("Pre-training", recipe.federations) as tracker:
        origin = write(recipe, args.out, lambda: pretrain(recipe, tracker))
    console.out.print(
        f"{args.out}: {origin.bytes:,} bytes, made in {origin.seconds / 60:.1f} minutes", markup=False
    )
    return 0
