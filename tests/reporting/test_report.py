import base64
import csv
import gzip
import hashlib
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from dapfl.cli import main
from dapfl.errors import RunDirectoryError
from dapfl.reporting import measures, tables
from dapfl.reporting.figures import save, settings_figure
from dapfl.reporting.page import asset, page, plotly_script
from dapfl.reporting.report import write_report
from dapfl.runs.results import find_runs
from tests.fake_runs import rounds, write_comparison, write_run


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return write_comparison(
        tmp_path_factory.mktemp("cmp"), ("dap-fl", "large", "dqn-large"), seeds=2, count=12
    )


@pytest.fixture(scope="module")
def report(comparison, tmp_path_factory):
    return write_report([comparison], tmp_path_factory.mktemp("report"))


def groups_of(path):
    return measures.grouped(find_runs([path]))


def embedded(html):
    """The data that a page carries."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


def test_a_report_holds_tables_curves_figures_and_a_page(report):
    names = {path.relative_to(report.directory).as_posix() for path in report.files}
    assert {"results.txt", "results.md", "results.csv", "curves.csv.gz", "index.html"} <= names
    for stem in ("settings", "fig5-agent-losses", "fig7-fixed", "fig9-rivals", "participation", "phases"):
        assert {f"figures/{stem}-cnn-mnist.png", f"figures/{stem}-cnn-mnist.svg"} <= names
    assert "figures/fig6-choices-cnn-mnist-dap-fl.png" in names
    assert all(path.stat().st_size > 0 for path in report.files)
    left_over = [path.name for path in report.directory.rglob("*.tmp")]
    assert left_over == []


def test_the_csv_holds_the_numbers_of_rounds_jsonl(report):
    rows = list(csv.DictReader(io.StringIO((report.directory / "results.csv").read_text())))
    assert len(rows) == 6
    for row in rows:
        lines = rounds(row["setting"], int(row["seed"]), 12)
        assert float(row["accuracy"]) == lines[-1]["accuracy"]
        assert float(row["best_accuracy"]) == max(line["accuracy"] for line in lines)
        assert int(row["violations"]) == sum(line["violations"] for line in lines)
        assert int(row["bytes_up"]) == sum(line["bytes_up"] for line in lines)
        reached = [t for t, line in enumerate(lines, 1) if line["accuracy"] >= 0.9]
        assert row["rounds_to_0.9"] == (str(reached[0]) if reached else "")


def test_the_curves_hold_every_round(report):
    text = gzip.decompress((report.directory / "curves.csv.gz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 3 * 2 * 12
    line = rounds("large", 1, 12)[7]
    row = next(r for r in rows if (r["group"], r["seed"], r["round"]) == ("large", "1", "7"))
    assert (float(row["loss"]), int(row["participants"])) == (line["loss"], line["participants"])


def test_tables_show_mean_and_spread_and_the_papers_figure(comparison, report):
    finals = [rounds("large", seed, 12)[-1]["accuracy"] for seed in (0, 1)]
    mean, sd = 50 * sum(finals), 100 * abs(finals[0] - finals[1]) / 2**0.5
    assert f"{mean:.2f} ± {sd:.2f}" in report.text
    assert "97.55, 0.1169 (round 110)" in report.text
    assert "dap-fl minus each other setting" in report.text
    markdown = (report.directory / "results.md").read_text()
    assert "| large | 2 | 12 |" in markdown
    assert markdown.count("###") == len(tables.tables_of(groups_of(comparison)))


def test_the_report_says_where_its_runs_come_from(comparison):
    table = tables.origin(groups_of(comparison))
    assert all(row[2:5] == ("0123456789abcdef", "2026-11-15", "AMD EPYC, 2 cores") for row in table.rows)


def test_every_line_of_a_markdown_table_has_as_many_cells_as_its_header(comparison):
    for table in tables.tables_of(groups_of(comparison)):
        lines = [line for line in tables.as_markdown(table).splitlines() if line.startswith("|")]
        assert {line.count("|") for line in lines} == {len(table.header) + 1}


def test_svg_figures_are_well_formed_and_the_same_every_time(comparison, tmp_path):
    for name in ("a.svg", "b.svg"):
        save(settings_figure(groups_of(comparison)), tmp_path / name)
    ET.parse(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


class _Links(HTMLParser):
    """Everything in a page that could make a browser fetch something."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [
            (tag, key, value) for key, value in attrs if key in ("src", "href", "srcset", "action", "data")
        ]


