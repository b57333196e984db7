"""Two hundred rounds take no more memory than fifty."""

import gc
from pathlib import Path

import psutil

from dapfl.config import RunConfig, override
from dapfl.runs.session import start


def test_memory_stays_flat_over_200_rounds(tmp_path: Path) -> None:
    config = override(
        RunConfig(),
        {
            "task": "logistic-mnist",
            "rounds": 200,
            "clients": 3,
            "mean_samples": 60,
            "std_samples": 10,
            "crypto.encryption": "none",
        },
    )
    resident = []
    with start(config, tmp_path / "run", inline=True) as session:
        for record in session:
            if record.round % 50 == 49:
                gc.collect()
                resident.append(psutil.Process().memory_info().rss)
    assert len(resident) == 4
    # One model kept each round would be 150 times 31 kB.
    assert resident[-1] - resident[0] < 3e6
