"""What docs/results.md says of all tasks together comes from the files of results/."""

import gzip
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "overview"
OVERVIEW = runpy.run_path(str(SCRIPT))
CURVES = "task,group,seed,round,accuracy,epochs,simulated_seconds\n"
RESULTS = "task,setting,group,seed,epochs,trial_epochs,in_cohort,directory\n"


def folder(path, groups):
    """A folder of results: for each group its setting and the accuracies of the rounds of two seeds."""
    curves, results = CURVES, RESULTS
    for label, (setting, rounds) in groups.items():
        for seed in (1, 2):
            for number, accuracy in enumerate(rounds):
                curves += f'toy,"{label}",{seed},{number},{accuracy},10,{seed * 30}\n'
            trials = 4 if setting == "dap-fl" else ""
            place = label.replace("fixed-capped (η=", "fixed-capped_").replace(", α=", "_").rstrip(")")
            results += f'toy,{setting},"{label}",{seed},{10 * len(rounds)},{trials},1.0,{place}/seed-{seed}\n'
    (path / "curves.csv.gz").write_bytes(gzip.compress(curves.encode()))
    (path / "results.csv").write_text(results, "utf-8")
    return OVERVIEW["read"](path, "toy")


@pytest.fixture
def toy(tmp_path):
    return folder(
        tmp_path,
        {
            "dap-fl": ("dap-fl", (0.5, 0.89, 0.88)),
            "large": ("large", (0.1, 0.2, 0.3)),
            "fixed-capped (η=0.1, α=6)": ("fixed-capped", (0.3, 0.6, 0.905)),
            "fixed-capped (η=1.0, α=6)": ("fixed-capped", (0.3, 0.7, 0.8)),
        },
    )


def test_the_page_says_what_the_files_hold() -> None:
    assert OVERVIEW["PAGE"].read_text("utf-8") == OVERVIEW["page"](), f"run {SCRIPT} --write"


def test_regret_and_rank_are_those_of_final_accuracies(toy):
    assert toy.best.name == "0.1 / 6"
    assert toy.regret(toy.ours) == pytest.approx(2.5)
    assert [toy.rank(group) for group in toy.groups] == [2, 4, 1, 3]


def test_a_target_is_reached_in_the_first_round_that_has_it(toy):
    assert toy.target == 0.88
    assert OVERVIEW["to_target"](toy, toy.ours) == "2.0 / 90 / 20"
    assert OVERVIEW["to_target"](toy, toy.best) == "3.0 / 135 / 30"
    assert OVERVIEW["to_target"](toy, toy.groups[1]) == "never"


def test_the_tables_say_what_was_missed(toy):
    aims = OVERVIEW["aims"]([toy])
    assert "| mean regret at most 0.5 points | **missed** | +2.50 points |" in aims
    assert aims.count("**met**") == 3
    row = OVERVIEW["by_task"]([toy]).splitlines()[2]
    assert "| 88.00 | 90.50 (0.1 / 6, of 2) | +2.50 | 2 of 4 | 88 % |" in row
    assert row.endswith("| 100 % | 13 % |")


def test_the_picture_has_a_row_for_each_task(toy, tmp_path):
    OVERVIEW["draw"]([toy, toy], tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