def test_the_page_is_self_contained_and_allows_only_its_own_scripts(comparison):
    html = page(groups_of(comparison))
    scripts = [plotly_script(), asset("charts.js"), asset("page.js")]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
        assert html.count(f"<script>{script}</script>") == 1
    links = _Links()
    bare = html.replace(f"<script>{scripts[0]}</script>", "")
    links.feed(bare)
    assert links.found == []
    assert "@import" not in bare
    assert "url(" not in bare


def test_the_page_carries_the_means_of_rounds_jsonl(comparison):
    (task,) = embedded(page(groups_of(comparison)))["tasks"]
    ours = task["groups"][0]
    runs = [rounds("dap-fl", seed, 12) for seed in (0, 1)]
    expected = [(a["accuracy"] + b["accuracy"]) / 2 for a, b in zip(*runs, strict=True)]
    assert ours["label"] == "dap-fl"
    assert ours["accuracy"]["mean"] == pytest.approx(expected, rel=1e-5)
    assert ours["x"]["rounds"] == list(range(1, 13))
    epochs = (sum(line["epochs"] for line in runs[0]) + sum(line["epochs"] for line in runs[1])) / 2
    assert ours["x"]["epochs"][-1] == pytest.approx(epochs, rel=1e-5)


def test_names_from_a_run_cannot_become_markup(tmp_path):
    write_run(tmp_path, count=2, task="</script><img src=x onerror=alert(1)>")
    html = page(groups_of(tmp_path))
    assert "<img src=x" not in html


def test_a_long_run_is_thinned_for_the_page_but_keeps_its_ends(tmp_path):
    write_run(tmp_path, count=2500, clients=1)
    (task,) = embedded(page(groups_of(tmp_path)))["tasks"]
    shown = task["groups"][0]["x"]["rounds"]
    assert (len(shown), shown[0], shown[-1]) == (1000, 1, 2500)


def test_runs_without_reports_agents_or_scores_are_reported_all_the_same(tmp_path):
    run = write_run(tmp_path / "bare", count=0)
    bare = [{"round": t, "clients": [{"id": i, "status": "accepted"} for i in (1, 2)]} for t in (0, 1)]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in bare))
    report = write_report([run], tmp_path / "out")
    assert "– " in report.text
    assert (tmp_path / "out" / "figures" / "participation-cnn-mnist.png").exists()


def test_a_new_report_leaves_no_figure_of_the_old_one_and_no_stranger_harmed(tmp_path):
    figures = tmp_path / "report" / "figures"
    figures.mkdir(parents=True)
    for name in ("settings-old.png", "fig7-fixed-old.svg", "mine.png"):
        (figures / name).write_text("")
    write_report([write_run(tmp_path / "run", count=1)], tmp_path / "report")
    names = {path.name for path in figures.iterdir()}
    assert {"settings-old.png", "fig7-fixed-old.svg"}.isdisjoint(names)
    assert {"mine.png", "settings-cnn-mnist.png"} <= names


def test_several_tasks_get_a_section_each(comparison, tmp_path):
    write_comparison(tmp_path, ("dap-fl",), seeds=1, count=3, task="cnn-fashion")
    groups = measures.grouped(find_runs([comparison, tmp_path]))
    assert [group.task for group in groups] == ["cnn-fashion", "cnn-mnist", "cnn-mnist", "cnn-mnist"]
    assert page(groups).count('<section class="task"') == 2


def test_the_command_writes_into_the_run_and_prints_the_tables(tmp_path, capsys):
    run = write_run(tmp_path / "run", count=2)
    assert main(["report", str(run)]) == 0
    shown = capsys.readouterr()
    assert "Global model on the test set" in shown.out
    assert "index.html" in shown.err
    assert (run / "report" / "index.html").exists()


@pytest.mark.parametrize(
    "arguments", [["nowhere"], ["."], [".", "--targets", "high"], [".", "--targets", "90"], []]
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["report", *arguments])
    except SystemExit as exit_:
        code = exit_.code
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_named(tmp_path):
    run = write_run(tmp_path / "run", count=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot be written to"):
        write_report([run], tmp_path / "file" / "report")


def test_the_page_says_how_a_stopped_run_goes_on(tmp_path):
    stopped = write_run(tmp_path, count=2, status="stopped")
    assert f"dapfl run --resume {stopped}" in page(groups_of(stopped))
