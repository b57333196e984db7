import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from importlib.resources import files

import pytest

from dapfl.cli import main
from dapfl.commands import watch
from dapfl.dashboard.app import Hub
from tests.dashboard.live import serving
from tests.fake_runs import rounds, write_comparison, write_run


class Browser:
    """Sends requests exactly as they are written, dots and all."""

    def __init__(self, port):
        self._port = port

    def get(self, path, method="GET", host="127.0.0.1"):
        connection = HTTPConnection("127.0.0.1", self._port)
        with closing(connection):
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", host)
            connection.endheaders()
            answer = connection.getresponse()
            return answer, answer.read().decode()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = write_run(tmp_path_factory.mktemp("watched") / "run", count=3)
    (path / "keys").mkdir()
    (path / "keys" / "server.key").write_text("secret")
    with serving(path) as port:
        yield Browser(port)


def test_every_file_the_page_names_is_served_with_a_strict_policy(browser):
    _, page = browser.get("/")
    named = re.findall(r'(?:src|href)="([a-z.]+)"', page)
    assert {"plotly.js", "charts.js", "watch.js", "theme.css", "watch.css"} == set(named)
    for path in ("", *named):
        answer, _ = browser.get(f"/{path}")
        assert answer.status == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe-eval" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|https?://(?!www\.w3\.org)", page)
    assert browser.get("/plotly.js")[1] == (files("plotly") / "package_data" / "plotly.min.js").read_text()


@pytest.mark.parametrize(
    "path",
    [
        "/manifest.json",
        "/rounds.jsonl",
        "/keys/server.key",
        "/../run/keys/server.key",
        "/%2e%2e/run/manifest.json",
        "/static/watch.html",
        "/watch.js/../../app.py",
        "/..%2fapp.py",
        "//etc/passwd",
    ],
)
def test_nothing_else_is_served(browser, path):
    answer, text = browser.get(path)
    assert answer.status == 404
    assert "secret" not in text
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize("path", ["/", "/stream", "/snapshot"])
def test_nothing_can_be_sent(browser, path):
    assert browser.get(path, method="POST")[0].status == 405


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "[", ""]
)
def test_a_request_for_another_host_is_refused(browser, host):
    answer, text = browser.get("/snapshot", host=host)
    assert answer.status == 400
    assert "rounds" not in text


@pytest.mark.parametrize("host", ["127.0.0.1:8200", "localhost", "LOCALHOST:1", "[::1]:8200"])
def test_this_machine_may_be_named_in_every_usual_way(browser, host):
    assert browser.get("/", host=host)[0].status == 200


def test_the_snapshot_is_the_run(browser):
    answers = (json.loads(browser.get("/snapshot")[1]) for _ in range(1000))
    found = next(answer for answer in answers if answer["rounds"])  # once the server has looked at the disk
    assert [row["accuracy"] for row in found["rounds"]] == [line["accuracy"] for line in rounds(count=3)]


async def data(stream):
    """The next event with data."""
    async for chunk in stream:
        if chunk.startswith(b"data: "):
            return json.loads(chunk[6:])
    return None


def test_a_stream_tells_everything_then_each_new_round_then_ends(tmp_path):
    path = write_run(tmp_path, count=2, status="running")
    lines = [json.dumps(line) + "\n" for line in rounds(count=4)]

    async def follow():
        hub = Hub(path, interval=0.001)
        looking = asyncio.create_task(hub.run())
        stream = hub.stream()
        assert await anext(stream) == b"retry: 1000\n\n"
        first = await data(stream)
        while not first["rounds"]:  # the page may connect before the first look at the disk
            first = await data(stream)
        assert (first["fresh"], [row["round"] for row in first["rounds"]]) == (True, [0, 1])
        for t in (2, 3):
            with (path / "rounds.jsonl").open("a") as file:
                file.write(lines[t])
            update = await data(stream)
            assert (update["fresh"], [row["round"] for row in update["rounds"]]) == (False, [t])
        await hub.close()
        assert await data(stream) is None
        looking.cancel()

    # In a thread of its own: browser tests leave a running event loop in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, asyncio.wait_for(follow(), timeout=30)).result()


def test_the_server_stops_while_a_page_is_connected(tmp_path):
    write_run(tmp_path, count=1)
    with ExitStack() as open_pages:
        with serving(tmp_path) as port:
            page = open_pages.enter_context(socket.create_connection(("127.0.0.1", port)))
            page.sendall(b"GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert page.recv(12) == b"HTTP/1.1 200"
        # `serving` has made sure that the server stopped, with the page still there.
        assert page.fileno() >= 0


@pytest.mark.processes
def test_the_command_prints_an_address_serves_and_ends_on_ctrl_c(tmp_path):
    write_run(tmp_path, count=1)
    command = [sys.executable, "-m", "dapfl.cli", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/", address)[1])
            answer, _ = Browser(port).get("/")
            process.send_signal(signal.SIGINT)
            _, words = process.communicate(timeout=60)
        finally:
            process.kill()  # nothing is left running when the test fails
    assert answer.status == 200
    assert process.returncode == 0
    assert "Traceback" not in words


def test_a_folder_that_is_not_there_yet_is_said_to_be_waited_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dapfl.dashboard.server.serve", lambda directory, listener, metrics: listener.close())
    assert main(["watch", str(tmp_path / "soon"), "--port", "0"]) == 0
    said = " ".join(capsys.readouterr().err.split())  # the console wraps lines
    assert "soon does not exist yet: the page waits for a run to begin there." in said


def test_the_default_port_gives_way_to_the_next_free_one():
    with watch._listen("127.0.0.1", None) as first, watch._listen("127.0.0.1", None) as second:
        assert first.getsockname()[0] == "127.0.0.1"
        assert second.getsockname()[1] > first.getsockname()[1]


def test_what_can_never_be_a_run_is_refused_in_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "stuff").mkdir()
    (tmp_path / "stuff" / "note").write_text("")
    write_comparison(tmp_path / "cmp", ("dap-fl",), seeds=2, count=1)
    for name, words in (
        ("file", "is a file"),
        ("stuff", "not a run directory"),
        ("cmp", "holds 2 run directories"),
    ):
        assert main(["watch", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err


def test_a_taken_port_is_named(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["watch", str(tmp_path), "--port", str(taken.getsockname()[1])]) == 2
    assert "Cannot listen on 127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "web"])
def test_what_is_not_a_port_is_refused(tmp_path, port, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["watch", str(tmp_path), f"--port={port}"])
    assert stop.value.code == 2
    assert "is not a port" in capsys.readouterr().err
