"""Runs as a user starts them, of a task that takes no time, with small keys: what parts of the soak share."""

from pathlib import Path
from typing import Literal

Engine = Literal["local", "flower"]
ROOT = Path(__file__).parents[2]


def configuration(
    task: Path, setting: str, clients: int, rounds: int, codec: str = "exact", decryption: str = "shared"
) -> str:
    """A configuration file."""
    return f"""
task = "{task}:TASK"
setting = "{setting}"
clients = {clients}
rounds = {rounds}
seed = 5
mean_samples = 60
std_samples = 10
workers = 2
[crypto]
key_bits = 512
codec = "{codec}"
decryption = "{decryption}"
allow_insecure_small_keys = true
"""
