"""A real browser for the tests of both pages, where there is one."""

import shutil
from contextlib import contextmanager

import pytest

# What a headless Chromium without a screen or a network of its own needs.
_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium():
    """A browser, or a skipped test that says why."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no browser test: playwright is not installed"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"no browser test: none of {', '.join(names)} is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium):
    """Opens pages; at the end of the test none may have complained or fetched anything from elsewhere."""
    contexts, complaints = [], []

    @contextmanager
    def allowing_a_lost_server():
        """Lets a page say that its server cannot be reached."""
        before = len(complaints)
        yield
        complaints[before:] = [
            words for words in complaints[before:] if "ERR_CONNECTION_REFUSED" not in words
        ]

    def open_(url, theme="light", width=1280, height=900):
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on(
            "console",
            lambda message: message.type in ("error", "warning") and complaints.append(message.text),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(origin) or complaints.append(request.url))
        origin = (url.rsplit("/", 1)[0], "data:")
        page.goto(url)
        return page

    open_.allowing_a_lost_server = allowing_a_lost_server
    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
