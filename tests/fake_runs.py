"""Realistic run directories for tests of whatever reads them: no training, no keys, the same every time."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

CAPABILITIES = (1.0, 0.8, 0.6, 0.4, 0.2)
# setting: (accuracy it converges to, speed, η, α, whether an agent chooses, whether it keeps to its budget)
SETTINGS: dict[str, tuple[float, float, float, int, bool, bool]] = {
    "dap-fl": (0.975, 0.30, 0.05, 9, True, True),
    "dap-fl-paper": (0.930, 0.14, 0.004, 18, True, False),
    "large": (0.945, 0.26, 0.01, 20, False, False),
    "small": (0.700, 0.03, 0.0001, 1, False, True),
    "ddpg-eta": (0.955, 0.20, 0.02, 16, True, False),
    "ddpg-alpha": (0.880, 0.10, 0.001, 12, True, True),
    "ddpg-client": (0.900, 0.12, 0.001, 15, False, False),
    "dqn-large": (0.890, 0.11, 0.001, 14, False, True),
    "dqn-small": (0.720, 0.04, 0.0001, 14, False, True),
    "fixed-capped": (0.970, 0.24, 0.03, 20, False, True),
    "cosine-capped": (0.973, 0.27, 0.1, 6, False, True),
}


def manifest(
    setting: str = "dap-fl", seed: int = 0, rounds: int = 30, clients: int = 20, **config: Any
) -> dict[str, Any]:
    config = {
        "task": "cnn-mnist",
        "setting": setting,
        "rounds": rounds,
        "clients": clients,
        "seed": seed,
        "engine": "local",
        "partition": "iid",
        "crypto": {"encryption": "paillier", "envelope": "hybrid", "key_bits": 2048, "codec": "exact"},
        **config,
    }
    return {
        "format": 1,
        "dapfl": "1.0.0",
        "command": ["dapfl", "run", "--setting", setting, "--seed", str(seed)],
        "created": "2026-11-15T20:00:00+00:00",
        "config": config,
        "policy": {"kind": "ddpg"},
        "host": {"cpu": "AMD EPYC", "cores": 2, "python": "3.11.7", "torch": "2.13.0", "engine": "ifma"},
        "commit": "0123456789abcdef",
        "task": {"name": config["task"], "parameters": 21840},
        "client_names": [],
        "status": "finished",
    }


def rounds(
    setting: str = "dap-fl", seed: int = 0, count: int = 30, clients: int = 20
) -> list[dict[str, Any]]:
    """The lines of rounds.jsonl of a plausible run."""
    limit, speed, eta, alpha, agent, within = SETTINGS[setting]
    rng = np.random.default_rng([seed, sorted(SETTINGS).index(setting)])
    samples = rng.normal(600, 150, clients).clip(100).astype(int)
    budgets = rng.uniform(26, 38, clients)
    limit += rng.normal(0, 0.003)
    lines = []
    for t in range(count):
        budgets = (budgets + rng.normal(0, 1.5, clients)).clip(15, 45)
        rows = [
            _client(i, t, rng, CAPABILITIES[5 * i // clients], samples, budgets, eta, alpha, agent, within)
            for i in range(clients)
        ]
        rejections = []
        if setting == "dap-fl" and t % 7 == 3:
            reason = ("bad-signature", "replayed", "stale-model", "bad-envelope")[t // 7 % 4]
            victim = int(rng.integers(clients))
            rows[victim]["status"] = f"rejected:{reason}"
            rejections.append({"client": victim + 1, "reason": reason})
        lines.append(_round(t, rng, rows, rejections, limit, speed))
    return lines


def _client(i, t, rng, capability, samples, budgets, eta, alpha, agent, within):
    epoch_cost = samples[i] / 600 / capability * rng.uniform(0.9, 1.1)
    transfer = rng.uniform(0.7, 1.3)
    affordable = max(int((budgets[i] - 2 * transfer) / epoch_cost), 0)
    planned = max(1, round(alpha * (1 + 0.8 * math.exp(-t / 6)) * rng.uniform(0.8, 1.2))) if agent else alpha
    done = max(min(planned, affordable), 1) if within else planned
    cost = done * epoch_cost + 2 * transfer
    chosen = eta * (1 + math.exp(-t / 5)) * rng.uniform(0.9, 1.1) * capability**-0.2 if agent else eta
    return {
        "id": i + 1,
        "capability": capability,
        "samples": int(samples[i]),
        "status": "accepted" if cost <= budgets[i] else "over-budget",
        "eta": chosen,
        "alpha": done,
        "planned_alpha": planned,
        "batch_size": 32,
        "lambda": max(0.0, 0.4 * math.exp(-t / 10) + rng.normal(0, 0.01)) if agent else None,
        "budget": float(budgets[i]),
        "cost": cost,
        "epoch_cost": epoch_cost,
        "transfer_cost": transfer,
        "reward": 0.6 * math.exp(-t / 8) + rng.normal(0, 0.05) if agent and t else None,
        "reward_parts": {"loss": 0.3, "accuracy": 0.05} if agent and t else None,
        "state": [1.2, 0.6, 0.6],
        "critic_loss": 0.5 * math.exp(-t / 7) + abs(rng.normal(0, 0.02)) if agent and t else None,
        "actor_loss": -0.4 + 0.6 * math.exp(-t / 9) + rng.normal(0, 0.02) if agent and t else None,
        "q": 0.4 if agent and t else None,
        "local_loss": 0.3,
    }


def _round(t, rng, rows, rejections, limit, speed):
    accuracy = limit - (limit - 0.15) * math.exp(-speed * (t + 1)) + rng.normal(0, 0.003)
    accepted = [row["id"] for row in rows if row["status"] == "accepted"]
    late = [row for row in rows if row["status"] == "over-budget"]
    for row in rows:
        row["accuracy"] = accuracy - 0.005 * (row["id"] % 7)
    accuracies = sorted(row["accuracy"] for row in rows)
    return {
        "round": t,
        "loss": 2.3 * (1 - accuracy) ** 0.9 + 0.03,
        "accuracy": accuracy,
        "f1": accuracy - 0.004,
        "worst_accuracy": float(np.mean(accuracies[: math.ceil(len(rows) / 10)])),
        "accuracy_spread": float(np.std(accuracies)),
        "participants": len(accepted),
        "violations": len(late),
        "rejected": len(rejections),
        "rejections": rejections,
        "bytes_up": 91_000 * len(rows),
        "bytes_down": 90_000 * len(rows),
        "simulated_seconds": 45.0 if late else float(max(row["cost"] for row in rows)),
        "wasted_epochs": sum(row["alpha"] for row in late),
        "epochs": sum(row["alpha"] for row in rows),
        "cohort": accepted,
        "seconds": {
            "total": 6.1,
            "exchange": 5.6,
            "open": 0.1,
            "verify": 0.08,
            "aggregate": 0.05,
            "sign": 0.02,
            "score": 0.25,
            "client_decrypt": 0.4,
            "client_agent": 0.5,
            "client_train": 8.0 + float(rng.normal(0, 0.3)),
            "client_encrypt": 0.9,
        },
        "clients": rows,
    }


def write_run(
    directory: Path,
    setting: str = "dap-fl",
    seed: int = 0,
    count: int = 30,
    clients: int = 20,
    status: str = "finished",
    planned: int | None = None,
    **config: Any,
) -> Path:
    """A run directory as `dapfl run` leaves it."""
    directory.mkdir(parents=True, exist_ok=True)
    facts = {**manifest(setting, seed, planned or count, clients, **config), "status": status}
    (directory / "manifest.json").write_text(json.dumps(facts, indent=2))
    lines = rounds(setting, seed, count, clients)
    (directory / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def write_comparison(
    directory: Path, settings: tuple[str, ...], seeds: int, count: int = 30, **config: Any
) -> Path:
    """A directory of runs as `dapfl compare` leaves it."""
    for setting in settings:
        for seed in range(seeds):
            write_run(directory / f"{setting}-{seed}", setting, seed, count, **config)
    return directory
