"""One table of columns feeds the tables, the spreadsheet and the closing table of a run."""

from dapfl.reporting.closing import closing_rows
from dapfl.reporting.columns import ACCURACY, COST, MODEL, TO_TARGET, VIOLATIONS
from dapfl.reporting.measures import grouped
from dapfl.reporting.spreadsheets import results_csv
from dapfl.reporting.tables import quality, spending
from dapfl.runs.results import find_runs, read_run
from tests.fake_runs import rounds, write_comparison, write_run


def test_every_column_is_in_the_tables_and_in_the_spreadsheet(tmp_path):
    groups = grouped(find_runs([write_comparison(tmp_path, ("dap-fl", "large"), seeds=2, count=3)]))
    names = [column.name for column in (*MODEL, *COST)]
    header = results_csv(groups, lambda _: (0.9,)).splitlines()[0].split(",")
    assert header[4 : 4 + len(names)] == names
    assert [f"{column.name}_to_0.9" for column in TO_TARGET] == [each for each in header if "_to_" in each]
    titles = [*quality(groups).header, *spending(groups).header]
    assert {column.title for column in (*MODEL, *COST)} <= set(titles)


def test_a_cell_is_the_mean_over_the_runs_that_have_a_value(tmp_path):
    runs = find_runs([write_comparison(tmp_path, ("large",), seeds=2, count=3)])
    lost = [sum(line["violations"] for line in rounds("large", seed, 3)) for seed in (0, 1)]
    spread = VIOLATIONS.spread([*runs, None])
    assert (spread.mean, spread.count, spread.of) == (sum(lost) / 2, 2, 3)
    assert ACCURACY.cell([None]) == "–"


def test_the_closing_table_sums_up_the_run(tmp_path):
    lines = rounds("dap-fl", count=5)
    found = closing_rows(read_run(write_run(tmp_path, count=5)), seconds=12.4)
    rows = {name: (value, more) for name, value, more in found}
    last, best = lines[-1]["accuracy"], max(line["accuracy"] for line in lines)
    assert rows["test accuracy"] == (f"{100 * last:.2f} %", f"best {100 * best:.2f} %")
    assert rows["contributions"][0] == f"{sum(line['participants'] for line in lines)} of 100"
    assert rows["traffic"] == ("9.1 MB up", "9.0 MB down")
    assert rows["time"] == ("12 s", "6.1 s for the last round")


def test_the_closing_table_of_a_run_without_scores_has_gaps_instead(tmp_path):
    run = write_run(tmp_path, count=0)
    (run / "rounds.jsonl").write_text('{"round": 0}\n')
    rows = closing_rows(read_run(run), seconds=1)
    assert rows[0] == ("test accuracy", "?", "best ?")


def test_measures_of_a_tasks_own_are_in_the_tables_and_in_the_spreadsheet(tmp_path):
    run = write_run(tmp_path, count=0)
    (run / "rounds.jsonl").write_text(
        '{"round": 0, "loss": 2.5, "metrics": {"auc": 0.875, "recall of 7": null}}\n'
    )
    groups = grouped([read_run(run)])
    table = quality(groups)
    shown = dict(zip(table.header, table.rows[0], strict=True))
    assert (shown["auc"], shown["recall of 7"]) == ("0.8750", "–")
    header, row = (line.split(",") for line in results_csv(groups, lambda _: ()).splitlines())
    assert row[header.index("auc")] == "0.875" and row[header.index("recall of 7")] == ""
    closing = closing_rows(read_run(run), seconds=1)
    assert closing[:2] == [("test loss", "2.5000", ""), ("auc", "0.8750", "the task's own measure")]
