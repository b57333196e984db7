import json

import pytest

from dapfl.reporting.measures import grouped
from dapfl.reporting.page import page as report_page
from dapfl.runs.results import find_runs
from tests.dashboard.live import serving
from tests.dashboard.looks import tab_stops, too_faint, traces
from tests.fake_runs import manifest, rounds, write_comparison, write_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The URL of a report of three settings and two seeds."""
    directory = tmp_path_factory.mktemp("report")
    write_comparison(directory / "runs", ("dap-fl", "large", "dqn-large"), seeds=2, count=12)
    (directory / "index.html").write_text(report_page(grouped(find_runs([directory / "runs"]))))
    return (directory / "index.html").as_uri()


@pytest.fixture
def run(tmp_path):
    """A run in its fifth of eight rounds."""
    return write_run(tmp_path / "run", count=5, status="running", planned=8)


def append(run, line):
    with (run / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def wait_rounds(page, count):
    page.wait_for_selector(f"body[data-rounds='{count}']")


def test_the_report_draws_the_values_of_the_runs_and_its_controls_change_them(tab, report):
    page = tab(report)
    page.wait_for_selector("[data-chart='traffic'] .main-svg")
    assert page.locator("[data-chart]").count() == page.locator("[data-chart].js-plotly-plot").count() == 10
    shown = traces(page, "[data-chart='accuracy']")
    assert set(shown) == {"dap-fl", "large", "dqn-large"}
    for setting, (x, y) in shown.items():
        runs = [rounds(setting, seed, 12) for seed in (0, 1)]
        expected = [50 * (a["accuracy"] + b["accuracy"]) for a, b in zip(*runs, strict=True)]
        assert x == list(range(1, 13))
        assert y == pytest.approx(expected, rel=1e-5)
    assert len(traces(page, "[data-chart='eta']")) == 5
    final = [rounds("large", seed, 12)[-1]["accuracy"] for seed in (0, 1)]
    assert f"{50 * sum(final):.2f}" in page.locator("tbody tr", has_text="large").first.inner_text()

    page.get_by_role("button", name="Epochs", exact=True).click()
    x, _ = traces(page, "[data-chart='accuracy']")["large"]
    assert x[-1] == sum(line["epochs"] for line in rounds("large", 0, 12))
    page.get_by_role("button", name="large", exact=True).click()
    assert "large" not in traces(page, "[data-chart='accuracy']")
    assert "large" not in traces(page, "[data-chart='loss']")
    page.get_by_role("button", name="large", exact=True).click()
    assert "large" in traces(page, "[data-chart='loss']")
    page.locator("select").select_option("large")
    _, alphas = traces(page, "[data-chart='alpha']")["100 %"]
    assert set(alphas) == {20}


def test_the_reports_theme_follows_the_system_can_be_switched_and_is_readable_either_way(tab, report):
    page = tab(report, theme="dark")
    page.wait_for_selector("[data-chart='traffic'] .main-svg")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    background = "getComputedStyle(document.body).backgroundColor"
    axis = "document.querySelector(\"[data-chart='accuracy']\").layout.font.color"
    dark, dark_axis = page.evaluate(background), page.evaluate(axis)
    assert too_faint(page) == []
    page.get_by_role("button", name="Switch to the light theme").click()
    assert page.evaluate(background) != dark
    assert page.evaluate(axis) != dark_axis
    assert too_faint(page) == []
    page.get_by_role("button", name="Switch to the dark theme").click()
    assert page.evaluate(background) == dark


def test_the_report_fits_a_phone_and_its_controls_are_reached_by_keyboard(tab, report):
    page = tab(report, width=390, height=844)
    page.wait_for_selector("[data-chart='traffic'] .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    stops = tab_stops(page)
    names = [stop["name"] for stop in stops]
    wanted = ["theme", "Rounds", "Simulated time", "Traffic", "Epochs", "dap-fl", "large", "dqn-large"]
    assert names[: len(wanted)] == wanted
    assert "Global model on the test set" in names  # a table that can be scrolled
    assert all(stop["ring"] != "none" and stop["seen"] for stop in stops)


def test_the_live_page_shows_the_run(tab, run):
    lines = rounds(count=5)
    with serving(run) as port:
        page = tab(f"http://127.0.0.1:{port}/")
        wait_rounds(page, 5)
        assert page.inner_text("#status") == "Running"
        assert page.inner_text("#accuracy") == f"{100 * lines[4]['accuracy']:.2f} %"
        assert page.inner_text("#loss") == f"{lines[4]['loss']:.4f}"
        assert page.inner_text("#round") == "5 of 8"
        x, y = traces(page, "#chart-accuracy")["accuracy, %"]
        assert (x, y) == ([1, 2, 3, 4, 5], [100 * line["accuracy"] for line in lines])
        assert traces(page, "#chart-loss")["loss"][1] == [line["loss"] for line in lines]
        assert set(traces(page, "#chart-eta")) == {"100 %", "80 %", "60 %", "40 %", "20 %"}
        assert page.locator(".client").count() == 20
        card, client = page.locator("[data-client='7']"), lines[4]["clients"][6]
        assert card.locator(".spent").inner_text() == f"cost {client['cost']:.1f}"
        assert card.locator(".has").inner_text() == f"budget {client['budget']:.1f}"
        assert card.locator(".capability").inner_text() == "80 %"
        assert card.locator(".alpha").inner_text().startswith(str(client["alpha"]))
        assert page.locator("#events li").count() == sum(len(line["rejections"]) for line in lines)
        assert page.locator("#phases-clients li").first.inner_text().startswith("train")


def test_a_new_round_appears_without_reload_and_the_page_outlives_the_run(tab, run):
    line = {**rounds(count=6)[5], "rejected": 1, "rejections": [{"client": 4, "reason": "bad-signature"}]}
    line["clients"][3]["status"] = "rejected:bad-signature"
    with serving(run) as port:
        page = tab(f"http://127.0.0.1:{port}/")
        wait_rounds(page, 5)
        page.evaluate("window.stillTheSamePage = true")
        append(run, line)
        wait_rounds(page, 6)
        assert page.inner_text("#accuracy") == f"{100 * line['accuracy']:.2f} %"
        assert traces(page, "#chart-loss")["loss"][1][-1] == line["loss"]
        event = page.locator("#events li").first.inner_text()
        assert "client 4" in event
        assert "bad-signature" in event
        assert "Round 6" in event
        assert "the signature is not this sender's" in page.locator("[data-client='4'] .why").inner_text()
        (run / "manifest.json").write_text(json.dumps(manifest(rounds=8)))
        page.locator("#status", has_text="Finished").wait_for()
        assert page.evaluate("window.stillTheSamePage")


def test_the_live_page_shows_the_tasks_own_measures(tab, run):
    with serving(run) as port:
        page = tab(f"http://127.0.0.1:{port}/")
        wait_rounds(page, 5)
        assert page.locator("#measures-card").is_hidden()
        append(run, {**rounds(count=6)[5], "metrics": {"AUC <b>": 0.98765, "recall": None}})
        wait_rounds(page, 6)
        assert page.locator("#measures").inner_text().split("\n") == ["AUC <b>", "0.9877", "recall", "–"]


def test_a_half_written_round_changes_nothing_until_it_is_whole(tab, run):
    text = json.dumps(rounds(count=6)[5]) + "\n"
    with serving(run) as port:
        page = tab(f"http://127.0.0.1:{port}/")
        wait_rounds(page, 5)
        with (run / "rounds.jsonl").open("a") as file:
            file.write(text[:500])
            file.flush()
            longer = {**manifest(rounds=9), "status": "running"}
            (run / "manifest.json").write_text(json.dumps(longer))  # is seen after the half line
            page.locator("#round", has_text="5 of 9").wait_for()
            assert page.get_attribute("body", "data-rounds") == "5"
            file.write(text[500:])
        wait_rounds(page, 6)


def test_the_page_waits_for_a_run_and_names_what_is_wrong(tab, tmp_path):
    run = tmp_path / "later"
    with serving(run) as port:
        page = tab(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("text=there is no such directory yet")
        write_run(run, count=0, status="running")
        page.wait_for_selector("text=its first round is not complete yet")
        append(run, rounds(count=1)[0])
        wait_rounds(page, 1)
        assert page.locator("#problem").is_hidden()
        with (run / "rounds.jsonl").open("a") as file:
            file.write("{}\n")
        page.wait_for_selector("text=is not a round of a run")
        assert page.locator("#accuracy").is_visible()


def test_the_page_comes_back_after_its_server_did(tab, run):
    with serving(run) as port:
        page = tab(f"http://127.0.0.1:{port}/")
        wait_rounds(page, 5)
    with tab.allowing_a_lost_server():
        page.locator("#status", has_text="Connection lost").wait_for()
        append(run, rounds(count=6)[5])
        with serving(run, port):
            wait_rounds(page, 6)
            page.locator("#status", has_text="Running").wait_for()
            assert len(traces(page, "#chart-loss")["loss"][0]) == 6


def test_a_browser_without_streams_asks_instead(tab, run):
    with serving(run) as port:
        page = tab(f"http://127.0.0.1:{port}/")
        page.add_init_script(
            "window.EventSource = class { static OPEN = 1; static CLOSED = 2; readyState = 1; close() {} };"
        )
        page.reload()
        wait_rounds(page, 5)
        append(run, rounds(count=6)[5])
        wait_rounds(page, 6)


def test_clients_can_be_filtered_and_everything_is_reached_by_keyboard(tab, run):
    line = rounds("large", count=6)[5]
    outside = sum(client["status"] != "accepted" for client in line["clients"])
    append(run, line)
    with serving(run) as port:
        page = tab(f"http://127.0.0.1:{port}/")
        wait_rounds(page, 6)
        stops = tab_stops(page)
        names = [stop["name"] for stop in stops]
        assert names == ["Skip to the run", "theme", "events", "All", "In C(t)", "Out"]
        assert all(stop["ring"] != "none" and stop["seen"] for stop in stops)
        page.get_by_role("button", name="Out", exact=True).focus()
        page.keyboard.press("Enter")
        assert page.locator(".client").count() == outside
        assert page.locator(".client .pill.good").count() == 0
        append(run, {**line, "round": 6})
        wait_rounds(page, 7)
        assert page.locator(".client").count() == outside  # the filter stays
        assert page.evaluate("document.activeElement.textContent") == "Out"  # and so does the focus


def test_the_live_page_is_readable_in_both_themes_and_fits_small_screens(tab, run):
    line = rounds("large", count=6)[5]
    line["clients"][0]["status"] = "rejected:replayed"
    append(run, line)
    with serving(run) as port:
        page = tab(f"http://127.0.0.1:{port}/", theme="dark", width=360)
        wait_rounds(page, 6)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert too_faint(page) == []
        page.get_by_role("button", name="Switch to the light theme").click()
        assert too_faint(page) == []
        for width in (768, 1024, 1600):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
