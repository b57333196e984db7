import math
from pathlib import Path

import pytest
from scipy import stats

from dapfl.federation.records import ClientRecord, RoundRecord, Status
from dapfl.reporting import measures
from dapfl.reporting.measures import Spread, grouped
from dapfl.runs.manifest import Manifest
from dapfl.runs.results import Run, find_runs
from tests.fake_runs import write_comparison, write_run


def run_of(accuracies, seed=0, setting="dap-fl", **config):
    rows = [
        RoundRecord(
            round=t,
            accuracy=accuracy,
            loss=1 - accuracy,
            epochs=10,
            bytes_up=7,
            bytes_down=3,
            simulated_seconds=2,
        )
        for t, accuracy in enumerate(accuracies)
    ]
    config = {"task": "cnn-mnist", "setting": setting, "seed": seed, **config}
    return Run(Path(f"{setting}-{seed}"), Manifest(config=config), tuple(rows))


def test_what_it_took_to_reach_a_target_counts_the_round_that_reached_it():
    run = run_of([0.5, 0.8, 0.9, 0.7, 0.95])
    assert measures.reached(run, 0.8) == measures.Reached(2, 4, 20, 20)
    assert measures.reached(run, 0.91) == measures.Reached(5, 10, 50, 50)
    assert measures.reached(run, 0.96) is None


def test_final_and_best_differ_when_the_best_round_is_not_the_last():
    run = run_of([0.5, 0.9, 0.8])
    assert measures.final_accuracy(run) == 0.8
    assert measures.best_accuracy(run) == 0.9
    assert measures.lowest_loss(run) == pytest.approx(0.1)


def test_unknown_scores_are_left_out_of_best_and_spread():
    run = Run(Path("x"), Manifest(config={}), (RoundRecord(round=0), RoundRecord(round=1, accuracy=0.4)))
    assert measures.best_accuracy(run) == 0.4
    assert Spread.over([None, math.nan]) is None
    assert Spread.over([None, 2.0, 4.0]) == Spread(3.0, math.sqrt(2), 2, 3)


def test_a_refused_upload_counts_against_the_capability_its_client_reported_in_other_rounds():
    rows = (
        RoundRecord(round=0, clients=(ClientRecord(id=1, status=Status.ACCEPTED, capability=0.4),)),
        RoundRecord(round=1, clients=(ClientRecord(id=1, status=Status.REJECTED.because("replayed")),)),
    )
    run = Run(Path("x"), Manifest(config={}), rows)
    assert measures.participation(run) == {0.4: 0.5}
    assert measures.accepted_share(rows) == 0.5


def test_runs_that_differ_only_in_the_seed_are_one_group_in_seed_order():
    (group,) = grouped([run_of([0.1], seed=2), run_of([0.2], seed=0, workers=8)])
    assert group.seeds == (0, 2)
    assert group.label == "dap-fl"


def test_groups_of_one_setting_are_told_apart_by_what_differs():
    runs = [
        run_of([0.1], crypto={"encryption": "none", "key_bits": 2048}),
        run_of([0.1], crypto={"encryption": "paillier", "key_bits": 2048}),
        run_of([0.1], setting="large"),
    ]
    labels = [group.label for group in grouped(runs)]
    assert labels == ["dap-fl (encryption=none)", "dap-fl (encryption=paillier)", "large"]


def test_the_same_run_twice_is_not_two_samples(tmp_path):
    write_run(tmp_path / "a", seed=1, count=2)
    write_run(tmp_path / "b", seed=1, count=2)
    (group,) = grouped(find_runs([tmp_path]))
    assert len(group.runs) == 1


def test_a_grid_of_fixed_runs_is_folded_into_its_best():
    runs = [
        run_of([accuracy], setting="fixed", seed=seed, eta=0.1, alpha=alpha)
        for alpha, accuracy in enumerate((0.5, 0.6, 0.9, 0.8, 0.7, 0.3), start=1)
        for seed in (0, 1)
    ]
    (group,) = grouped(runs)
    assert (group.setting, group.label) == ("oracle", "oracle: best of 6 (α=3)")
    assert measures.mean_accuracy(group) == pytest.approx(0.9)
    assert len(grouped(runs[:6])) == 3  # three fixed rules are rules to compare, not a search


def test_the_paired_interval_is_students_t():
    ours, theirs = [0.90, 0.92, 0.91, 0.95], [0.88, 0.91, 0.86, 0.92]
    groups = grouped(
        [run_of([value], seed=seed) for seed, value in enumerate(ours)]
        + [run_of([value], seed=seed, setting="large") for seed, value in enumerate(theirs)]
    )
    gap = measures.difference(groups[0], groups[1], measures.final_accuracy)
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert gap is not None
    assert (gap.low, gap.high) == pytest.approx((expected.low, expected.high), abs=1e-5)
    assert gap.verdict == "higher"
    assert measures.difference(groups[1], groups[0], measures.final_accuracy).verdict == "lower"


def test_only_common_seeds_are_paired_and_one_pair_claims_nothing():
    groups = grouped([run_of([0.9], seed=0), run_of([0.2], seed=1), run_of([0.8], seed=0, setting="large")])
    gap = measures.difference(groups[0], groups[1], measures.final_accuracy)
    assert (gap.mean, gap.seeds, gap.verdict) == (pytest.approx(0.1), 1, "one seed: no claim")
    apart = grouped([run_of([0.9], seed=0), run_of([0.8], seed=5, setting="large")])
    assert measures.difference(apart[0], apart[1], measures.final_accuracy) is None


@pytest.mark.parametrize("degrees", [1, 2, 5, 10, 11, 15, 30, 100])
def test_quantiles_of_students_t(degrees):
    assert measures._student_975(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-3)


def test_targets_of_an_own_task_follow_from_its_best_accuracy():
    groups = grouped([run_of([0.5], task="mine.py:TASK")])
    assert measures.targets_of(groups) == (0.4, 0.45, 0.47)


def test_settings_stand_in_the_papers_order(tmp_path):
    write_comparison(tmp_path, ("small", "dqn-large", "dap-fl", "large"), seeds=1, count=1)
    assert [group.setting for group in grouped(find_runs([tmp_path]))] == [
        "dap-fl",
        "large",
        "small",
        "dqn-large",
    ]


def test_the_plain_form_of_a_setting_is_named_by_the_setting_alone():
    labels = [group.label for group in grouped([run_of([0.5], price=None), run_of([0.5], price=0.1)])]
    assert labels == ["dap-fl", "dap-fl (κ=0.1)"]
